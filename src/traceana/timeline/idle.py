"""Idle time of each device by cause, and by operator, range or step; or gap by gap.

``idle_gaps.py`` finds the gaps, ``idle_causes.py`` determines what the work after a gap waited for,
``idle_host.py`` what the launching thread did; this module sums the gaps, and finds those of the
CPU in traces without GPU work.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.enrich.distinct_values import first_rows, numbered
from traceana.enrich.nesting import NONE, Flags, Ints, from_rows, to_rows
from traceana.result import Result, sums
from traceana.timeline.idle_causes import CauseFinder
from traceana.timeline.idle_gaps import (
    AFTER_LAST,
    BEFORE_FIRST,
    DATA_LOADER,
    HOST,
    Cause,
    DeviceWork,
    analyzed_windows,
    capture,
    device_work,
    gaps,
    measured_of,
    selects_steps,
    within,
)
from traceana.timeline.idle_host import HostNesting, Threads, loading
from traceana.timeline.intervals import PER_DEVICE, Busy, Device, Intervals, Times, union
from traceana.timeline.steps import device_windows, measured_steps
from traceana.timeline.work import any_work, why_no_work
from traceana.trace.per_trace import per_small_trace
from traceana.trace.schema import CPU_DEVICE, join_pieces

if TYPE_CHECKING:
    from traceana.trace import Trace

By = Literal["cause", "operator", "range", "step", "gap"]
"""Key of a row, besides device and cause: no key, the host's innermost operator or annotation, the
step that contains the time, or the gap itself."""

_COLUMNS: Final = (
    *("rank", "device", "cause", "count", "time_ns", "share", "mean_ns", "max_ns"),
    *("step_count", "step_ns", "step_share"),
)

_GAPS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "rank": pl.Int32,
    "device": pl.Int32,
    "start": pl.Int64,
    "end": pl.Int64,
    "before": pl.UInt32,
    "after": pl.UInt32,
    "cause": Cause,
    "explained": pl.Int64,
    "call": pl.UInt32,
    "range": pl.UInt32,
    "op": pl.UInt32,
}


_BLOCK: Final = 1 << 20
"""Gaps whose causes are found at a time: finding them takes 200 bytes for each."""


class IdleTime(msgspec.Struct, frozen=True):
    """The gaps of the selected devices in the whole capture, and the work between them.

    ``gaps`` has the columns :data:`_GAPS`, by device and time; row numbers are those of the whole
    trace. ``work`` is that of the GPUs; ``cpus`` is the CPUs' busy time, in traces without GPU
    work. ``windows`` are the analyzed ones, ``steps`` those of the selected steps, ``measured``
    those of the measured steps (:mod:`traceana.timeline.idle_gaps`).
    """

    gaps: pl.DataFrame
    work: Sequence[DeviceWork]
    cpus: Busy
    windows: pl.DataFrame
    steps: pl.DataFrame
    measured: pl.DataFrame

    def busy(self) -> Busy:
        """Return when each device did any work."""
        devices = {work.device: union(work.start, work.end) for work in self.work}
        return Busy({**devices, **self.cpus.by_device})


def idle(trace: Trace, by: By = "cause", *, found: IdleTime | None = None) -> Result:
    """Return the idle time of each device, one row per cause and key (``by``).

    The analyzed time is the capture, or the selected steps
    (:func:`traceana.timeline.idle_gaps.analyzed_windows`); only the part of a gap within it counts.
    Columns:

    ``operator``, ``range`` or ``step``
        The key. The operator or annotation is the host's innermost one during the gap; where the
        work was launched before the GPU went idle, the one that launched it. Null without one.
    ``rank``, ``device``, ``cause``
        One of :data:`traceana.timeline.idle_gaps.CAUSES`.
    ``count``, ``time_ns``, ``share``, ``mean_ns`` (rounded down), ``max_ns``
        Number of gaps, their summed time, its share of the device's analyzed time (by step, of the
        step), their mean and longest.
    ``step_count``, ``step_ns``, ``step_share``
        Means over the measured steps of the gaps in them (time rounded down), and the share of
        their time. Null without steps; by step, of the row's own.

    Most time first; steps in their order. By gap, one row each, the longest first: ``rank``,
    ``device``, ``cause``, ``start_ns``, ``time_ns``, ``explained_ns`` (the part of the gap that the
    cause explains), ``share``, ``operator``, ``range``, ``call`` (of the host, or the one that
    launched the waiting work), ``step`` (that launched the work after the gap), ``before``,
    ``after`` (names of the work around it).

    ``found`` is :func:`idle_time` of the trace, if already computed.
    """
    found = found or idle_time(trace)
    frame = _by_gap(trace, found) if by == "gap" else _by_cause(trace, found, by)
    summed = ("time_ns",) if by == "gap" else ("count", "time_ns")
    return Result(frame, sums(frame, *summed), _notes(trace, frame))


@per_small_trace
def idle_time(trace: Trace) -> IdleTime:
    """Return the gaps, with their causes, of the devices on which ``trace`` has work."""
    whole = trace.whole
    steps = device_windows(trace)
    windows = analyzed_windows(trace, capture(whole), steps)
    devices = dict.fromkeys(windows.select(PER_DEVICE).unique(maintain_order=True).iter_rows())
    every, work, cpus = _gaps_of(whole, tuple(devices))
    return IdleTime(every, work, cpus, windows, steps, measured_of(trace, steps))


@per_small_trace
def _gaps_of(
    whole: Trace, devices: tuple[Device, ...]
) -> tuple[pl.DataFrame, Sequence[DeviceWork], Busy]:
    """Return all gaps of ``devices`` with their causes, their work, and the CPUs' busy time.

    They are the same whatever steps are selected.
    """
    work = device_work(whole, devices)
    limits = {rank: (start, end) for rank, start, end in capture(whole).iter_rows()}
    parts = []
    if work:
        causes = CauseFinder(whole)
        parts = [
            causes.added_to(some)
            for one in work
            for some in gaps(one, *limits[one.device[0]], _first_step(whole, one)).iter_slices(
                _BLOCK
            )
        ]
    cpus = {}
    for rank, device in devices:
        if device == CPU_DEVICE:
            cpu = cpu_time(whole, rank, *limits[rank])
            cpus[rank, device] = cpu.busy
            parts.append(cpu.gaps)
    every = pl.concat([pl.DataFrame(schema=_GAPS), *(part.select(*_GAPS) for part in parts)])
    join_pieces(every)
    return every, work, Busy(cpus)


def _first_step(whole: Trace, work: DeviceWork) -> int | None:
    """Return the start of the step that launched the first work of a device; None without one."""
    step = whole.activities["step"][int(work.row[0])]
    return None if step is None else int(whole.steps["start"][step])


def _by_cause(trace: Trace, found: IdleTime, by: By) -> pl.DataFrame:
    if by == "step":
        return _by_step(trace, found)
    keys = [*([] if by == "cause" else [by]), *PER_DEVICE, "cause"]
    key = _key(trace.whole, found.gaps, by)
    named = found.gaps.select(*PER_DEVICE, "cause", *key).select(keys)
    (row,) = numbered(named)
    gaps = found.gaps.select(*PER_DEVICE, "start", "end", pl.Series("row", row).cast(pl.UInt32))
    frame = (
        named[first_rows(row)]
        .with_row_index("row")
        .join(_analyzed(trace, found, gaps).group_by("row").agg(_figures("part")), on="row")
        .join(_spans(found), on=PER_DEVICE, nulls_equal=True)
        .join(_per_step(found, gaps), on="row", how="left")
        .with_columns(_share("time_ns", "span_ns").alias("share"))
    )
    frame = _with_step_figures(found, frame)
    names = [pl.col(key).cast(pl.String) for key in keys if key == by]
    order = [pl.col("time_ns"), *names, *(pl.col(key) for key in (*PER_DEVICE, "cause"))]
    descending = [True, *[False] * (len(order) - 1)]
    return (
        frame.sort(order, descending=descending, nulls_last=True)
        .select(*keys[:-3], *_COLUMNS)
        .with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
    )


def _key(whole: Trace, gaps: pl.DataFrame, by: By) -> list[pl.Series]:
    """Return the column of operators or annotations of ``gaps``, if ``by`` is one of them."""
    match by:
        case "operator":
            return [whole.ops["name"].gather(gaps["op"]).alias(by)]
        case "range":
            return [whole.ranges["text"].gather(gaps["range"]).alias(by)]
        case _:
            return []


def _analyzed(trace: Trace, found: IdleTime, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return ``gaps`` with their part in the analyzed windows: ``part`` (ns) and ``part_start``.

    ``gaps`` are all gaps, with at least ``rank``, ``device``, ``start`` and ``end``. Gaps
    outside the windows are left out.
    """
    if not selects_steps(trace):
        # All gaps lie within the capture.
        end, start = pl.col("end"), pl.col("start")
        return gaps.with_columns((end - start).alias("part"), start.alias("part_start"))
    parts = within(gaps, found.windows)
    first = found.windows["start"].gather(parts["window"])
    return (
        gaps[parts["gap"]]
        .with_columns(parts["time_ns"].alias("part"), first.alias("part_start"))
        .with_columns(pl.max_horizontal("part_start", "start").alias("part_start"))
    )


