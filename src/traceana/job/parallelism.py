"""Process groups of a job: their communication and parallelism, the bubbles of a pipeline and the
balance of experts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec
import polars as pl
from msgspec.structs import replace

from traceana.analyze.collective_ranks import Matched
from traceana.analyze.communication import bus_factor
from traceana.job.skew import WAIT_SHARES, wait_bounds
from traceana.readers.ranks import spans
from traceana.table import (
    BYTES,
    COUNT,
    NUMBER,
    RATE,
    RATIO,
    SHARE,
    TEXT,
    TIME,
    Column,
    aggregated,
    by_name,
    completed,
    conformed,
    laid_out,
    one_or_null,
    whole_sum,
)

BANDWIDTHS: Final = (
    Column(
        "algbw_bytes_per_s",
        RATE,
        "algorithm bandwidth of the matched ones without waiting: message size as the NCCL tests "
        "define it, over the shortest duration; null where a size is unknown",
        title="algbw",
    ),
    Column(
        "busbw_bytes_per_s",
        RATE,
        "that times the factor of the bus bandwidth",
        title="busbw",
    ),
)
_MATCHED: Final = (
    Column("matched", COUNT, "how many of them were matched across the ranks", pl.len()),
    Column("matched_by", TEXT, "by what; null where by several", one_or_null("by")),
    Column(
        "wait_ns",
        TIME,
        "of the matched ones: waits for the last to arrive",
        pl.col("wait_ns").sum(),
    ),
    Column(
        "transfer_ns",
        TIME,
        "of the matched ones: the rest of the time",
        (pl.col("time_ns") - pl.col("wait_ns")).sum(),
    ),
    *(column for column in WAIT_SHARES if column.aggregate is not None),
)
GROUPS: Final = (
    Column("group", TEXT, "name of the process group; null for groups that are not recorded"),
    Column(
        "description",
        TEXT,
        "its description, as recorded",
        pl.col("description").drop_nulls().first(),
    ),
    Column(
        "kind",
        TEXT,
        "the parallelism that the description names: `TP`, `PP`, `DP`, `CP`, `EP`; else null",
    ),
    Column("group_size", COUNT, "number of its ranks"),
    Column("members", TEXT, "its ranks (`0-3, 8`); null where they are not recorded in full"),
    Column("ranks", COUNT, "how many of its ranks were read"),
    Column(
        "link",
        TEXT,
        "what its bytes move over: `within a host`, or `between hosts` if its ranks that were "
        "read have several; null where the host of one is not recorded",
    ),
    Column(
        "count",
        COUNT,
        "collectives, sends and receives of all its ranks",
        pl.len(),
    ),
    Column(
        "bytes",
        BYTES,
        "their input; null where the size of one is not recorded",
        whole_sum("bytes"),
    ),
    Column("time_ns", TIME, "their summed durations", pl.col("time_ns").sum()),
    *_MATCHED[:2],
    Column(
        "confidence",
        SHARE,
        "of the collectives that all ranks have, the share that ends on all of them at about one "
        "time",
        value=pl.when(pl.col("paired") > 0).then(pl.col("together") / pl.col("paired")),
    ),
    *_MATCHED[2:4],
    *WAIT_SHARES,
    *BANDWIDTHS,
)
_OF_ALL: Final = tuple(column for column in GROUPS if column not in _MATCHED)
_OF_GROUP: Final = by_name(GROUPS)


def _mean_share(name: str) -> pl.Expr:
    """Return the mean of a share over the groups, by the time of their matched collectives."""
    time = pl.col("wait_ns") + pl.col("transfer_ns")
    return pl.when(time.sum() > 0).then((pl.col(name) * time).sum() / time.sum())


BY_DESCRIPTION: Final = laid_out(
    (
        *(_OF_GROUP[name] for name in ("kind", "description", "group_size", "link")),
        Column("groups", COUNT, "process groups", pl.len()),
        *(replace(_OF_GROUP[name], aggregate=pl.col(name).sum()) for name in ("count", "matched")),
        _OF_GROUP["bytes"],
        *(
            replace(_OF_GROUP[name], aggregate=pl.col(name).sum())
            for name in ("time_ns", "wait_ns", "transfer_ns")
        ),
        *(
            replace(column, aggregate=_mean_share(column.name))
            if column.aggregate is not None
            else column
            for column in WAIT_SHARES
        ),
        replace(
            _OF_GROUP["busbw_bytes_per_s"],
            aggregate=pl.col("busbw_bytes_per_s").median(),
        ),
    ),
    hidden="transfer_ns",
    dropped="link matched bytes wait_verdict wait_share_low wait_share_high groups kind",
    titles={
        **{"kind": "parallelism", "description": "process group", "group_size": "ranks"},
        **{"count": "collectives", "wait_ns": "waiting", "busbw_bytes_per_s": "median busbw"},
    },
)
"""The process groups of one description and size together."""
_MEMBERS: Final = Column("members", TEXT, "the ranks of the group (`0-3, 8`)")
PIPELINE: Final = (
    Column("rank", NUMBER, "the rank"),
    Column("group", TEXT, "name of its group of kind PP; null where it is not known"),
    _MEMBERS,
    Column("stage", NUMBER, "position of the rank among these"),
    Column("steps", COUNT, "its measured steps", pl.len()),
    Column("wall_ns", TIME, "their wall time", pl.col("wall_ns").sum()),
    Column(
        "bubble_ns",
        TIME,
        "time in them in which its devices run no other work than sends and receives",
        pl.col("bubble_ns").sum(),
    ),
    Column(
        "bubble_share",
        SHARE,
        "`bubble_ns` over `wall_ns`, for one device",
        value=pl.when(pl.col("wall_ns") > 0).then(pl.col("bubble_ns") / pl.col("wall_ns")),
    ),
)
EXPERTS: Final = (
    Column("group", TEXT, "name of the group of kind EP"),
    _MEMBERS,
    Column("rank", NUMBER, "the rank"),
    Column("count", COUNT, "its all-to-alls", pl.len()),
    Column("input_bytes", BYTES, "bytes that it passes to them", whole_sum("bytes")),
    Column("output_bytes", BYTES, "bytes that it gets from them", whole_sum("output_bytes")),
    Column(
        "expert_bytes",
        BYTES,
        "bytes that its experts process: input and output less the mean input of the group's ranks",
    ),
    Column(
        "imbalance",
        RATIO,
        "`expert_bytes` over the mean of the group",
        value=pl.when(pl.col("mean") > 0).then(pl.col("expert_bytes") / pl.col("mean")),
    ),
)

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
    kinds = [kind for kind, pattern in _KINDS if re.search(pattern, text)]
    if len(kinds) == 1:
        return kinds[0]
    return _JOINED if set(kinds) == {"CP", "DP"} else None


def groups(
    collectives: pl.DataFrame, matched: Matched, hosts: Mapping[int, str | None]
) -> pl.DataFrame:
    """Return one row per process group, and per size of groups that are not recorded, most time
    first. ``hosts`` are the hosts of the ranks. The columns are :data:`GROUPS`.
    """
    keys = ["group_name", "group_ranks", "group_size"]
    of_ranks = collectives.group_by(keys).agg(pl.col("rank").unique().alias("of_ranks"))
    rows = (
        aggregated(collectives, keys, _OF_ALL)
        .join(of_ranks, on=keys, how="left", nulls_equal=True)
        .join(matched.groups, on=keys, how="left", nulls_equal=True)
        .join(aggregated(wait_bounds(matched), ["group"], _MATCHED), on="group", how="left")
        .join(bandwidths(matched, ["group"]), on="group", how="left")
        .with_columns(pl.col("group_name", "group_ranks", "description").cast(pl.String))
        .sort("time_ns", *keys, descending=[True, False, False, False], nulls_last=True)
        .with_columns(pl.col("matched").fill_null(0))
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
    rows = rows.with_columns(
        pl.Series("members", members, dtype=pl.String),
        pl.Series("kind", kinds, dtype=pl.String),
        pl.Series("link", links, dtype=pl.String),
        pl.col("of_ranks").list.len().alias("ranks"),
        pl.col("group_name").alias("group"),
    )
    return conformed(completed(rows, GROUPS), GROUPS)


def bandwidths(matched: Matched, keys: list[str]) -> pl.DataFrame:
    """Return the columns :data:`BANDWIDTHS` of the matched collectives by ``keys`` of them."""
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
            .alias(column.name)
            for name, column in zip(("size", "moved"), BANDWIDTHS, strict=True)
        )
    )


def pipeline(steps: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the bubbles of each rank that sends or receives, in order of ``group`` and ``stage``.

    The columns are :data:`PIPELINE`. ``steps`` and ``collectives`` have ``rank`` and the columns of
    a summary's tables.
    """
    columns = ("rank", "group_name", "description", "group_ranks")
    text = pl.col("group_name", "description", "group_ranks").cast(pl.String)
    used = collectives.select(columns).unique().with_columns(text).sort(columns)
    stages = [
        (rank, name, spans(sorted(members)), members.index(rank))
        for rank, name, description, listed in used.rows()
        if kind_of(description) == "PP" and rank in (members := _ranks_of(listed))
    ]
    stage_of_rank = pl.DataFrame(
        stages,
        schema={"rank": pl.Int64, "group": pl.String, "members": pl.String, "stage": pl.Int64},
        orient="row",
    ).unique("rank", keep="none")
    measured = steps.filter(~pl.col("warm_up"), pl.col("bubble_ns").is_not_null())
    rows = aggregated(measured, ["rank"], PIPELINE).join(stage_of_rank, on="rank", how="left")
    rows = conformed(completed(rows, PIPELINE), PIPELINE)
    return rows.sort("members", "stage", "rank", nulls_last=True)


