"""Copies by direction and by the kind of host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceana.analyze.result import Result, sums, with_share
from traceana.analyze.work import work

if TYPE_CHECKING:
    from traceana.trace import Trace


def transfers(trace: Trace) -> Result:
    """Return one row a direction and kind of host memory.

    Columns: ``direction`` (CUPTI's copy kind), ``host_memory`` (null for copies that do not touch
    the host), ``count``, ``bytes`` and ``mean_bytes`` (null where the format tells none),
    ``time_ns``, ``share`` of all copies' time, ``bytes_per_s`` (all bytes over the summed time).
    """
    copies = work(trace).filter(pl.col("kind") == "memcpy")
    direction = pl.col("copy_kind").cast(pl.String).fill_null("unknown")
    host_memory = (
        pl.when(direction.is_in(["h2d", "h2a", "h2h"]))
        .then(pl.col("source_memory").cast(pl.String).fill_null("unknown"))
        .when(direction.is_in(["d2h", "a2h"]))
        .then(pl.col("destination_memory").cast(pl.String).fill_null("unknown"))
    )
    frame = (
        copies.group_by(direction.alias("direction"), host_memory.alias("host_memory"))
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            _all_or_null(pl.col("bytes")).alias("bytes"),
            pl.col("duration").sum().alias("time_ns"),
        )
        .with_columns(
            (pl.col("bytes") // pl.col("count")).alias("mean_bytes"),
            pl.when(pl.col("time_ns") > 0)
            .then(pl.col("bytes") * 1e9 / pl.col("time_ns"))
            .alias("bytes_per_s"),
        )
        .sort(["time_ns", "direction", "host_memory"], descending=[True, False, False])
    )
    frame = with_share(frame).select(
        "direction",
        "host_memory",
        "count",
        "bytes",
        "mean_bytes",
        "time_ns",
        "share",
        "bytes_per_s",
    )
    return Result(frame, sums(frame, "count", "time_ns"), _notes(frame))


def _all_or_null(column: pl.Expr) -> pl.Expr:
    # A sum over some of the copies would read as the sum over all.
    return pl.when(column.is_not_null().all()).then(column.sum())


def _notes(frame: pl.DataFrame) -> tuple[str, ...]:
    if frame.is_empty():
        return ("no copies in the trace or in what was selected of it",)
    if frame["bytes"].null_count():
        return ("the format does not tell the bytes of every copy: no bytes where one is missing",)
    return ()
