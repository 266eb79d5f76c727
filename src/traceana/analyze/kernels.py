"""One row a distinct kernel: how often, how long, what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceana.analyze.result import Result, sums, with_share
from traceana.analyze.work import kernels_of, why_no_work
from traceana.classify.schema import CLASS_COLUMNS

if TYPE_CHECKING:
    from traceana.trace import Trace


def kernels(trace: Trace) -> Result:
    """Return one row a distinct name of a kernel (of a leaf operator, in a trace of the CPU).

    Columns: ``name``, ``calls``, ``time_ns``, ``share`` of all kernels' time, ``mean_ns`` (rounded
    down), ``median_ns``, ``min_ns``, ``max_ns``, then the class columns of the taxonomy and
    ``rule``. Most time first; equal times by name.
    """
    duration = pl.col("duration")
    by_name = (
        kernels_of(trace)
        .group_by("name_id")
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            duration.sum().alias("time_ns"),
            (duration.sum() // pl.len()).cast(pl.Int64).alias("mean_ns"),
            duration.median().floor().cast(pl.Int64).alias("median_ns"),
            duration.min().alias("min_ns"),
            duration.max().alias("max_ns"),
        )
    )
    names = trace.names.with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias("name_id"))
    frame = with_share(by_name.join(names, on="name_id", how="left")).sort(
        ["time_ns", "name"], descending=[True, False]
    )
    columns = ["name", "calls", "time_ns", "share", "mean_ns", "median_ns", "min_ns", "max_ns"]
    return Result(
        frame.select(*columns, *CLASS_COLUMNS, "rule"),
        sums(frame, "calls", "time_ns"),
        _notes(trace, frame),
    )


def _notes(trace: Trace, frame: pl.DataFrame) -> tuple[str, ...]:
    other = trace.activities.filter(pl.col("kind").is_in(["memcpy", "memset"]))
    if not other.height:
        return (why_no_work(trace),) if frame.is_empty() else ()
    return (f"copies and memory sets are work and no kernels: {other.height:,} not counted here",)