def _spans(found: IdleTime) -> pl.DataFrame:
    """Return ``rank``, ``device``, ``span_ns``: the analyzed time of each device."""
    length = (pl.col("end") - pl.col("start")).sum().alias("span_ns")
    return found.windows.group_by(PER_DEVICE).agg(length)


def _figures(time: str) -> list[pl.Expr]:
    """Return number, sum, mean and maximum of the parts of gaps in column ``time``."""
    part = pl.col(time)
    return [
        pl.len().cast(pl.Int64).alias("count"),
        part.sum().alias("time_ns"),
        (part.sum() // pl.len()).cast(pl.Int64).alias("mean_ns"),
        part.max().alias("max_ns"),
    ]


def _share(time: str, whole: str) -> pl.Expr:
    return pl.when(pl.col(whole) > 0).then(pl.col(time) / pl.col(whole))


def _per_step(found: IdleTime, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return ``in_steps`` (ns) and ``gaps_in_steps`` of each ``row``, in the measured steps."""
    parts = within(gaps, found.measured)
    return (
        parts.select("time_ns", gaps["row"].gather(parts["gap"]))
        .group_by("row")
        .agg(
            pl.col("time_ns").sum().alias("in_steps"),
            pl.len().cast(pl.Int64).alias("gaps_in_steps"),
        )
    )


def _with_step_figures(found: IdleTime, frame: pl.DataFrame) -> pl.DataFrame:
    length = (pl.col("end") - pl.col("start")).sum()
    steps = found.measured.group_by(PER_DEVICE).agg(
        pl.len().cast(pl.Int64).alias("steps"), length.alias("steps_ns")
    )
    there = pl.col("steps").is_not_null()
    inside, count = pl.col("in_steps").fill_null(0), pl.col("gaps_in_steps").fill_null(0)
    return frame.join(steps, on=PER_DEVICE, how="left", nulls_equal=True).with_columns(
        pl.when(there).then(count / pl.col("steps")).alias("step_count"),
        pl.when(there).then(inside // pl.col("steps")).alias("step_ns"),
        pl.when(there & (pl.col("steps_ns") > 0))
        .then(inside / pl.col("steps_ns"))
        .alias("step_share"),
    )


def _by_step(trace: Trace, found: IdleTime) -> pl.DataFrame:
    number = trace.steps["number"].gather(found.steps["step"])
    own = found.steps.with_columns(number.alias("step"))
    length = (pl.col("end") - pl.col("start")).sum().alias("span_ns")
    lengths = own.group_by("step", *PER_DEVICE).agg(length)
    parts = within(found.gaps, own)
    named = found.gaps.select(*PER_DEVICE, "cause")[parts["gap"]].select(
        own["step"].gather(parts["window"]), *PER_DEVICE, "cause"
    )
    (row,) = numbered(named)
    frame = (
        named[first_rows(row)]
        .with_row_index("row")
        .join(
            parts.select("time_ns", pl.Series("row", row).cast(pl.UInt32))
            .group_by("row")
            .agg(_figures("time_ns")),
            on="row",
        )
        .join(lengths, on=["step", *PER_DEVICE], nulls_equal=True)
        .with_columns(_share("time_ns", "span_ns").alias("share"))
    )
    return (
        frame.with_columns(
            pl.col("count").cast(pl.Float64).alias("step_count"),
            pl.col("time_ns").alias("step_ns"),
            pl.col("share").alias("step_share"),
        )
        .sort(
            "step", *PER_DEVICE, "time_ns", "cause", descending=[False, False, False, True, False]
        )
        .select("step", *_COLUMNS)
        .with_columns(pl.col("cause").cast(pl.String))
    )


def _by_gap(trace: Trace, found: IdleTime) -> pl.DataFrame:
    whole = trace.whole
    gaps = (
        _analyzed(trace, found, found.gaps)
        .join(_spans(found), on=PER_DEVICE, how="left", nulls_equal=True, maintain_order="left")
        .sort("part", "part_start", "rank", "device", descending=[True, False, False, False])
    )
    step = whole.steps["number"].gather(whole.activities["step"].gather(gaps["after"]))
    return gaps.select(
        *PER_DEVICE,
        "cause",
        pl.col("part_start").alias("start_ns"),
        pl.col("part").alias("time_ns"),
        pl.min_horizontal("explained", "part").alias("explained_ns"),
        _share("part", "span_ns").alias("share"),
        whole.ops["name"].gather(gaps["op"]).alias("operator"),
        whole.ranges["text"].gather(gaps["range"]).alias("range"),
        whole.calls["name"].gather(gaps["call"]).alias("call"),
        step.alias("step"),
        _name(whole, gaps["before"]).alias("before"),
        _name(whole, gaps["after"]).alias("after"),
    ).with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))


def gaps_of(
    trace: Trace, found: IdleTime, causes: Collection[str], key: Literal["operator", "range"]
) -> pl.DataFrame:
    """Return ``device``, ``cause``, ``time_ns`` and ``key`` of the gaps with one of ``causes``.

    They are rows of :func:`idle` by gap, in any order; ``cause`` and ``key`` are not texts.
    """
    chosen = found.gaps.filter(pl.col("cause").is_in(list(causes)))
    gaps = _analyzed(trace, found, chosen)
    return gaps.select(
        "device",
        "cause",
        pl.col("part").alias("time_ns"),
        *_key(trace.whole, gaps, key),
    )


def _name(whole: Trace, activities: pl.Series) -> pl.Series:
    """Return the name of each of ``activities`` (rows)."""
    return whole.names["name"].gather(whole.activities["name_id"].gather(activities))


def _notes(trace: Trace, frame: pl.DataFrame) -> tuple[str, ...]:
    """Return the notes on ``frame``, the result."""
    if not any_work(trace):
        return (why_no_work(trace),)
    if frame.is_empty() and frame.columns[0] == "step":
        return ("no steps: the trace has no step markers",)
    if frame.is_empty():
        return ("no idle time in the analyzed window",)
    found = []
    if trace.on_cpu:
        found.append(
            "CPU-only trace: idle while a batch is waited for (data loader) or no operator runs on "
            "any thread (host)"
        )
    elif trace.calls.is_empty():
        found.append("no runtime calls recorded: causes of idle time unknown")
    else:
        lost = frame.filter(pl.col("cause") == "not_recorded")["time_ns"].sum()
        if lost:
            found.append("launched before capture: launch of the next work not in the trace")
    if not selects_steps(trace):
        found.append(
            "capture: first to last activity on any device"
            f"{', steps included' if trace.steps.height else ''}"
        )
    found += measured_steps(trace).notes if trace.steps.height else ()
    return tuple(found)


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
