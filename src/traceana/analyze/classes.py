"""The class of each activity as a report names it: a category and, in some, a part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from traceana.trace import Trace

BLAS_LETTER: Final[dict[str, str]] = {
    "fp32": "sgemm",
    "tf32": "sgemm",
    "fp64": "dgemm",
    "fp16": "hgemm",
    "int8": "igemm",
    "c64": "cgemm",
    "c128": "zgemm",
}
"""BLAS's names of the products by operand type; TF32 runs behind SGEMM's interface."""

PARTED_BY_FUNCTION: Final = ("activation", "layout", "collective")


SOURCE: Final = ("name_id", "kind", "copy_kind")
"""The columns of activities that decide the class: equal in these is equal in class."""


def classified(rows: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Return ``rows``, which have the columns of :data:`SOURCE`, with ``category`` and ``part``.

    Both are text. ``part`` splits convolutions by algorithm, matrix products by BLAS name
    (``sgemm``, ``batched sgemm``; ``sgemm (plain or batched)`` where the kernel's name serves both;
    ``gemm`` for an unknown precision, ``unknown`` where neither is known), copies by direction,
    and some categories by function; graphs recorded whole hold kernels and copies that are not
    apart. It is null in the others.

    Add the activities up by :data:`SOURCE` first: text costs more than numbers.
    """
    classes = trace.names.select(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("name_id"),
        pl.col("category").fill_null("other").alias("named_category"),
        _part().alias("named_part"),
    )
    kind = pl.col("kind").cast(pl.String)
    direction = pl.col("copy_kind").cast(pl.String).fill_null("unknown")
    return (
        rows.join(classes, on="name_id", how="left", maintain_order="left")
        .with_columns(
            pl.when(kind.is_in(["memcpy", "memset"]))
            .then(kind)
            .otherwise(pl.col("named_category").fill_null("other"))
            .alias("category"),
            pl.when(kind == "memcpy")
            .then(direction)
            .when(kind == "memset")
            .then(None)
            .when(kind == "graph")
            .then(pl.lit("CUDA graph recorded whole"))
            .otherwise(pl.col("named_part"))
            .alias("part"),
        )
        .drop("named_category", "named_part")
    )


def _part() -> pl.Expr:
    category = pl.col("category")
    return (
        pl.when(category == "conv")
        .then(pl.col("algorithm").fill_null("unknown"))
        .when(category == "gemm")
        .then(_gemm())
        .when(category == "memcpy")
        .then(pl.col("function").fill_null("unknown"))
        .when(category.is_in(PARTED_BY_FUNCTION))
        .then(pl.col("function"))
        .otherwise(pl.lit(None, pl.String))
    )


def _gemm() -> pl.Expr:
    precision = pl.col("precision")
    blas = (
        precision.replace_strict(BLAS_LETTER, default=None, return_dtype=pl.String)
        .fill_null(precision + " gemm")
        .fill_null("gemm")
    )
    either = pl.col("batched").is_null()
    return (
        pl.when(either & precision.is_null())
        .then(pl.lit("unknown"))
        .when(either)
        .then(blas + " (plain or batched)")
        .when(pl.col("batched"))
        .then("batched " + blas)
        .otherwise(blas)
    )
