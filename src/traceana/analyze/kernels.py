"""One row a distinct kernel: how often, how long, what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceana.analyze.classes import described
from traceana.analyze.result import Result, sums, with_share
from traceana.analyze.work import kernels_of, why_no_work
from traceana.classify.schema import CLASS_COLUMNS

if TYPE_CHECKING:
    from traceana.trace import Trace


def kernels(trace: Trace, *, unclassified: bool = False) -> Result:
    """Return one row a distinct kernel (a leaf operator, in a trace of the CPU) and class.

    A name whose launches are of several classes, as their contexts tell, has a row for each.

    Columns: ``name``, ``calls``, ``time_ns``, ``share`` of all kernels' time, ``mean_ns`` (rounded
    down), ``median_ns``, ``min_ns``, ``max_ns``, then the class columns of the taxonomy, ``rule``
    (that decided by the name) and ``context_rule`` (that refined it; null where none did). Most
    time first; equal times by name. ``unclassified`` leaves those of category ``other`` alone;
    their shares stay those of all kernels' time.
    """
    duration = pl.col("duration")
    by_name = (
        kernels_of(trace)
        .group_by("name_id", "class")
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            duration.sum().alias("time_ns"),
            (duration.sum() // pl.len()).cast(pl.Int64).alias("mean_ns"),
            duration.median().floor().cast(pl.Int64).alias("median_ns"),
            duration.min().alias("min_ns"),
            duration.max().alias("max_ns"),
        )
    )
    frame = with_share(described(by_name, trace)).sort(
        ["time_ns", "name", "class"], descending=[True, False, False]
    )
    notes = _notes(trace, frame)
    if unclassified and frame.height:
        frame = frame.filter(pl.col("category") == "other")
        notes += () if frame.height else ("every kernel is classified",)
    columns = ["name", "calls", "time_ns", "share", "mean_ns", "median_ns", "min_ns", "max_ns"]
    return Result(
        frame.select(*columns, *CLASS_COLUMNS, "rule", "context_rule"),
        sums(frame, "calls", "time_ns"),
        notes,
    )


def _notes(trace: Trace, frame: pl.DataFrame) -> tuple[str, ...]:
    other = trace.activities.filter(pl.col("kind").is_in(["memcpy", "memset"]))
    if not other.height:
        return (why_no_work(trace),) if frame.is_empty() else ()
    return (f"copies and memory sets are work and no kernels: {other.height:,} not counted here",)
