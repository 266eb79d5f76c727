"""Collectives on which the ranks of a process group disagree: the usual cause of a hang.

All ranks of a process group call the same collectives in the same order, with equal sizes. Where a
rank calls another one, or none, the others wait for it until a timeout ends the job.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.analyze.collective_ranks import BETWEEN_TWO, GROUP, Matched
from traceana.readers.ranks import spans
from traceana.table import BYTES, COUNT, NUMBER, PART, TEXT, Column, conformed

MISSING, OPERATION, ORDER, SIZE, NUMBER_OF = "missing", "operation", "order", "size", "count"
"""Kinds of disagreements."""
_ANY_SIZE: Final = ("all_to_all", "gather", "scatter")
"""Collectives whose sizes differ from rank to rank by design."""

DISAGREEMENTS: Final = (
    Column("group", TEXT, "name of the process group; null for groups that are not recorded"),
    Column("description", TEXT, "its description, as recorded"),
    Column("group_size", COUNT, "number of its ranks"),
    Column(
        "kind",
        TEXT,
        "`missing` (ranks lack the collective), `operation` (they call another one), `order` (the "
        "same ones in another order), `size` (another message size), `count` (another number of "
        "collectives in a step)",
    ),
    Column("count", COUNT, "collectives of this kind, of `count` steps"),
    Column("step", NUMBER, "step of the first one; null outside steps"),
    Column(
        "sequence",
        NUMBER,
        "its sequence number in the group; of a group without them its position in the step, from "
        "0; null of `count`",
    ),
    Column("ranks", TEXT, "the ranks that differ from most (`0-3, 8`)"),
    Column("collective", PART, "what most ranks call; null of `count`"),
    Column("message_bytes", BYTES, "its message size; null of an all-to-all, gather and scatter"),
    Column("calls", COUNT, "how many most ranks call in the step; null but of `count`"),
    Column("other_collective", PART, "what the first rank that differs calls; null where missing"),
    Column("other_bytes", BYTES, "its message size"),
    Column("other_calls", COUNT, "how many it calls in the step; null but of `count`"),
)
"""The columns of :func:`disagreements`."""
_PLACE: Final = ("group", "by", "sequence", "nth")


def disagreements(
    collectives: pl.DataFrame, matched: Matched, compared: pl.DataFrame
) -> pl.DataFrame:
    """Return the first disagreement of each kind and process group, in order of steps.

    ``collectives`` are those that :func:`~traceana.analyze.collective_ranks.match` took, with
    ``description``; ``compared`` has the ``rank`` and ``step`` of the steps of all ranks. With
    sequence numbers the collectives between the last of the first and the first of the last numbers
    are compared: captures of ranks begin and end at other moments. Without, those of a named group
    by their position in a step, and of a group without a name their number in a step: several
    groups of all ranks may share it, in any order. Sends and receives are not compared. The columns
    are :data:`DISAGREEMENTS`.
    """
    groups = matched.groups.filter(pl.col("expected") > 1)
    named = pl.any_horizontal(pl.col("group_name", "group_ranks").is_not_null())
    rows = (
        collectives.join(groups.select(*GROUP, "group", "expected"), on=GROUP, nulls_equal=True)
        .filter(pl.col("collective").is_not_null() & (pl.col("collective") != BETWEEN_TWO))
        .with_columns(
            pl.when(pl.col("collective").is_in(_ANY_SIZE).not_()).then("message_bytes"),
            pl.when(named & pl.col("sequence").is_not_null()).then(pl.lit("sequence"))
            .when(named).then(pl.lit("position")).otherwise(pl.lit("count")).alias("by"),
        )
    )  # fmt: skip
    in_steps = rows.join(compared.select("rank", "step"), on=["rank", "step"], how="semi")
    numbered = _in_common_range(rows.filter(by="sequence")).with_columns(
        pl.int_range(pl.len()).over("rank", "group", "sequence").alias("nth")
    )
    positioned = in_steps.filter(by="position").with_columns(
        pl.int_range(pl.len(), dtype=pl.Int64).over("rank", "group", "step").alias("sequence"),
        pl.col("step").alias("nth"),
    )
    counts = _counts(pl.concat([in_steps.filter(by="count"), in_steps.filter(by="position")]))
    # Where a rank lacks a collective, all later positions of the step differ.
    positioned = positioned.join(
        counts.select("group", "step"), on=["group", "step"], how="anti", nulls_equal=True
    )
    columns = [*_PLACE, "rank", "expected", "collective", "message_bytes", "step"]
    placed = pl.concat([numbered.select(columns), positioned.select(columns)])
    differences = pl.concat([counts, _differing(placed)], how="diagonal_relaxed")
    first = (
        differences.sort("step", "sequence", "group", nulls_last=True)
        .group_by("group", "kind", maintain_order=True)
        .agg(pl.len().alias("count"), pl.all().exclude("count").first())
    )
    described = collectives.group_by(GROUP).agg(
        pl.col("description").cast(pl.String).drop_nulls().first()
    )
    names = groups.join(described, on=GROUP, how="left", nulls_equal=True).select(
        "group", pl.col("group_name").cast(pl.String), "description", "group_size"
    )
    frame = first.join(names, on="group", how="left", maintain_order="left")
    listed = [spans(sorted(ranks)) for ranks in frame["ranks"]]
    frame = frame.with_columns(
        pl.col("group_name").alias("group"), pl.Series("ranks", listed, dtype=pl.String)
    )
    return conformed(frame, DISAGREEMENTS)


def _in_common_range(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the ``rows`` with sequence numbers that the captures of all ranks of the group
    cover."""
    number = pl.col("sequence")
    covered = (
        rows.group_by("group", "rank")
        .agg(number.min().alias("first"), number.max().alias("last"), pl.col("expected").first())
        .group_by("group")
        .agg(
            pl.col("first").max(),
            pl.col("last").min(),
            (pl.len() == pl.col("expected").first()).alias("is_of_all"),
        )
        .filter("is_of_all")
    )
    return rows.join(covered, on="group", maintain_order="left").filter(
        number.is_between("first", "last")
    )