def experts(collectives: pl.DataFrame) -> pl.DataFrame:
    """Return how much each rank of the groups of kind EP gets from their all-to-alls.

    The columns are :data:`EXPERTS`. An all-to-all to the experts has the rank's own tokens as input
    and the tokens of its experts as output; the all-to-all back has them the other way round. All
    ranks are assumed to have as many tokens of their own. Groups that lack a rank or a size have no
    rows.
    """
    keys = ["group_name", "group_ranks"]
    described = collectives["description"].unique().to_list()
    of_experts = [description for description in described if kind_of(description) == "EP"]
    exchanges = collectives.filter(
        pl.col("description").cast(pl.String).is_in(of_experts),
        pl.col("collective") == "all_to_all",
        pl.col("group_ranks").is_not_null(),
    )
    rows = aggregated(exchanges, [*keys, "group_size", "rank"], EXPERTS).with_columns(
        pl.col(keys).cast(pl.String)
    )
    complete = (pl.len() == pl.col("group_size").first()) & (pl.col("count").n_unique() == 1)
    complete &= pl.col("input_bytes").null_count() + pl.col("output_bytes").null_count() == 0
    mean = pl.col("input_bytes").mean().over(keys)
    processed = pl.col("input_bytes") + pl.col("output_bytes") - mean
    frame = (
        rows.filter(complete.over(keys))
        .with_columns(processed.round().cast(pl.Int64).alias("expert_bytes"))
        .with_columns(pl.col("expert_bytes").mean().over(keys).alias("mean"))
    )
    members = [spans(sorted(_ranks_of(text))) for text in frame["group_ranks"]]
    frame = frame.with_columns(
        pl.Series("members", members, dtype=pl.String), pl.col("group_name").alias("group")
    )
    return conformed(completed(frame, EXPERTS), EXPERTS).sort(
        "imbalance", "members", "rank", descending=[True, False, False], nulls_last=True
    )


def _ranks_of(text: str | None) -> list[int]:
    return msgspec.json.decode(text, type=list[int]) if text else []
