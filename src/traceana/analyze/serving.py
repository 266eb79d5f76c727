"""Time of a server's iterations by phase (prefill, decode, mixed), and how idle its GPUs are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.charges import charges
from traceana.enrich.serving import iterations
from traceana.enrich.steps import SET_BY_PROGRAM
from traceana.result import Result, nothing
from traceana.table import (
    COUNT,
    FLOPS,
    INTENSITY,
    MEAN,
    TEXT,
    TIME,
    Column,
    aggregated,
    conformed,
    laid_out,
)
from traceana.timeline.idle import idle_time
from traceana.timeline.idle_gaps import within
from traceana.timeline.steps import device_windows, is_server, select, steps
from traceana.trace import per_trace

if TYPE_CHECKING:
    from traceana.trace import Trace

_TOKENS, _WALL = pl.col("tokens"), pl.col("wall_ns")
_COUNTED: Final = _TOKENS.null_count() == 0
COLUMNS: Final = laid_out(
    (
        Column("phase", TEXT, "prefill, decode or mixed", title="Phases, means per iteration"),
        Column("iterations", COUNT, "number of its iterations", pl.len()),
        Column("requests", MEAN, "mean number of requests", pl.col("requests").mean()),
        Column(
            "tokens",
            MEAN,
            "mean number of tokens; null where a text has none",
            pl.when(_COUNTED).then(_TOKENS.mean()),
        ),
        Column(
            "wall_ns",
            TIME,
            "mean of the iteration's time, as of `steps`",
            _WALL.mean(),
            title="time",
        ),
        Column("host_ns", TIME, "mean of its range on the host", pl.col("host_ns").mean()),
        Column(
            "work_ns",
            TIME,
            "mean of the summed durations of the work that it launched, whenever it ran",
            pl.col("work_ns").mean(),
            title="work",
        ),
        Column(
            "tokens_per_s",
            MEAN,
            "all tokens over the time of all iterations (`wall_ns`)",
            pl.when(_COUNTED & (_WALL.sum() > 0)).then(1e9 * _TOKENS.sum() / _WALL.sum()),
            title="tokens/s",
        ),
        Column(
            "flops",
            FLOPS,
            "mean of what has a FLOP count; null where nothing has",
            title="counted",
            scale="FLOPs",
        ),
        Column(
            "arithmetic_intensity", INTENSITY, "FLOPs per compulsory byte of what has both counts"
        ),
        Column(
            "idle_ns",
            TIME,
            "mean idle time of a device; null without device work",
            pl.col("idle_ns").mean(),
            title="idle",
        ),
        Column("idle_cause", TEXT, "cause of most idle time", title="mostly"),
    ),
    hidden="host_ns",
    dropped="requests work_ns arithmetic_intensity flops idle_cause",
)
"""The columns of :func:`phases`."""

_PROCESS: Final = ("rank", "process")
"""Ranks in containers have the same process id."""


@per_trace
def phases(trace: Trace) -> Result:
    """Return one row per phase of a server's iterations, most time first.

    The columns are :data:`COLUMNS`.
    """
    if not is_server(trace):
        return nothing(COLUMNS, "the steps are not iterations of a server")
    marks = trace.tables.ranges.filter(pl.col("kind").is_in([*SET_BY_PROGRAM, "step"])).select(
        *_PROCESS, "start", pl.col("text").cast(pl.String)
    )
    described = pl.DataFrame(
        [
            (text, iteration.phase, iteration.requests, iteration.tokens)
            for text, iteration in iterations(marks["text"]).items()
        ],
        schema={"text": pl.String, "phase": pl.String, "requests": pl.Int64, "tokens": pl.Int64},
        orient="row",
    )
    key = [*_PROCESS, "start"]
    marks = marks.join(described, on="text").unique(key, keep="first")
    in_order = trace.tables.steps.with_row_index("row").sort("start", "row").select("row", *key)
    each = pl.concat([in_order, steps(trace).frame.drop("process")], how="horizontal")
    each = each.join(marks, on=key, how="inner", nulls_equal=True)
    windows = device_windows(trace).rename({"step": "row"})
    gaps = idle_time(trace).gaps
    inside = within(gaps, windows)
    parts = windows.select("row")[inside["window"]].with_columns(
        gaps["cause"].gather(inside["gap"]).cast(pl.String), inside["time_ns"]
    )
    # The mean of the devices of an iteration.
    idle = (
        windows.group_by("row")
        .agg(pl.len().alias("devices"))
        .join(parts.group_by("row").agg(pl.col("time_ns").sum()), on="row", how="left")
        .select("row", idle_ns=pl.col("time_ns").fill_null(0) // pl.col("devices"))
    )
    each = each.join(idle, on="row", how="left")
    main_cause = (
        parts.join(each.select("row", "phase"), on="row")
        .group_by("phase", "cause")
        .agg(pl.col("time_ns").sum())
        .sort(["time_ns", "cause"], descending=[True, False])
        .group_by("phase")
        .agg(pl.col("cause").first().alias("idle_cause"))
    )
    frame = (
        aggregated(each, ["phase"], COLUMNS)
        .join(each.group_by("phase").agg(_WALL.sum().alias("total_ns")), on="phase")
        .join(main_cause, on="phase", how="left")
        .join(_flops(trace, each), on="phase", how="left")
        .sort(["total_ns", "phase"], descending=[True, False])
    )
    return Result(conformed(frame, COLUMNS), columns=COLUMNS)


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
        phase_steps = each.filter(pl.col("phase") == phase)
        counted = charges(select(apart, steps=phase_steps["row"].to_list()), None).frame
        flops = int(counted["flops"].sum())
        both = counted.drop_nulls("bytes")
        moved = int(both["bytes"].sum())
        intensity = int(both["flops"].sum()) / moved if moved else None
        rows.append((phase, flops // phase_steps.height if flops else None, intensity))
    schema = {"phase": pl.String, "flops": pl.Int64, "arithmetic_intensity": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")
