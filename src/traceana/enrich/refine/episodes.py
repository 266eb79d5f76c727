"""Convolutions of several kernels: transforms, products and what comes after them as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from traceana.enrich.refine.directions import with_directions

_RANK: Final = {"before": 0, "main": 1, "after": 2}
_TOLD_LAYOUTS: Final = ("nchw_to_nhwc", "nhwc_to_nchw")


@dataclass(frozen=True, slots=True)
class Episodes:
    """``table`` has one row an episode: ``op``, ``algorithm``, ``direction``.

    ``members`` has one row an activity of an episode: ``row`` (of the activities), ``episode`` and
    ``main`` (it is neither a preparation nor a completion).
    """

    table: pl.DataFrame
    members: pl.DataFrame


def find_episodes(
    candidates: pl.DataFrame, ops: pl.DataFrame, told_direction: pl.Series
) -> Episodes:
    """Cut the runs of ``candidates`` into episodes.

    Within a run preparations, products and completions follow each other; a part that would go
    back begins another segment, and so does a product of another kind. Neighbouring segments of
    one algorithm and direction are one episode: a convolution that is computed piece by piece.
    ``told_direction`` is what the name of each of ``ops`` tells.
    """
    parts = _with_segments(_with_layouts_placed(candidates))
    segments = _segments(parts)
    segments = with_directions(segments, ops, told_direction)
    same = pl.struct("run", "algorithm", "direction").rle_id().cast(pl.Int64)
    segments = segments.with_columns(same.alias("episode"))
    table = (
        segments.group_by("episode", maintain_order=True)
        .agg(pl.col("convolution", "algorithm", "direction").first(), pl.col("start").min())
        .sort("start", "episode")
        .with_row_index("number")
    )
    members = (
        parts.join(segments.select("segment", "episode"), on="segment", how="inner")
        .join(table.select("episode", "number"), on="episode", how="inner")
        .select("row", pl.col("number").alias("episode"), (pl.col("rank") == 1).alias("main"))
    )
    return Episodes(
        table.select(pl.col("convolution").cast(pl.UInt32).alias("op"), "algorithm", "direction"),
        members,
    )


def _with_layouts_placed(parts: pl.DataFrame) -> pl.DataFrame:
    """Return ``parts`` with ``rank``, the place of their phase; layout changes told by order.

    What turns the tensors the way the first change of the run did prepares, the opposite completes.
    Of changes whose name does not tell their way, the first behind a product completes it and the
    others prepare the next.
    """
    layout = pl.col("phase") == "layout"
    told = pl.when(layout & pl.col("function").is_in(_TOLD_LAYOUTS)).then("function")
    main = pl.col("phase") == "main"
    begins = (pl.col("run") != pl.col("run").shift()).fill_null(True)
    ways = parts.select("run", told.alias("first_way")).drop_nulls().unique("run", keep="first")
    placed = parts.join(ways, on="run", how="left", maintain_order="left").with_columns(
        told.alias("told"),
        _since(begins, main).alias("after_main"),
        _since(begins | main, layout & told.is_null()).alias("nth"),
    )
    completes = (
        pl.when(pl.col("told").is_not_null())
        .then(pl.col("told") != pl.col("first_way"))
        .otherwise((pl.col("after_main") > 0) & (pl.col("nth") == 1))
    )
    rank = (
        pl.when(layout)
        .then(pl.when(completes).then(2).otherwise(0))
        .otherwise(pl.col("phase").replace_strict(_RANK, default=None, return_dtype=pl.Int32))
    )
    return placed.with_columns(rank.alias("rank")).drop("told", "after_main", "first_way", "nth")


def _since(begins: pl.Expr, counted: pl.Expr) -> pl.Expr:
    """Count the rows that are ``counted`` since the last that ``begins``, both included."""
    total = counted.cast(pl.Int64).cum_sum()
    return total - pl.when(begins).then(total - counted.cast(pl.Int64)).forward_fill()


def _with_segments(parts: pl.DataFrame) -> pl.DataFrame:
    product = pl.when(pl.col("category") == "gemm").then("name_id")
    kind = pl.struct("category", "algorithm", "named_direction", product.alias("product"))
    rank, main = pl.col("rank"), pl.col("rank") == 1
    begins = (
        (pl.col("run") != pl.col("run").shift())
        | (rank < rank.shift())
        | (main & main.shift() & (pl.col("kind") != pl.col("kind").shift()))
    )
    return parts.with_columns(kind.rle_id().alias("kind")).with_columns(
        begins.fill_null(True).cum_sum().alias("segment")
    )


def _segments(parts: pl.DataFrame) -> pl.DataFrame:
    """Return one row a segment that belongs to a convolution, with its algorithm."""
    convolution, product = pl.col("category") == "conv", pl.col("category") == "gemm"
    known = pl.col("algorithm").filter(convolution & (pl.col("algorithm") != "unknown"))
    of_main = pl.col("algorithm").filter(
        convolution & (pl.col("algorithm") != "unknown") & (pl.col("rank") == 1)
    )
    complex_product = (product & pl.col("precision").is_in(["c64", "c128"])).any()
    segments = (
        parts.group_by("segment", maintain_order=True)
        .agg(
            pl.col("run", "convolution").first(),
            pl.col("start").min(),
            pl.col("scoped").fill_null(False).any(),
            pl.col("told_direction").first(),
            pl.col("direction").first().cast(pl.String).alias("activity_direction"),
            *(
                (convolution & (pl.col("named_direction") == way)).any().alias(f"names_{way}")
                for way in ("fprop", "dgrad", "wgrad")
            ),
            convolution.any().alias("certain"),
            pl.coalesce(
                of_main.first(),
                known.first(),
                pl.when(complex_product).then(pl.lit("fft")),
                pl.when(product.any()).then(pl.lit("gemm")),
                pl.when(convolution.any()).then(pl.lit("unknown")),
            ).alias("algorithm"),
        )
        .filter(pl.col("convolution").is_not_null() | pl.col("scoped") | pl.col("certain"))
    )
    # What only clears or repacks belongs to the convolution before it, or to the one to come.
    algorithm = pl.col("algorithm")
    its_run = pl.when(algorithm.is_not_null()).then("run")
    return segments.with_columns(
        pl.coalesce(
            pl.when(its_run.forward_fill() == pl.col("run")).then(algorithm.forward_fill()),
            pl.when(its_run.backward_fill() == pl.col("run")).then(algorithm.backward_fill()),
        ).alias("algorithm")
    ).filter(algorithm.is_not_null())
