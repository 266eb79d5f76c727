"""Time of a server's iterations by phase (prefill, decode, mixed), and how idle its GPUs are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.costs import charges
from traceana.enrich.serving import iterations
from traceana.enrich.steps import SET_BY_PROGRAM
from traceana.result import Result
from traceana.timeline.idle import idle_time
from traceana.timeline.idle_gaps import within
from traceana.timeline.steps import serves, step_windows, steps
from traceana.timeline.work import work
from traceana.trace.per_trace import per_trace

if TYPE_CHECKING:
    from traceana.trace import Trace

_FRAME: Final = {
    "phase": pl.String,
    "iterations": pl.Int64,
    "requests": pl.Float64,
    "tokens": pl.Float64,
    "wall_ns": pl.Int64,
    "iteration_ns": pl.Int64,
    "work_ns": pl.Int64,
    "tokens_per_s": pl.Float64,
    "flops": pl.Int64,
    "arithmetic_intensity": pl.Float64,
    "idle_ns": pl.Int64,
    "idle_cause": pl.String,
}

_PROCESS: Final = ("rank", "process")
"""Ranks in containers have the same process id."""


@per_trace
def phases(trace: Trace) -> Result:
    """Return one row per phase of a server's iterations, longest first.

    Columns: ``phase``; ``iterations``; means over them: ``requests``, ``tokens`` (null where a text
    has none), ``wall_ns`` (of the iteration's range on the host), ``iteration_ns`` (until the end
    of the range or of the work that it launched, the later, but of work after the range at most to
    the begin of the next iteration of its process), ``work_ns`` (summed durations of that work,
    whenever it ran); ``tokens_per_s``, all tokens of the phase over the ``iteration_ns`` of its
    iterations; ``flops``, the mean of what has a FLOP count (null where
    nothing has), and ``arithmetic_intensity``, FLOPs per compulsory byte of what has both;
    ``idle_ns``, the mean idle time of a device from the begin of an iteration to that of the next
    of its process (null without device work), and ``idle_cause``, the cause of most of it.
    """
    if not serves(trace):
        return Result(
            pl.DataFrame(schema=_FRAME), {}, ("the steps are not iterations of a server",)
        )
    marks = trace.ranges.filter(pl.col("kind").is_in([*SET_BY_PROGRAM, "step"])).select(
        *_PROCESS, "start", pl.col("text").cast(pl.String)
    )
    described = pl.DataFrame(
        [
            (text, one.phase, one.requests, one.tokens)
            for text, one in iterations(marks["text"]).items()
        ],
        schema={"text": pl.String, "phase": pl.String, "requests": pl.Int64, "tokens": pl.Int64},
        orient="row",
    )
    key = [*_PROCESS, "start"]
    marks = marks.join(described, on="text").unique(key, keep="first")
    in_order = trace.steps.with_row_index("row").sort("start", "row").select("row", *key)
    each = pl.concat([in_order, steps(trace).frame.drop("process")], how="horizontal")
    each = each.join(marks, on=key, how="inner", nulls_equal=True)
    whole = pl.col("tokens").null_count() == 0
    windows = _windows(trace)
    parts = _idle_parts(trace, windows)
    each = each.join(_idle(windows, parts), on="row", how="left")
    each = each.join(_lasting(trace), on="row", how="left")
    frame = (
        each.group_by("phase")
        .agg(
            pl.len().cast(pl.Int64).alias("iterations"),
            pl.col("requests").mean(),
            pl.when(whole).then(pl.col("tokens").mean()).alias("tokens"),
            pl.col("wall_ns", "iteration_ns").mean().cast(pl.Int64),
            pl.col("work_ns").mean().cast(pl.Int64),
            pl.when(whole & (pl.col("iteration_ns").sum() > 0))
            .then(1e9 * pl.col("tokens").sum() / pl.col("iteration_ns").sum())
            .alias("tokens_per_s"),
            pl.col("wall_ns").sum().alias("_total"),
            pl.col("idle_ns").mean().cast(pl.Int64),
        )
        .join(_causes(parts, each), on="phase", how="left")
        .join(_flops(trace, each), on="phase", how="left")
        .sort(["_total", "phase"], descending=[True, False])
        .select(pl.col(name).cast(kind) for name, kind in _FRAME.items())
    )
    return Result(frame)


def _lasting(trace: Trace) -> pl.DataFrame:
    """Return ``iteration_ns`` of each iteration, a ``row`` of ``steps``.

    A server that launches and returns, as with CUDA graphs and asynchronous scheduling, ends its
    range long before the GPU: tokens over the time of the range alone were more than it generates.
    """
    worked = (
        work(trace, "step", "start", "duration")
        .group_by(pl.col("step").alias("row"))
        .agg((pl.col("start") + pl.col("duration")).max().alias("worked"))
    )
    each = trace.steps.with_row_index("row").sort("start", "row")
    each = each.join(worked, on="row", how="left", maintain_order="left").with_columns(
        pl.col("start").shift(-1).over(_PROCESS).alias("next")
    )
    # Without work the range is all there is.
    until = pl.when(pl.col("worked").is_not_null()).then(pl.min_horizontal("worked", "next"))
    return each.select("row", iteration_ns=pl.max_horizontal("duration", until - pl.col("start")))


def _windows(trace: Trace) -> pl.DataFrame:
    """Return the time from the begin of each iteration to that of the next, or else to its end.

    One row per iteration and device of its process: ``row`` (of ``steps``), ``rank``, ``device``,
    ``start``, ``end``.
    """
    each = trace.steps.with_row_index("row").select(
        "row", *_PROCESS, "start", (pl.col("start") + pl.col("duration")).alias("end")
    )
    used = step_windows(trace).select("row", "device").join(each, on="row")
    next_start = pl.col("start").shift(-1).over(*_PROCESS, "device")
    return (
        each.join(used.select(*_PROCESS, "device").unique(), on=_PROCESS, nulls_equal=True)
        .sort(*_PROCESS, "device", "start")
        .with_columns(next_start.fill_null(pl.col("end")).alias("end"))
    )


def _idle_parts(trace: Trace, windows: pl.DataFrame) -> pl.DataFrame:
    """Return ``row``, ``cause``, ``time_ns`` of the idle time in ``windows``."""
    gaps = idle_time(trace).gaps
    parts = within(gaps, windows)
    return windows.select("row")[parts["window"]].with_columns(
        gaps["cause"].gather(parts["gap"]).cast(pl.String), parts["time_ns"]
    )


def _idle(windows: pl.DataFrame, parts: pl.DataFrame) -> pl.DataFrame:
    """Return ``idle_ns`` of each iteration, the mean of its devices."""
    idle = parts.group_by("row").agg(pl.col("time_ns").sum())
    return (
        windows.group_by("row")
        .agg(pl.len().alias("devices"))
        .join(idle, on="row", how="left")
        .select("row", idle_ns=pl.col("time_ns").fill_null(0) // pl.col("devices"))
    )


def _causes(parts: pl.DataFrame, each: pl.DataFrame) -> pl.DataFrame:
    """Return ``phase`` and ``idle_cause``, that of most idle time, of the iterations ``each``."""
    return (
        parts.join(each.select("row", "phase"), on="row")
        .group_by("phase", "cause")
        .agg(pl.col("time_ns").sum())
        .sort(["time_ns", "cause"], descending=[True, False])
        .group_by("phase")
        .agg(pl.col("cause").first().alias("idle_cause"))
    )


def _flops(trace: Trace, each: pl.DataFrame) -> pl.DataFrame:
    """Return ``phase``, ``flops`` and ``arithmetic_intensity`` of the iterations ``each``."""
    rows = []
    # Every process numbers its own iterations: those of a number can differ in their phase.
    apart = trace.with_tables(
        steps=trace.steps.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("number"))
    )
    for phase in each["phase"].unique().sort():
        own = each.filter(pl.col("phase") == phase)
        counted = charges(apart.select(steps=own["row"].to_list()), None).frame
        flops = int(counted["flops"].sum())
        both = counted.drop_nulls("bytes")
        moved = int(both["bytes"].sum())
        intensity = int(both["flops"].sum()) / moved if moved else None
        rows.append((phase, flops // own.height if flops else None, intensity))
    schema = {name: _FRAME[name] for name in ("phase", "flops", "arithmetic_intensity")}
    return pl.DataFrame(rows, schema=schema, orient="row")
