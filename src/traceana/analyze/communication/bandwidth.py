"""Collectives by what they are and their message: time, and bandwidth as NCCL's tests define it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.communication.table import beside_collectives, collectives
from traceana.analyze.transfers.exposed import exposed
from traceana.analyze.work import why_no_work
from traceana.result import Result, sums, with_share

if TYPE_CHECKING:
    from traceana.trace import Trace

_KEYS: Final = ("collective", "message_bytes", "ranks")

_SHARED: Final = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_ONCE: Final = ("broadcast", "reduce", "send_recv")


def by_message(trace: Trace) -> Result:
    """Return one row a collective, message size and number of ranks, most time first.

    ``collective``
        ``all_reduce``, ``all_gather``, …; null where neither arguments nor names tell it.
    ``message_bytes``
        NCCL tests' size: what a rank gives, of an all-gather what it gets. Null where it is not
        recorded.
    ``ranks``
        How many take part.
    ``count``, ``bytes``, ``time_ns``, ``mean_ns`` (rounded down), ``share``
        Number, what a rank gives to all of them, summed durations and their part of those of all
        collectives. A collective also lasts while it waits for other ranks.
    ``exposed_ns``
        Time in which one of the row ran and nothing but collectives on its device. Collectives that
        overlap count once within their row, and once in the total.
    ``algbw_bytes_per_s``
        Algorithm bandwidth: message size over time.
    ``busbw_bytes_per_s``
        Bus bandwidth: that times 2 (n - 1) / n of an all-reduce, (n - 1) / n of an all-gather,
        reduce-scatter, all-to-all, gather and scatter, 1 of a broadcast, reduce and send-receive,
        of n ranks. Null where n is not known, or not above 1.
    """
    found = collectives(trace).filter("carries")
    ranks, size = pl.col("ranks"), pl.col("bytes")
    each = found.with_columns(
        pl.when(pl.col("collective") == "all_gather")
        .then(size * ranks)
        .otherwise(size)
        .alias("message_bytes")
    )
    rows = each.group_by(_KEYS).agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.when(size.is_not_null().all()).then(size.sum()),
        pl.col("duration").sum().alias("time_ns"),
    )
    time, message = pl.col("time_ns"), pl.col("message_bytes")
    shared = (ranks - 1) / ranks
    factor = (
        pl.when(ranks < 2)
        .then(None)
        .when(pl.col("collective") == "all_reduce")
        .then(2 * shared)
        .when(pl.col("collective").is_in(_SHARED))
        .then(shared)
        .when(pl.col("collective").is_in(_ONCE) & ranks.is_not_null())
        .then(1.0)
    )
    beside = beside_collectives(trace)
    frame = (
        with_share(rows)
        .join(exposed(each, beside, _KEYS), on=_KEYS, how="left", nulls_equal=True)
        .with_columns(
            (time // pl.col("count")).alias("mean_ns"),
            pl.when(time > 0)
            .then(message * pl.col("count") * 1e9 / time)
            .alias("algbw_bytes_per_s"),
        )
        .with_columns((pl.col("algbw_bytes_per_s") * factor).alias("busbw_bytes_per_s"))
        .sort("time_ns", *_KEYS, descending=[True, False, False, False], nulls_last=True)
        .select(
            *_KEYS, "count", "bytes", "time_ns", "mean_ns", "share", "exposed_ns",
            "algbw_bytes_per_s", "busbw_bytes_per_s",
        )
    )  # fmt: skip
    together = exposed(each, beside, ())["exposed_ns"].sum()
    totals = {**sums(frame, "count", "time_ns"), "exposed_ns": int(together)}
    return Result(frame, totals, _notes(trace, frame))


def _notes(trace: Trace, frame: pl.DataFrame) -> tuple[str, ...]:
    if trace.activities.is_empty():
        return (why_no_work(trace),)
    if frame.is_empty():
        return ("no communication: no collective ran",)
    unknown = int(frame.filter(pl.col("ranks").is_null())["count"].sum())
    unsized = int(frame.filter(pl.col("message_bytes").is_null())["count"].sum())
    return (
        "time includes the wait for other ranks; algbw = size / time, busbw as of NCCL tests",
        *([f"message size not recorded: {unsized:,} collectives"] if unsized else []),
        *([f"group size not recorded: {unknown:,} collectives, no busbw"] if unknown else []),
    )