def _counts(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the steps in which ranks of a group call different numbers of collectives."""
    calls = (
        rows.group_by("group", "step", "rank")
        .agg(pl.len().alias("number"), pl.col("expected").first())
        .with_columns(pl.col("number").cast(pl.Int64))
    )
    usual = pl.col("number").mode().min()
    differs = pl.col("number") != pl.col("usual")
    return (
        calls.with_columns(usual.over("group", "step").alias("usual"))
        .group_by("group", "step")
        .agg(
            pl.col("usual").first().alias("calls"),
            pl.col("rank").filter(differs).alias("ranks"),
            pl.col("number").filter(differs).sort_by(pl.col("rank").filter(differs)).first()
            .alias("other_calls"),
            (pl.len() == pl.col("expected").first()).alias("is_of_all"),
        )
        .filter(pl.col("is_of_all"), pl.col("ranks").list.len() > 0)
        .select("group", "step", "calls", "ranks", "other_calls", pl.lit(NUMBER_OF).alias("kind"))
    )  # fmt: skip


def _differing(rows: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each place in whose collectives the ranks differ, or that some lack."""
    what = pl.struct("collective", "message_bytes")
    odd = rows.group_by(_PLACE).agg(
        (pl.col("rank").n_unique() < pl.col("expected").first()).alias("is_missing"),
        (what.n_unique() > 1).alias("differs"),
    )
    odd = odd.filter(pl.col("is_missing") | pl.col("differs"))
    if odd.is_empty():
        return odd.select("group", "sequence")
    members = rows.select("group", "rank").unique()
    alike = _groups_in_another_order(rows.join(odd, on="group", how="semi"))
    each = (
        odd.join(members, on="group")
        .join(rows, on=[*_PLACE, "rank"], how="left", nulls_equal=True)
        .sort(*_PLACE, "rank")
        .with_columns(
            pl.col("collective").drop_nulls().mode().min().over(_PLACE).alias("usual"),
        )
        .with_columns(
            pl.col("message_bytes")
            .filter(pl.col("collective") == pl.col("usual"))
            .mode()
            .min()
            .over(_PLACE)
            .alias("usual_bytes")
        )
    )
    lacks = pl.col("collective").is_null()
    is_other = pl.col("collective") != pl.col("usual")
    differs = lacks | is_other | pl.col("message_bytes").ne_missing(pl.col("usual_bytes"))
    of_places = each.group_by(_PLACE, maintain_order=True).agg(
        lacks.any().alias("lacks"),
        is_other.any().fill_null(value=False).alias("is_other"),
        pl.col("step").drop_nulls().min(),
        pl.col("rank").filter(differs).alias("ranks"),
        pl.col("collective").filter(differs).first().alias("other_collective"),
        pl.col("message_bytes").filter(differs).first().alias("other_bytes"),
        pl.col("usual").first().alias("collective"),
        pl.col("usual_bytes").first().alias("message_bytes"),
    )
    kind = (
        pl.when("lacks").then(pl.lit(MISSING))
        .when(pl.col("is_other") & pl.col("group").is_in(alike.implode())).then(pl.lit(ORDER))
        .when("is_other").then(pl.lit(OPERATION))
        .otherwise(pl.lit(SIZE))
    )  # fmt: skip
    return of_places.with_columns(kind.alias("kind")).drop("lacks", "is_other")


def _groups_in_another_order(rows: pl.DataFrame) -> pl.Series:
    """Return the groups all of whose ranks call each collective equally often."""
    calls = rows.group_by("group", "collective", "message_bytes", "rank").len()
    ranks = pl.col("rank").n_unique()
    all_ranks = rows.group_by("group").agg(ranks.alias("ranks"))
    uneven = (
        calls.group_by("group", "collective", "message_bytes")
        .agg(ranks.alias("having"), pl.col("len").n_unique().alias("numbers"))
        .join(all_ranks, on="group")
        .filter((pl.col("having") < pl.col("ranks")) | (pl.col("numbers") > 1))
    )
    return all_ranks.join(uneven, on="group", how="anti")["group"]
