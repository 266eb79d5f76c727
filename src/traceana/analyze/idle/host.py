"""Idle time of the host itself, in traces of the CPU alone: what loading and nothing else leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.analyze.idle.causes import BEGIN, DATA_LOADER, END, HOST, Cause
from traceana.analyze.idle.doing import Doing
from traceana.analyze.idle.spent import loading
from traceana.analyze.idle.threads import Threads
from traceana.analyze.intervals import Times, union
from traceana.enrich.nesting import NONE, Ints, from_rows, to_rows
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.trace import Trace

Intervals = tuple[Times, Times]

_OWN: Final = ("layer", "optimizer", "collective", "hooks")
"""Roles of operators that are the training's own, whatever else goes on."""


@dataclass(frozen=True, slots=True)
class HostTime:
    """When the host computed, and its gaps, as of :func:`traceana.analyze.idle.judge.judged`."""

    busy: Intervals
    gaps: pl.DataFrame


def host_time(trace: Trace, rank: int | None, begin: int, finish: int) -> HostTime:
    """Return the time of one rank's host from ``begin`` to ``finish``.

    It computes while an operator of a layer, the optimizer or a collective runs on any thread, and
    while any other operator runs and no batch is waited for: TensorFlow's input pipelines, and the
    data sets of PyTorch, run operators as well. Other time is in loading while a batch is waited
    for, else in no operator.
    """
    here = pl.col("rank").eq_missing(pl.lit(rank, pl.Int32))
    rows = trace.activities.with_row_index("row").filter(here, pl.col("device") == CPU_DEVICE)
    role = trace.layers["role"].cast(pl.String).gather(rows["layer"])
    own = _intervals(rows.filter(role.is_in(_OWN).fill_null(value=False)))
    other = _intervals(rows)
    waits = loading(trace).filter(here).sort("start")
    waited = _intervals(waits)
    exposed = _less(waited, own)
    # Of `other` what lies in a wait outside `own` is loading.
    busy = _less(_either(own, other), exposed)
    nothing = _less((np.array([begin]), np.array([finish])), _either(_either(own, other), waited))
    # As on a device `begin` reaches to the begin of the first step.
    first = trace.steps.filter(here)["start"].min()
    stepped = finish if first is None else max(int(first), begin)  # type: ignore[arg-type]
    nothing = _cut(nothing, stepped)
    start, end = (np.concatenate(pair) for pair in zip(exposed, nothing, strict=True))
    cause = np.full(len(start), HOST, dtype=np.int8)
    cause[: len(exposed[0])] = DATA_LOADER
    cause[(cause == HOST) & (start == begin) & (start < stepped)] = BEGIN
    cause[(cause == HOST) & (end == finish)] = END
    in_time = np.argsort(start, kind="stable")
    start, end, cause = start[in_time], end[in_time], cause[in_time]
    gaps = pl.DataFrame({"start": start, "end": end}).with_columns(
        pl.lit(rank, pl.Int32).alias("rank"),
        pl.lit(CPU_DEVICE, pl.Int32).alias("device"),
        pl.Series("cause", cause.astype(np.uint8)).cat.to(Cause),
        (pl.col("end") - pl.col("start")).alias("explained"),
        pl.lit(None, pl.UInt32).alias("call"),
        *_around(trace, rows, waits, start, end, cause),
    )
    return HostTime(busy, gaps)


def _around(
    trace: Trace,
    rows: pl.DataFrame,
    waits: pl.DataFrame,
    start: Ints,
    end: Ints,
    cause: npt.NDArray[np.int8],
) -> list[pl.Series]:
    """Return ``before`` and ``after`` each gap, and the ``range`` and ``op`` in it, as rows."""
    before, after = _neighbours(rows, start, end)
    threads = Threads.of(trace)
    key = _thread(trace, threads, after)
    doing = Doing.of(trace, threads, threads.among(key))
    annotation = doing.annotation(key, (start + end) // 2)
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
    """Return the activities that ended last before each gap, and that began first behind it."""
    row = rows["row"].cast(pl.Int64).to_numpy()
    begins = rows["start"].to_numpy()
    ends = begins + rows["duration"].to_numpy()
    by_end, by_begin = np.argsort(ends, kind="stable"), np.argsort(begins, kind="stable")
    last = np.searchsorted(ends[by_end], start, side="right") - 1
    first = np.searchsorted(begins[by_begin], end, side="left")
    before = np.where(last >= 0, row[by_end][last], NONE)
    after = np.where(first < len(row), row[by_begin][np.minimum(first, len(row) - 1)], NONE)
    return to_rows(before), to_rows(after)


def _thread(trace: Trace, threads: Threads, activities: pl.Series) -> Ints:
    """Return the thread of each of the host's activities, an operator or a range; NONE: unknown."""
    found = np.full(len(activities), NONE, dtype=np.int64)
    # An operator tells it where both do.
    for table, numbers in (("ranges", threads.ranges), ("ops", threads.ops)):
        rows = from_rows(trace.activities[_COLUMN[table]].gather(activities))
        known = np.flatnonzero(rows != NONE)
        found[known] = numbers[rows[known]]
    nowhere = threads.known["thread"].is_null().to_numpy()
    return np.where((found != NONE) & ~nowhere[found], found, NONE)


_COLUMN: Final = {"ops": "op", "ranges": "range"}


def _intervals(rows: pl.DataFrame) -> Intervals:
    start = rows["start"].to_numpy()
    return union(start, start + rows["duration"].to_numpy())


def _either(one: Intervals, other: Intervals) -> Intervals:
    return union(np.concatenate((one[0], other[0])), np.concatenate((one[1], other[1])))


def _cut(intervals: Intervals, moment: int) -> Intervals:
    """Return the same time, with an interval that holds ``moment`` in it as two."""
    start, end = intervals
    parted = np.full(int(((start < moment) & (moment < end)).sum()), moment)
    return np.sort(np.append(start, parted)), np.sort(np.append(end, parted))


def _less(one: Intervals, other: Intervals) -> Intervals:
    """Return what of ``one`` is not in ``other``; both are disjoint and ordered."""
    edges = np.unique(np.concatenate((*one, *other)))
    if not len(edges):
        return edges, edges
    start, end = edges[:-1], edges[1:]
    kept = _inside(one, start) & ~_inside(other, start)
    return union(start[kept], end[kept])


def _inside(intervals: Intervals, moments: Times) -> npt.NDArray[np.bool_]:
    starts, ends = intervals
    if not len(starts):
        return np.zeros(len(moments), dtype=np.bool_)
    at = np.searchsorted(starts, moments, side="right") - 1
    return np.asarray((at >= 0) & (ends[at] > moments))
