"""Time of a server's iterations by phase: prefill, decode, mixed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.per_trace import per_trace
from traceana.analyze.steps import serves, steps
from traceana.enrich.serving import iterations
from traceana.enrich.steps import SET_BY_PROGRAM
from traceana.result import Result

if TYPE_CHECKING:
    from traceana.trace import Trace

_FRAME: Final = {
    "phase": pl.String,
    "iterations": pl.Int64,
    "requests": pl.Float64,
    "tokens": pl.Float64,
    "wall_ns": pl.Int64,
    "work_ns": pl.Int64,
    "tokens_per_s": pl.Float64,
}


@per_trace
def phases(trace: Trace) -> Result:
    """Return one row per phase of a server's iterations, longest first.

    Columns: ``phase``; ``iterations``; means over them: ``requests``, ``tokens`` (null where a text
    has none), ``wall_ns`` (of the iteration's range on the host), ``work_ns`` (summed durations of
    the work that it launched, whenever it ran); and ``tokens_per_s``, all tokens of the phase over
    the wall time of its iterations.
    """
    if not serves(trace):
        return Result(
            pl.DataFrame(schema=_FRAME), {}, ("the steps are not iterations of a server",)
        )
    marks = trace.ranges.filter(pl.col("kind").is_in([*SET_BY_PROGRAM, "step"])).select(
        "process", pl.col("start").alias("start_ns"), pl.col("text").cast(pl.String)
    )
    described = pl.DataFrame(
        [
            (text, one.phase, one.requests, one.tokens)
            for text, one in iterations(marks["text"]).items()
        ],
        schema={"text": pl.String, "phase": pl.String, "requests": pl.Int64, "tokens": pl.Int64},
        orient="row",
    )
    marks = marks.join(described, on="text").unique(["process", "start_ns"], keep="first")
    each = steps(trace).frame.join(marks, on=["process", "start_ns"], how="inner", nulls_equal=True)
    whole = pl.col("tokens").null_count() == 0
    frame = (
        each.group_by("phase")
        .agg(
            pl.len().cast(pl.Int64).alias("iterations"),
            pl.col("requests").mean(),
            pl.when(whole).then(pl.col("tokens").mean()).alias("tokens"),
            pl.col("wall_ns").mean().cast(pl.Int64),
            pl.col("work_ns").mean().cast(pl.Int64),
            pl.when(whole & (pl.col("wall_ns").sum() > 0))
            .then(1e9 * pl.col("tokens").sum() / pl.col("wall_ns").sum())
            .alias("tokens_per_s"),
            pl.col("wall_ns").sum().alias("_total"),
        )
        .sort(["_total", "phase"], descending=[True, False])
        .select(pl.col(name).cast(kind) for name, kind in _FRAME.items())
    )
    return Result(frame)
