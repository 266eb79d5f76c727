"""Sampled counters: means over the recording, busy and idle time, steps, classes and layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.columns.distinct import numbered
from traceana.columns.intervals import PER_DEVICE, Intervals, Times, rows_by_device, times, until
from traceana.result import Result, nothing
from traceana.settings import SAMPLED_RUN
from traceana.table import (
    CATEGORY,
    COUNT,
    LONG,
    NUMBER,
    ONE_CALL,
    PATH,
    SHARE,
    TEXT,
    TIME,
    VALUE,
    Column,
    Columns,
    completed,
    conformed,
)
from traceana.timeline.busy import busy_time, difference
from traceana.timeline.idle_gaps import analyzed_windows, selects_steps
from traceana.timeline.steps import device_windows
from traceana.timeline.work import DEVICE_COLUMNS, work

if TYPE_CHECKING:
    from traceana.trace import Trace
    from traceana.vocabulary.option_words import SamplesBy

_SERIES: Final = ("rank", "device", "name", "unit")
"""Columns of samples that identify a counter."""
_COUNTER: Final = (
    Column("name", LONG, "counter as recorded, without its unit", title="counter"),
    *DEVICE_COLUMNS,
    Column("unit", TEXT, "unit as recorded; null where it is not"),
)
_MEAN: Final = Column(
    "mean",
    VALUE,
    "time-weighted mean; of samples that cover no time their plain mean",
    value=pl.when(pl.col("sampled_ns") > 0)
    .then(pl.col("weighted") / pl.col("sampled_ns"))
    .otherwise("plain"),
)
_SAMPLED: Final = Column(
    "sampled_ns", TIME, "time that the samples cover", pl.col("weight").sum(), shown=False
)
COLUMNS: Final = (
    *_COUNTER,
    Column("samples", COUNT, "samples that cover a part of the time", pl.len(), rank=3),
    Column(
        "interval_ns",
        TIME,
        "median time between samples, rounded down",
        pl.col("duration").median().floor(),
        title="interval",
        scale=ONE_CALL,
        rank=4,
    ),
    _MEAN,
    Column(
        "busy_mean",
        VALUE,
        "the same over the time in which the device ran work; null without such time",
        value=pl.when(pl.col("busy_ns") > 0).then(pl.col("weighted_busy") / pl.col("busy_ns")),
        title="mean busy",
    ),
    Column(
        "idle_mean",
        VALUE,
        "the same over the other time",
        value=pl.when(pl.col("idle_ns") > 0).then(pl.col("weighted_idle") / pl.col("idle_ns")),
        title="mean idle",
        rank=5,
    ),
    Column("min", VALUE, "smallest value", pl.col("value").min(), rank=1),
    Column("max", VALUE, "largest value", pl.col("value").max(), rank=2),
    _SAMPLED,
    Column(
        "busy_ns",
        TIME,
        "its part in which the device ran work; null for a counter of no device",
        pl.col("busy").sum(),
        shown=False,
    ),
    Column("idle_ns", TIME, "its other part", shown=False),
)
"""The columns of :func:`samples` by counter."""
BY_STEP: Final = (
    Column("step", NUMBER, "number of the step"),
    *_COUNTER,
    Column("samples", COUNT, "samples that cover a part of the step", pl.len()),
    _MEAN,
    _SAMPLED,
)
"""The columns of :func:`samples` by step."""
_OF_RUNS: Final = (
    *_COUNTER,
    Column("time_ns", TIME, "summed durations of the work on the device", rank=1),
    Column(
        "coverage",
        SHARE,
        "share of `time_ns` in runs of the same work on the device that last at least two sampling "
        "intervals, with nothing else beside them",
    ),
    Column(
        "mean",
        VALUE,
        "time-weighted mean of the samples that lie within such runs; null where `coverage` is 0",
    ),
    Column("samples", COUNT, "these samples"),
)
BY_CLASS: Final = (Column("category", CATEGORY, "class", title="class"), *_OF_RUNS)
"""The columns of :func:`samples` by class."""
BY_LAYER: Final = (Column("layer", PATH, "path of the layer, or why there is none"), *_OF_RUNS)
"""The columns of :func:`samples` by layer."""

MAIN: Final[Mapping[str, str]] = {
    "SM active": r"^SMs? Active$",
    "tensor active": r"^Tensor Active",
    "DRAM": r"^(?:DRAM|HBM) BW$",
    "DRAM read": r"^(?:DRAM Read (?:Bandwidth|Throughput)|HBM Read)$",
    "DRAM write": r"^(?:DRAM Write (?:Bandwidth|Throughput)|HBM Write)$",
    "SM clock": r"^(?:GPC Clock Frequency|SM Clock)$",
    "power": r"^Power$",
}
"""The counters that say most, and their names: of Nsight Systems, and of PyTorch."""
LOCKED: Final = (
    "PM sampling holds a lock on the GPU's clocks: compare times only with runs sampled alike"
)
_BETWEEN: Final = 0.1
"""Part of the shortest sampling interval up to which a gap between two pieces of work of one class
does not end a run."""


def samples(trace: Trace, by: SamplesBy = "counter") -> Result:
    """Return the means of the sampled counters, with the columns of ``by``.

    Of selected steps the windows count. The means over busy and over idle time, weighted by these
    times, add up to the mean. Counters are in alphabetical order; classes and layers with most time
    come first.
    """
    columns = {"counter": COLUMNS, "step": BY_STEP, "class": BY_CLASS, "layer": BY_LAYER}[by]
    if trace.tables.samples.is_empty():
        why = "no sampled counters: nsys profile --gpu-metrics-devices=all records some"
        return nothing(columns, why)
    notes = [LOCKED] if trace.meta.properties.get("sampler_locks_clocks") else []
    match by:
        case "counter":
            frame = _by_counter(trace)
        case "step":
            frame = _by_step(trace)
            if frame.is_empty():
                notes.append("no step with sampled counters")
        case "class" | "layer":
            label = "category" if by == "class" else "layer_path"
            frame = _by_work(trace, label).rename({label: columns[0].name})
            notes.append(
                f"means of runs of one {by} that last at least {SAMPLED_RUN} sampling intervals; "
                "coverage: their share of its time"
                if frame.height
                else "no work on a device with sampled counters"
            )
    return Result(conformed(frame, columns), {}, tuple(notes), columns)


def _by_counter(trace: Trace) -> pl.DataFrame:
    table = trace.tables.samples
    weight = table["duration"].to_numpy().copy()
    busy = np.zeros(table.height, np.int64)
    on_device = np.zeros(table.height, np.bool_)
    windows = analyzed_windows(trace) if selects_steps(trace) else None
    if windows is not None:
        weight[:] = 0
    busy_by_device = busy_time(trace.whole).by_device
    for device, rows in rows_by_device(table):
        start, end = (side[rows] for side in times(table))
        intervals = busy_by_device.get(device, _NOTHING)
        if windows is not None:
            of_device = windows.filter(_is(device))
            window = of_device["start"].to_numpy(), of_device["end"].to_numpy()
            weight[rows] = _within(window, start, end)
            intervals = difference(window, difference(window, intervals))
        busy[rows] = _within(intervals, start, end)
        on_device[rows] = device[1] is not None
    covered = table.with_columns(
        pl.Series("weight", weight), pl.Series("busy", busy), pl.Series("on_device", on_device)
    ).with_columns(pl.when("on_device").then("busy").alias("busy"))
    if windows is not None:
        covered = covered.filter(pl.col("weight") > 0)
    return _means(covered, COLUMNS, (), pl.col("busy"), pl.col("weight") - pl.col("busy"))


def _is(device: tuple[int | None, int | None]) -> pl.Expr:
    rank, number = (pl.lit(value, pl.Int32) for value in device)
    return pl.col("rank").eq_missing(rank) & pl.col("device").eq_missing(number)


_NOTHING: Final[Intervals] = (np.zeros(0, np.int64), np.zeros(0, np.int64))


def _within(intervals: Intervals, start: Times, end: Times) -> Times:
    """Return how much of the time from each ``start`` to its ``end`` is in ``intervals``."""
    return until(intervals, end) - until(intervals, start)


def _means(
    covered: pl.DataFrame,
    columns: Columns,
    keys: tuple[str, ...],
    busy: pl.Expr | None = None,
    idle: pl.Expr | None = None,
) -> pl.DataFrame:
    """Return a row for each of ``keys`` and counter of the samples ``covered``.

    ``weight`` is the time for which a value counts; of it are ``busy`` and ``idle``.
    """
    value = pl.col("value")
    sums = {"weighted": (value * pl.col("weight")).sum(), "plain": value.mean()}
    if busy is not None and idle is not None:
        sums |= {"weighted_busy": (value * busy).sum(), "weighted_idle": (value * idle).sum()}
        sums["idle_ns"] = pl.when(busy.count() > 0).then(idle.sum())
    declared = [
        column.aggregate.alias(column.name) for column in columns if column.aggregate is not None
    ]
    frame = covered.group_by(*keys, *_SERIES).agg(
        *declared, *(sum_.alias(name) for name, sum_ in sums.items())
    )
    if "busy_ns" in frame.columns:
        # A sum of nulls is 0.
        frame = frame.with_columns(pl.when(pl.col("idle_ns").is_not_null()).then("busy_ns"))
    return completed(frame, columns).sort(*keys, *_ORDER, nulls_last=True)


_ORDER: Final = (
    "rank",
    "device",
    pl.col("name").cast(pl.String).str.to_lowercase(),
    pl.col("name").cast(pl.String),
    pl.col("unit").cast(pl.String),
)


def _by_step(trace: Trace) -> pl.DataFrame:
    table = trace.tables.samples
    windows = device_windows(trace)
    steps = (
        windows.with_columns(trace.tables.steps["number"].gather(windows["step"]).alias("step"))
        .group_by("step", *PER_DEVICE)
        .agg(pl.col("start").min(), pl.col("end").max())
        .sort(*PER_DEVICE, "start", "end")
    )
    parts = [table.clear().with_columns(step=pl.lit(None, pl.Int64), weight=pl.lit(0, pl.Int64))]
    for device, rows in rows_by_device(table):
        of_device = steps.filter(_is(device))
        first, last = _disjoint(*(of_device[side].to_numpy() for side in ("start", "end")))
        start, end = (side[rows] for side in times(table))
        # The steps from `begin` on, before `stop`, share time with the sample.
        begin = np.searchsorted(last, start, side="right")
        stop = np.maximum(np.searchsorted(first, end, side="left"), begin)
        shared = stop - begin
        sample = np.repeat(np.arange(len(rows)), shared)
        step = np.arange(len(sample)) + np.repeat(begin - (np.cumsum(shared) - shared), shared)
        weight = np.minimum(last[step], end[sample]) - np.maximum(first[step], start[sample])
        parts.append(
            table[rows[sample]].with_columns(
                of_device["step"].gather(step).alias("step"), pl.Series("weight", weight)
            )
        )
    return _means(pl.concat(parts).filter(pl.col("weight") > 0), BY_STEP, ("step",))


def _disjoint(starts: Times, ends: Times) -> Intervals:
    """Return the intervals, in order of their starts, without what an earlier one covers."""
    reached = np.maximum.accumulate(ends)
    return np.maximum(starts, np.append(starts[:1], reached[:-1])), reached


def _by_work(trace: Trace, label: str) -> pl.DataFrame:
    """Return a row for each ``label`` of work and counter of its device."""
    table = trace.tables.samples
    interval = pl.col("duration").median().over(_SERIES).fill_null(0).cast(pl.Int64)
    table = table.with_columns(interval.alias("interval"))
    pieces = work(trace.whole, label, "step_number", *PER_DEVICE, "start", "duration").with_columns(
        pl.col(label).cast(pl.String)
    )
    selected = trace.meta.properties.get("selected_steps")
    if selected is not None:
        of_step = pl.col("step_number").is_in(selected).fill_null(False)
        pieces = pieces.with_columns(pl.when(of_step).then(label).alias(label))
    pieces = pieces.drop_nulls(["device", "start", "duration"]).sort("start", maintain_order=True)
    rows_of_pieces = dict(rows_by_device(pieces))
    parts = [
        part
        for device, rows in rows_by_device(table)
        if device in rows_of_pieces
        for part in _on_device(table[rows], pieces[rows_of_pieces[device]], label)
    ]
    if not parts:
        return pl.DataFrame(schema={label: pl.String})
    frame = pl.concat(parts).drop_nulls(label)
    of_label = pl.col("time_ns").max().over(label)
    return frame.sort(-of_label, label, *_ORDER, nulls_last=True)


def _on_device(samples: pl.DataFrame, pieces: pl.DataFrame, label: str) -> Iterator[pl.DataFrame]:
    """Yield the rows of one device: for each sampling interval those of its counters."""
    # One sample alone has no interval.
    shortest = min((interval for interval in samples["interval"].unique() if interval), default=0)
    (key,) = numbered(pieces.select(pl.col(label).cast(pl.Categorical)))
    names = pieces.select(label, pl.Series("key", key)).unique("key").sort("key")[label]
    run_of_piece, start, end, key_of_run = _runs(
        *times(pieces),
        key,
        int(_BETWEEN * shortest),
    )
    duration = pieces["duration"].to_numpy()
    total = np.bincount(key, duration, len(names)).astype(np.int64)
    for interval, of_interval in samples.group_by("interval", maintain_order=True):
        long = (end - start >= SAMPLED_RUN * int(interval[0])) & (int(interval[0]) > 0)
        in_long = np.bincount(key, duration * long[run_of_piece], len(names))
        begin, stop = times(of_interval)
        first, last, keys = start[long], end[long], key_of_run[long]
        at = np.searchsorted(first, begin, side="right") - 1
        inside = (at >= 0) & (stop > begin)
        inside[inside] = stop[inside] <= last[at[inside]]
        value = pl.col("value") * pl.col("duration")
        means = (
            of_interval.filter(inside)
            .with_columns(pl.Series("key", keys[at[inside]], pl.Int64))
            .group_by(*_SERIES, "key")
            .agg((value.sum() / pl.col("duration").sum()).alias("mean"), pl.len().alias("samples"))
        )
        of_key = pl.DataFrame(
            {
                "key": np.arange(len(names)),
                label: names,
                "time_ns": total,
                "coverage": in_long / np.maximum(total, 1),
            }
        )
        series = of_interval.select(_SERIES).unique(maintain_order=True).sort(_ORDER)
        yield (
            of_key.join(series, how="cross")
            .join(means, on=["key", *_SERIES], how="left", nulls_equal=True, maintain_order="left")
            .with_columns(pl.col("samples").fill_null(0))
        )


def _runs(start: Times, end: Times, key: Times, between: int) -> tuple[Times, Times, Times, Times]:
    """Return the run of each piece of work, and start, end and key of each run.

    The pieces are in order of their starts. A run is of pieces with one ``key``, at most
    ``between`` apart. It lasts while no piece of another key runs: its end may be before its start.
    """
    reached = np.maximum.accumulate(end)
    before = np.append(start[:1] - between - 1, reached[:-1])
    begins = (start > before + between) | np.append(True, key[1:] != key[:-1])
    first = np.flatnonzero(begins)
    run = np.cumsum(begins) - 1
    ends = np.maximum.reduceat(end, first) if len(first) else end
    alone_from = np.maximum(start[first], before[first])
    alone_until = np.minimum(ends, np.append(start[first][1:], np.iinfo(np.int64).max))
    return run, alone_from, alone_until, key[first]
