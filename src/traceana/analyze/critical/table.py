"""What the critical path of a step consists of, by class, kernel, layer or operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from traceana.analyze.critical.segments import segments
from traceana.analyze.layers.places import OUTSIDE, places
from traceana.analyze.steps import measured_steps
from traceana.analyze.work import why_no_work, work
from traceana.result import Result, sums, with_share
from traceana.trace.schema import DEVICE_WORK

if TYPE_CHECKING:
    from traceana.trace import Trace

By = Literal["class", "kernel", "layer", "operator", "segment"]
"""What a row is of: a class of segments and a part of it; a kernel, copy, or else a class; a layer;
an operator or annotation; each segment by itself, in order."""

GPU_WORK: Final = ("kernel", "collective", "copy", "memset")
"""Classes of segments in which a device works."""

NO_OPERATOR: Final = "(no operator)"
_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "class": ("class", "part"),
    "kernel": ("name", "class", "part"),
    "layer": ("layer", "class"),
    "operator": ("operator", "class"),
}
_SEGMENT: Final = (
    *("step", "start_ns", "time_ns", "class", "part", "name", "operator", "layer"),
    *("device", "stream", "thread"),
)


def critical(trace: Trace, by: By = "class") -> Result:
    """Return what the critical paths of the measured steps consist of.

    Columns: those of :data:`By`, ``count`` (of segments), ``time_ns`` (their sum over the measured
    steps), ``step_median_ns`` (median over those steps, rounded down; of a trace without steps
    the same), ``share`` of all paths. Most time first. With ``by="segment"`` one row a segment,
    in order, with the columns of :data:`_SEGMENT`: see
    :func:`traceana.analyze.critical.segments.segments`.
    """
    measured = measured_steps(trace)
    path = segments(trace)
    if trace.steps.height:
        path = path.filter(pl.col("step_row").is_in(measured.rows))
    path = path.join(
        places(trace.whole.layers, "layer", None).select("layer_row", "layer"),
        on="layer_row",
        how="left",
        maintain_order="left",
    ).with_columns(pl.col("class").cast(pl.String))
    notes = _notes(trace, path, measured.notes)
    if by == "segment":
        return Result(path.select(_SEGMENT), sums(path, "time_ns"), notes)
    steps = len(measured.rows) or path["step_row"].n_unique() or 1
    frame = _summed(_named(path), list(_KEYS[by]), steps)
    return Result(frame, sums(frame, "count", "time_ns"), notes)


def _named(path: pl.DataFrame) -> pl.DataFrame:
    is_work = pl.col("device").is_not_null() & ~pl.col("class").is_in(["launch", "gap"])
    return path.with_columns(
        pl.col("operator").fill_null(NO_OPERATOR),
        pl.col("layer").fill_null(OUTSIDE),
        pl.when(is_work).then("name").alias("name"),
    )


def _summed(path: pl.DataFrame, keys: list[str], steps: int) -> pl.DataFrame:
    time = pl.col("time_ns")
    # Steps in which there is nothing of a row count as 0: half of them, and the median is 0.
    padded = time.append(pl.lit(0, pl.Int64).repeat_by(steps - pl.len()).explode())
    each = path.group_by(*keys, "step_row").agg(pl.len().alias("count"), time.sum())
    frame = (
        each.group_by(keys)
        .agg(
            pl.col("count").sum().cast(pl.Int64),
            time.sum(),
            padded.drop_nulls().median().floor().cast(pl.Int64).alias("step_median_ns"),
        )
        .sort(["time_ns", *keys], descending=[True, *[False] * len(keys)], nulls_last=True)
    )
    return with_share(frame)


def _notes(trace: Trace, path: pl.DataFrame, of_steps: tuple[str, ...]) -> tuple[str, ...]:
    if path.is_empty():
        return (why_no_work(trace) if work(trace).is_empty() else "no time passes in the trace",)
    if trace.steps.is_empty():
        return (*_gpu_share(trace, path), "no steps: the path is of the whole recording")
    return (
        *_gpu_share(trace, path),
        "a step lasts until its last work is done, from its mark or the end of the step before; "
        "medians of several rows do not add up to that of a step",
        *of_steps,
    )


def _gpu_share(trace: Trace, path: pl.DataFrame) -> tuple[str, ...]:
    """Return the GPU's share of the path, and without what no operator and no call explains.

    The second is what a path from operator to operator has (HolisticTraceAnalysis).
    """
    if not trace.activities["kind"].is_in(DEVICE_WORK).any():
        return ()
    time, what = pl.col("time_ns"), pl.col("class")
    unexplained = (what == "host") & ~pl.col("part").is_in(["call", "operator"]).fill_null(
        value=False
    )
    gpu, whole, recorded = path.select(
        time.filter(what.is_in(GPU_WORK)).sum(),
        time.sum().alias("whole"),
        time.filter(~unexplained).sum().alias("recorded"),
    ).row(0)
    share = f"GPU share of the path {gpu / whole:.1%}"
    if not recorded:
        return (share,)
    return (f"{share}, without host time outside operators and calls {gpu / recorded:.1%}",)
