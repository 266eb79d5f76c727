"""Collectives by rank: how long each rank waited, and which was late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.communication import with_messages
from traceana.analyze.per_trace import per_trace
from traceana.result import Result, sums

if TYPE_CHECKING:
    from traceana.trace import Trace

_KEYS: Final = ("collective", "message_bytes")
_PARTNER: Final = ("rank", "device")


@per_trace
def by_rank(trace: Trace) -> Result:
    """Return one row per collective, message size, rank and device; empty with one device.

    ``collective``, ``message_bytes``, ``rank``, ``device``
        As in :func:`traceana.analyze.communication.by_message`.
    ``count``, ``time_ns``
        Number and summed durations.
    ``wait_ns``
        Time in which it waited for the last rank: of each occurrence the duration less the shortest
        one over the ranks. No clocks of different ranks are compared. Null where the ranks have
        different numbers of the collective, so that occurrences cannot be matched.
    ``last_count``
        Number of occurrences in which it arrived last: the shortest duration is its own.
    ``others_wait_ns``
        The waits of the other ranks in these occurrences, added up.

    The occurrences of a collective and message size are matched in order of time.
    """
    each = with_messages(trace).filter("carries", pl.col("device").is_not_null())
    each = each.with_columns(pl.col("bytes").alias("message_bytes"))
    of_partner = pl.len().over(*_KEYS, *_PARTNER)
    partners = pl.struct(_PARTNER).n_unique()
    shortest = pl.col("duration").min().over(*_KEYS, "occurrence")
    matched = (pl.col("of").n_unique().over(_KEYS) == 1) & (partners.over(_KEYS) > 1)
    found = (
        each.sort("start", maintain_order=True)
        .with_columns(
            pl.int_range(pl.len()).over(*_KEYS, *_PARTNER).alias("occurrence"),
            of_partner.alias("of"),
        )
        .with_columns(
            pl.when(matched).then(pl.col("duration") - shortest).alias("wait"),
        )
        .with_columns(pl.col("wait").sum().over(*_KEYS, "occurrence").alias("of_all"))
        .group_by(*_KEYS, *_PARTNER)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("duration").sum().alias("time_ns"),
            pl.when(pl.col("wait").null_count() == 0).then(pl.col("wait").sum()).alias("wait_ns"),
            pl.when(pl.col("wait").null_count() == 0)
            .then((pl.col("wait") == 0).sum().cast(pl.Int64))
            .alias("last_count"),
            pl.when(pl.col("wait").null_count() == 0)
            .then(pl.col("of_all").filter(pl.col("wait") == 0).sum())
            .alias("others_wait_ns"),
        )
    )
    if found.select(partners).item() < 2:
        return Result(found.clear(), {}, ())
    time = pl.col("time_ns").sum().over(_KEYS)
    frame = found.sort(time, *_KEYS, *_PARTNER, descending=[True, *[False] * 4], nulls_last=True)
    unmatched = int(frame.filter(pl.col("wait_ns").is_null())["count"].sum())
    notes = ["wait: duration less the shortest of the occurrence over the ranks, which is the last"]
    if unmatched:
        notes.append(f"wait unknown: {unmatched:,} collectives, numbers differ between the ranks")
    summed = ("count", "time_ns", "wait_ns", "last_count", "others_wait_ns")
    return Result(frame, sums(frame, *summed), tuple(notes))
