"""Process groups of a job: what they communicate, and which parallelism they are of."""

from __future__ import annotations

import re
from typing import Final

import msgspec
import polars as pl

from traceana.analyze.collective_ranks import Matched
from traceana.analyze.communication import bus_factor
from traceana.ingest.ranks import spans

_KINDS: Final = (
    # Megatron's expert groups are also named after the parallelism inside the experts.
    ("EP", r"expert|(?<![a-z])ep(?![a-z])"),
    ("TP", r"tensor|(?<![a-z])tp(?![a-z])"),
    ("PP", r"pipeline|(?<![a-z])pp(?![a-z])"),
    ("CP", r"context|(?<![a-z])cp(?![a-z])"),
    ("DP", r"data|fsdp|(?<![a-z])dp(?![a-z])"),
)
"""Parallelism -> pattern of descriptions, in lower case."""
_JOINED: Final = "DP"
"""Data parallelism over several dimensions: "DATA_PARALLEL_GROUP_WITH_CP", "mesh_dp_shard_cp"."""


def kind_of(description: str | None) -> str | None:
    """Return the parallelism that a group's ``description`` names: TP, PP, DP, CP or EP.

    None where it names none, or several other than data parallelism with another dimension.
    """
    text = (description or "").lower()
    found = [kind for kind, pattern in _KINDS if re.search(pattern, text)]
    if len(found) == 1:
        return found[0]
    return _JOINED if set(found) == {"CP", "DP"} else None


def groups(collectives: pl.DataFrame, matched: Matched) -> pl.DataFrame:
    """Return one row per process group, and per size of groups that are not recorded, most time
    first.

    ``group``, ``description``, ``kind``, ``group_size``
        Its name, description, parallelism by the description (:func:`kind_of`), number of ranks.
    ``members``, ``ranks``
        Its ranks, as recorded (``0-3, 8``), null where not in full; how many of them were read.
    ``count``, ``bytes``, ``time_ns``
        Collectives, sends and receives of all its ranks; their input, null where the size of one
        is not recorded; their summed durations.
    ``matched``, ``matched_by``, ``confidence``
        How many of them were matched across the ranks; by what, null where by several; and of those
        that all ranks have the share that ends on all of them at about one time.
    ``wait_ns``, ``transfer_ns``
        Of the matched ones: waits for the last to arrive, and the rest of the time.
    ``algbw_bytes_per_s``, ``busbw_bytes_per_s``
        Of the matched ones without waiting: message size as the NCCL tests define it, over the
        shortest duration; times their factor of the bus bandwidth. Null where a size is unknown.
    """
    keys = ["group_name", "group_ranks", "group_size"]
    size = pl.col("bytes")
    of_all = collectives.group_by(keys).agg(
        pl.col("description").drop_nulls().first(),
        pl.col("rank").n_unique().cast(pl.Int64).alias("ranks"),
        pl.len().cast(pl.Int64).alias("count"),
        pl.when(size.is_not_null().all()).then(size.sum()),
        pl.col("time_ns").sum(),
    )
    found = matched.each.group_by("group").agg(
        pl.len().cast(pl.Int64).alias("matched"),
        pl.when(pl.col("by").n_unique() == 1).then(pl.col("by").first()).alias("matched_by"),
        pl.col("wait_ns").sum(),
        (pl.col("time_ns") - pl.col("wait_ns")).sum().alias("transfer_ns"),
    )
    paired = pl.col("paired")
    rows = (
        of_all.join(matched.groups, on=keys, how="left", nulls_equal=True)
        .join(found, on="group", how="left")
        .join(bandwidths(matched, ["group"]), on="group", how="left")
        .sort("time_ns", *keys, descending=[True, False, False, False], nulls_last=True)
        .with_columns(
            pl.col("matched").fill_null(0),
            pl.when(paired > 0).then(pl.col("together") / paired).alias("confidence"),
        )
    )
    members = [
        None if text is None else spans(sorted(msgspec.json.decode(text, type=list[int])))
        for text in rows["group_ranks"]
    ]
    kinds = [kind_of(description) for description in rows["description"]]
    return rows.with_columns(
        pl.Series("members", members, dtype=pl.String), pl.Series("kind", kinds, dtype=pl.String)
    ).select(
        pl.col("group_name").alias("group"),
        *("description", "kind", "group_size", "members", "ranks", "count", "bytes", "time_ns"),
        *("matched", "matched_by", "confidence", "wait_ns", "transfer_ns"),
        *("algbw_bytes_per_s", "busbw_bytes_per_s"),
    )


def bandwidths(matched: Matched, keys: list[str]) -> pl.DataFrame:
    """Return ``algbw_bytes_per_s`` and ``busbw_bytes_per_s`` of the matched collectives by ``keys``
    of them, without waiting."""
    each = matched.each.group_by("occurrence").agg(
        *(pl.col(name).first() for name in sorted({*keys, "collective", "group_size"})),
        # Of an all-to-all the ranks' sizes differ.
        pl.when(pl.col("size_bytes").is_not_null().all())
        .then(pl.col("size_bytes").mean())
        .alias("size"),
        pl.col("time_ns").min().alias("shortest"),
    )
    ranks = pl.when(pl.col("collective") == "send_recv").then(2).otherwise("group_size")
    moved = pl.col("size") * bus_factor(ranks)
    time = pl.col("shortest").sum()
    return (
        each.with_columns(moved.alias("moved"))
        .group_by(keys)
        .agg(
            pl.when((time > 0) & pl.col(name).is_not_null().all())
            .then(pl.col(name).sum() * 1e9 / time)
            .alias(title)
            for name, title in (("size", "algbw_bytes_per_s"), ("moved", "busbw_bytes_per_s"))
        )
    )
