"""The keys that tables sum work by: the class of activities, and the layer."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.columns.distinct import first_rows, numbered
from traceana.enrich.layers.source import OUTSIDE, SEPARATOR
from traceana.enrich.refine.searches import FUNCTION, ROLE
from traceana.trace.taxonomy import CLASS_COLUMNS

if TYPE_CHECKING:
    from traceana.trace import Trace
    from traceana.vocabulary.option_words import LayersBy

BLAS_LETTER: Final[dict[str, str]] = {
    "fp32": "sgemm",
    "tf32": "sgemm",
    "fp64": "dgemm",
    "fp16": "hgemm",
    "int8": "igemm",
    "c64": "cgemm",
    "c128": "zgemm",
}
"""BLAS's names of GEMMs by operand type; TF32 uses SGEMM's interface."""

PARTED_BY_FUNCTION: Final = ("activation", "layout", "collective", "attention")

SEARCH: Final = ROLE
"""The category of the trials that an autotuner runs to choose an algorithm."""

SOURCE: Final = ("name_id", "class", "kind", "copy_kind")
"""The columns of activities that determine the class."""


def classified(rows: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Return ``rows``, which have the columns of :data:`SOURCE`, with ``category`` and ``part``.

    Both are text. ``part`` splits convolutions by algorithm, matrix products by BLAS name
    (``sgemm``, ``batched sgemm``; ``sgemm (plain or batched)`` where the kernel's name is the same
    for both; ``gemm`` for an unknown precision, ``unknown`` where neither is known), copies by
    direction, and some categories by function. A CUDA graph recorded as one activity holds kernels
    and copies in one row. ``part`` is null in other categories.

    Sum the activities by :data:`SOURCE` first: text costs more than numbers.
    """
    # The rows may have other columns with the names of class columns.
    return rows.with_columns(described(rows.select(SOURCE), trace).select(_class()))


@cache
def _class() -> tuple[pl.Expr, pl.Expr]:
    """Return ``category`` and ``part`` of :func:`classified`; expressions take long to build."""
    kind = pl.col("kind").cast(pl.String)
    direction = pl.col("copy_kind").cast(pl.String).fill_null("unknown")
    return (
        pl.when(kind.is_in(["memcpy", "memset"]))
        .then(kind)
        .otherwise(pl.col("category").fill_null("other"))
        .alias("category"),
        pl.when(kind == "memcpy")
        .then(direction)
        .when(kind == "memset")
        .then(None)
        .when(kind == "graph")
        .then(pl.lit("CUDA graph recorded whole"))
        .otherwise(_part())
        .alias("part"),
    )


def category_of(rows: pl.DataFrame, trace: Trace) -> pl.Series:
    """Return the category of each of ``rows``, which may be many, as a categorical column."""
    (numbers,) = numbered(rows.select(SOURCE))
    each = classified(rows.select(SOURCE)[first_rows(numbers)], trace)["category"]
    return each.cast(pl.Categorical).gather(numbers)


def described(rows: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Return ``rows``, which have ``name_id`` and ``class``, with the columns of both tables.

    The columns are those of ``names`` and ``context_rule``. Where the context refined the class of
    the name, the class columns are the refined ones; ``rule`` stays the name's. Kernels of an
    algorithm search have the category :data:`SEARCH`.
    """
    # Both columns are positions in the tables: no join, which would hash all rows.
    found = rows.hstack(trace.tables.names.select(pl.all().gather(rows["name_id"])))
    if trace.tables.classes.is_empty():
        found = found.with_columns(pl.lit(None, pl.String).alias("context_rule"))
    else:
        refined = trace.tables.classes.select(pl.all().gather(rows["class"]))
        is_refined = refined["context_rule"].is_not_null()
        found = found.with_columns(
            *(refined[column].zip_with(is_refined, found[column]) for column in CLASS_COLUMNS),
            refined["context_rule"],
        )
    return found.with_columns(
        pl.when(pl.col("function") == FUNCTION)
        .then(pl.lit(SEARCH))
        .otherwise("category")
        .alias("category")
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


KEYS: Final = ("layer", "type", "role", "position")

_ROW: Final = "layer_row"


def layer_keys(layers: pl.DataFrame, by: LayersBy, depth: int | None) -> pl.DataFrame:
    """Return the :data:`KEYS` of each row of ``layers`` (``layer_row``) in a table by layer.

    ``layer`` is the path, cut to ``depth`` parts if given, or the type. Rows without a layer have
    their role, or the reason, in parentheses. ``position`` is that of the row's first layer.
    """
    path, kind = pl.col("path"), pl.col("type")
    is_layer = pl.col("role") == "layer"
    label = (
        path if depth is None else path.str.split(SEPARATOR).list.head(depth).list.join(SEPARATOR)
    )
    if by == "type":
        label = kind.fill_null("(no type)")
    named = layers.with_row_index(_ROW).with_columns(pl.col("role").cast(pl.String))
    types = named.filter(is_layer).select(path.alias("label"), kind.alias("of_label"))
    known = types.unique("label", keep="first", maintain_order=True)
    return (
        named.with_columns(
            pl.when(is_layer)
            .then(label)
            .when(pl.col("role") == "unattributed")
            .then(path)
            .otherwise("(" + pl.col("role") + ")")
            .alias("label")
        )
        .join(known, on="label", how="left", maintain_order="left")
        .with_columns(
            pl.when(is_layer).then(pl.col("position").min().over("label", "role")).alias("position")
        )
        .select(
            pl.col(_ROW),
            pl.col("label").alias("layer"),
            pl.when(is_layer)
            .then(pl.col("label") if by == "type" else pl.col("of_label"))
            .alias("type"),
            "role",
            "position",
        )
    )


def with_layer_keys(rows: pl.DataFrame, of: pl.DataFrame) -> pl.DataFrame:
    """Return ``rows`` (with ``layer_row``) with their :data:`KEYS`, from the table ``of``."""
    return rows.join(of, on=_ROW, how="left", maintain_order="left").with_columns(
        pl.col("role").fill_null("unattributed"), pl.col("layer").fill_null(OUTSIDE)
    )
