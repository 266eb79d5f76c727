"""Time of a server's iterations by phase (prefill, decode, mixed), and how idle its GPUs are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.charges import charges
from traceana.enrich.serving import iterations
from traceana.enrich.steps import SET_BY_PROGRAM
from traceana.result import Result
from traceana.timeline.idle import idle_time
from traceana.timeline.idle_gaps import within
from traceana.timeline.steps import device_windows, is_server, select, steps
from traceana.trace import per_trace

if TYPE_CHECKING:
    from traceana.trace import Trace

_FRAME: Final = {
    "phase": pl.String,
    "iterations": pl.Int64,
    "requests": pl.Float64,
    "tokens": pl.Float64,
    "wall_ns": pl.Int64,
    "host_ns": pl.Int64,
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
    has none), ``wall_ns`` (the iteration's time, :func:`traceana.timeline.steps.step_windows`),
    ``host_ns`` (its range on the host), ``work_ns`` (summed durations of the work that it launched,
    whenever it ran); ``tokens_per_s``, all tokens of the phase over the time of its iterations;
    ``flops``, the mean of what has a FLOP count (null where nothing has), and
    ``arithmetic_intensity``, FLOPs per compulsory byte of what has both; ``idle_ns``, the mean idle
    time of a device in an iteration (null without device work), and ``idle_cause``, the cause of
    most of it.
    """
    if not is_server(trace):
        return Result(
            pl.DataFrame(schema=_FRAME), {}, ("the steps are not iterations of a server",)
        )
    marks = trace.tables.ranges.filter(pl.col("kind").is_in([*SET_BY_PROGRAM, "step"])).select(
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
    in_order = trace.tables.steps.with_row_index("row").sort("start", "row").select("row", *key)
    each = pl.concat([in_order, steps(trace).frame.drop("process")], how="horizontal")
    each = each.join(marks, on=key, how="inner", nulls_equal=True)
    whole = pl.col("tokens").null_count() == 0
    windows = device_windows(trace).rename({"step": "row"})
    parts = _idle_parts(trace, windows)
    each = each.join(_idle(windows, parts), on="row", how="left")
    frame = (
        each.group_by("phase")
        .agg(
            pl.len().cast(pl.Int64).alias("iterations"),
            pl.col("requests").mean(),
            pl.when(whole).then(pl.col("tokens").mean()).alias("tokens"),
            pl.col("wall_ns", "host_ns").mean().cast(pl.Int64),
            pl.col("work_ns").mean().cast(pl.Int64),
            pl.when(whole & (pl.col("wall_ns").sum() > 0))
            .then(1e9 * pl.col("tokens").sum() / pl.col("wall_ns").sum())
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
        steps=trace.tables.steps.with_columns(
            pl.int_range(pl.len(), dtype=pl.Int64).alias("number")
        )
    )
    for phase in each["phase"].unique().sort():
        own = each.filter(pl.col("phase") == phase)
        counted = charges(select(apart, steps=own["row"].to_list()), None).frame
        flops = int(counted["flops"].sum())
        both = counted.drop_nulls("bytes")
        moved = int(both["bytes"].sum())
        intensity = int(both["flops"].sum()) / moved if moved else None
        rows.append((phase, flops // own.height if flops else None, intensity))
    schema = {name: _FRAME[name] for name in ("phase", "flops", "arithmetic_intensity")}
    return pl.DataFrame(rows, schema=schema, orient="row")
