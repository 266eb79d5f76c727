"""Process groups of a job: what they communicate, which parallelism they are of, the bubbles of a
pipeline and the balance of experts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec
import polars as pl

from traceana.analyze.collective_ranks import Matched
from traceana.analyze.communication import bus_factor
from traceana.readers.ranks import spans

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


def groups(
    collectives: pl.DataFrame, matched: Matched, hosts: Mapping[int, str | None]
) -> pl.DataFrame:
    """Return one row per process group, and per size of groups that are not recorded, most time
    first. ``hosts`` are those of the ranks.

    ``group``, ``description``, ``kind``, ``group_size``
        Its name, description, parallelism by the description (:func:`kind_of`), number of ranks.
    ``members``, ``ranks``
        Its ranks, as recorded (``0-3, 8``), null where not in full; how many of them were read.
    ``link``
        What its bytes move over: ``within a host``, or ``between hosts`` if its ranks that were
        read have several; null where the host of one is not recorded.
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
        pl.col("rank").unique().alias("of_ranks"),
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
        .with_columns(pl.col("group_name", "group_ranks", "description").cast(pl.String))
        .sort("time_ns", *keys, descending=[True, False, False, False], nulls_last=True)
        .with_columns(
            pl.col("matched").fill_null(0),
            pl.when(paired > 0).then(pl.col("together") / paired).alias("confidence"),
        )
    )
    members = [
        None if text is None else spans(sorted(_ranks_of(text))) for text in rows["group_ranks"]
    ]
    kinds = [kind_of(description) for description in rows["description"]]
    links: list[str | None] = []
    for ranks in rows["of_ranks"]:
        used = {hosts.get(rank) for rank in ranks}
        link = "within a host" if len(used) == 1 else "between hosts"
        links.append(None if None in used or not used else link)
    return rows.with_columns(
        pl.Series("members", members, dtype=pl.String),
        pl.Series("kind", kinds, dtype=pl.String),
        pl.Series("link", links, dtype=pl.String),
        pl.col("of_ranks").list.len().cast(pl.Int64).alias("ranks"),
    ).select(
        pl.col("group_name").alias("group"),
        *("description", "kind", "group_size", "members", "ranks", "link"),
        *("count", "bytes", "time_ns"),
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


def pipeline(steps: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the bubbles of each rank that sends or receives, in order of ``group`` and ``stage``.

    ``group``, ``members``, ``stage``
        Its group of kind PP: name, ranks and the rank's place among them; null where not known.
    ``steps``, ``wall_ns``, ``bubble_ns``, ``bubble_share``
        Of its measured steps: number, summed wall time, summed time of its devices without other
        work than sends and receives, and the share of the latter in the wall time, for one device.

    ``steps`` and ``collectives`` have ``rank`` and the columns of a summary's tables.
    """
    columns = ("rank", "group_name", "description", "group_ranks")
    text = pl.col("group_name", "description", "group_ranks").cast(pl.String)
    used = collectives.select(columns).unique().with_columns(text).sort(columns)
    stages = [
        (rank, name, spans(sorted(members)), members.index(rank))
        for rank, name, description, listed in used.rows()
        if kind_of(description) == "PP" and rank in (members := _ranks_of(listed))
    ]
    known = pl.DataFrame(
        stages,
        schema={"rank": pl.Int64, "group": pl.String, "members": pl.String, "stage": pl.Int64},
        orient="row",
    ).unique("rank", keep="none")
    bubble, wall = pl.col("bubble_ns"), pl.col("wall_ns")
    return (
        steps.filter(~pl.col("warm_up"), bubble.is_not_null())
        .group_by("rank")
        .agg(pl.len().cast(pl.Int64).alias("steps"), wall.sum(), bubble.sum())
        .with_columns(pl.when(wall > 0).then(bubble / wall).alias("bubble_share"))
        .join(known, on="rank", how="left")
        .select(
            *("rank", "group", "members", "stage", "steps", "wall_ns", "bubble_ns"),
            "bubble_share",
        )
        .sort("members", "stage", "rank", nulls_last=True)
    )


def experts(collectives: pl.DataFrame) -> pl.DataFrame:
    """Return how much each rank of the groups of kind EP gets from their all-to-alls.

    ``group``, ``members``, ``rank``
        Name and ranks of the group, and the rank.
    ``count``, ``input_bytes``, ``output_bytes``
        Its all-to-alls, and what it passes to them and gets from them.
    ``expert_bytes``, ``imbalance``
        What its experts process: input and output less the mean input of the group's ranks; and
        over the group's mean. An all-to-all to the experts has the rank's own tokens as input and
        those of its experts as output, the one back the other way round; the rank's own are taken
        to be as many on all ranks.

    Groups that lack a rank or a size have no rows.
    """
    keys = ["group_name", "group_ranks"]
    described = collectives["description"].unique().to_list()
    of_experts = [one for one in described if kind_of(one) == "EP"]
    sizes = pl.col("bytes", "output_bytes")
    rows = (
        collectives.filter(
            pl.col("description").cast(pl.String).is_in(of_experts),
            pl.col("collective") == "all_to_all",
            pl.col("group_ranks").is_not_null(),
        )
        .group_by(*keys, "group_size", "rank")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.when(sizes.is_not_null().all()).then(sizes.sum()),
        )
        .with_columns(pl.col(keys).cast(pl.String))
        .rename({"bytes": "input_bytes"})
    )
    complete = (pl.len() == pl.col("group_size").first()) & (pl.col("count").n_unique() == 1)
    complete &= pl.col("input_bytes").null_count() + pl.col("output_bytes").null_count() == 0
    mean = pl.col("input_bytes").mean().over(keys)
    processed = pl.col("input_bytes") + pl.col("output_bytes") - mean
    found = (
        rows.filter(complete.over(keys))
        .with_columns(processed.round().cast(pl.Int64).alias("expert_bytes"))
        .with_columns(pl.col("expert_bytes").mean().over(keys).alias("mean"))
    )
    members = [spans(sorted(_ranks_of(text))) for text in found["group_ranks"]]
    return (
        found.with_columns(
            pl.Series("members", members, dtype=pl.String),
            pl.when(pl.col("mean") > 0)
            .then(pl.col("expert_bytes") / pl.col("mean"))
            .alias("imbalance"),
        )
        .select(
            pl.col("group_name").alias("group"),
            *("members", "rank", "count", "input_bytes", "output_bytes", "expert_bytes"),
            "imbalance",
        )
        .sort("imbalance", "members", "rank", descending=[True, False, False], nulls_last=True)
    )


def _ranks_of(text: str | None) -> list[int]:
    return msgspec.json.decode(text, type=list[int]) if text else []
