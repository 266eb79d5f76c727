"""Idle time of the CPU, in traces without GPU work: waits for a batch, and no operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.analyze.idle_gaps import AFTER_LAST, BEFORE_FIRST, DATA_LOADER, HOST, Cause
from traceana.analyze.idle_host import HostNesting, Threads, loading
from traceana.analyze.intervals import Intervals, Times, union
from traceana.enrich.nesting import NONE, Flags, Ints, from_rows, to_rows
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.trace import Trace

_TRAINING: Final = ("layer", "optimizer", "collective", "hooks")
"""Roles of operators that count as compute even during a wait for a batch."""


class CpuTime(msgspec.Struct, frozen=True):
    """The CPU's busy intervals, and its gaps with causes (columns as in ``idle_causes.py``)."""

    busy: Intervals
    gaps: pl.DataFrame


def cpu_time(trace: Trace, rank: int | None, start: int, end: int) -> CpuTime:
    """Return the busy time and the gaps of one rank's CPU from ``start`` to ``end``.

    The CPU is busy while an operator of a layer, of the optimizer or of a collective runs on any
    thread. Other operators count outside waits for a batch only, because TensorFlow's input
    pipelines and PyTorch's data sets also run operators. The rest is ``data_loader`` during a wait
    for a batch, else ``host``.
    """
    here = pl.col("rank").eq_missing(pl.lit(rank, pl.Int32))
    rows = trace.activities.with_row_index("row").filter(here, pl.col("device") == CPU_DEVICE)
    role = trace.layers["role"].cast(pl.String).gather(rows["layer"])
    training = _intervals(rows.filter(role.is_in(_TRAINING).fill_null(value=False)))
    operators = _intervals(rows)
    waits = loading(trace).filter(here).sort("start")
    waiting = _intervals(waits)
    # Other operators during an exposed wait belong to the input pipeline.
    exposed = _without(waiting, training)
    busy = _without(_either(training, operators), exposed)
    whole = (np.array([start]), np.array([end]))
    nothing = _without(whole, _either(_either(training, operators), waiting))
    # As on a GPU, the time before the first activity ends where the first step starts.
    first = trace.steps.filter(here)["start"].min()
    first_step = end if first is None else max(int(first), start)  # type: ignore[arg-type]
    nothing = _cut(nothing, first_step)
    starts, ends = (np.concatenate(pair) for pair in zip(exposed, nothing, strict=True))
    cause = np.full(len(starts), HOST, dtype=np.int8)
    cause[: len(exposed[0])] = DATA_LOADER
    cause[(cause == HOST) & (starts == start) & (starts < first_step)] = BEFORE_FIRST
    cause[(cause == HOST) & (ends == end)] = AFTER_LAST
    in_time = np.argsort(starts, kind="stable")
    starts, ends, cause = starts[in_time], ends[in_time], cause[in_time]
    gaps = pl.DataFrame({"start": starts, "end": ends}).with_columns(
        pl.lit(rank, pl.Int32).alias("rank"),
        pl.lit(CPU_DEVICE, pl.Int32).alias("device"),
        pl.Series("cause", cause.astype(np.uint8)).cat.to(Cause),
        (pl.col("end") - pl.col("start")).alias("explained"),
        pl.lit(None, pl.UInt32).alias("call"),
        *_around(trace, rows, waits, starts, ends, cause),
    )
    return CpuTime(busy, gaps)


def _around(
    trace: Trace,
    rows: pl.DataFrame,
    waits: pl.DataFrame,
    start: Ints,
    end: Ints,
    cause: npt.NDArray[np.int8],
) -> list[pl.Series]:
    """Return the rows ``before`` and ``after`` each gap, and its ``range`` and ``op``."""
    before, after = _neighbours(rows, start, end)
    threads = Threads.of(trace)
    key = _thread(trace, threads, after)
    nesting = HostNesting.of(trace, threads, threads.among(key))
    annotation = nesting.annotation(key, (start + end) // 2)
    if waits.height:
        reach = (waits["start"] + waits["duration"]).cum_max().to_numpy()
        at = np.minimum(np.searchsorted(reach, start, side="right"), waits.height - 1)
        own = waits["row"].cast(pl.Int64).fill_null(NONE).to_numpy()[at]
        annotation = np.where((cause == DATA_LOADER) & (own != NONE), own, annotation)
    return [
        before.alias("before"),
        after.alias("after"),
        to_rows(annotation).alias("range"),
        pl.Series("op", [None] * len(start), dtype=pl.UInt32),
    ]


def _neighbours(rows: pl.DataFrame, start: Ints, end: Ints) -> tuple[pl.Series, pl.Series]:
    """Return the activity that ended last before each gap, and the first that started after it."""
    row = rows["row"].cast(pl.Int64).to_numpy()
    starts = rows["start"].to_numpy()
    ends = starts + rows["duration"].to_numpy()
    by_end, by_start = np.argsort(ends, kind="stable"), np.argsort(starts, kind="stable")
    last = np.searchsorted(ends[by_end], start, side="right") - 1
    first = np.searchsorted(starts[by_start], end, side="left")
    before = np.where(last >= 0, row[by_end][last], NONE)
    after = np.where(first < len(row), row[by_start][np.minimum(first, len(row) - 1)], NONE)
    return to_rows(before), to_rows(after)


def _thread(trace: Trace, threads: Threads, activities: pl.Series) -> Ints:
    """Return the thread of each CPU activity, an operator or a range; NONE where not recorded."""
    found = np.full(len(activities), NONE, dtype=np.int64)
    # The operator's thread where both are recorded.
    for column, numbers in (("range", threads.ranges), ("op", threads.ops)):
        rows = from_rows(trace.activities[column].gather(activities))
        known = np.flatnonzero(rows != NONE)
        found[known] = numbers[rows[known]]
    unknown = threads.known["thread"].is_null().to_numpy()
    return np.where((found != NONE) & ~unknown[found], found, NONE)


def _intervals(rows: pl.DataFrame) -> Intervals:
    start = rows["start"].to_numpy()
    return union(start, start + rows["duration"].to_numpy())


def _either(one: Intervals, other: Intervals) -> Intervals:
    return union(np.concatenate((one[0], other[0])), np.concatenate((one[1], other[1])))


def _cut(intervals: Intervals, time: int) -> Intervals:
    """Return ``intervals`` with the one that contains ``time``, if any, cut in two."""
    start, end = intervals
    cut = np.full(int(((start < time) & (time < end)).sum()), time)
    return np.sort(np.append(start, cut)), np.sort(np.append(end, cut))


def _without(one: Intervals, other: Intervals) -> Intervals:
    """Return the parts of ``one`` that are not in ``other``; both are disjoint and ordered."""
    edges = np.unique(np.concatenate((*one, *other)))
    if not len(edges):
        return edges, edges
    start, end = edges[:-1], edges[1:]
    kept = _inside(one, start) & ~_inside(other, start)
    return union(start[kept], end[kept])


def _inside(intervals: Intervals, times: Times) -> Flags:
    starts, ends = intervals
    if not len(starts):
        return np.zeros(len(times), dtype=np.bool_)
    at = np.searchsorted(starts, times, side="right") - 1
    return np.asarray((at >= 0) & (ends[at] > times))
