"""What one row of a comparison is, beside a layer: a class, an algorithm, a kernel, a product."""

from __future__ import annotations

from typing import Final, Literal

import polars as pl

Kind = Literal["class", "algorithm", "kernel", "gemm", "transfer"]

KEYS: Final[dict[Kind, tuple[str, ...]]] = {
    "class": ("category", "part"),
    "algorithm": ("category", "algorithm", "pass"),
    "kernel": ("name", "category", "part"),
    "gemm": ("gemm", "form", "precision", "library", "tile", "gemm_layout"),
    "transfer": ("direction", "host_memory"),
}
"""The columns that tell the rows apart; the first is never null."""

OTHER: Final = "(other work)"
"""By product or by copy, the row of the work that is none."""

NO_TILE: Final = "(no tile)"
"""``gemm`` of products whose name tells neither a tile nor a layout."""

_STRIDED: Final = r"(?i)strided_?batched"
_TENSILE: Final = r"^Cijk_"
_TENSILE_POINTERS: Final = r"_G[BG](?:_|$)"


def keyed(cells: pl.DataFrame, by: Kind) -> pl.DataFrame:
    """Return ``cells`` (:func:`traceana.compare.cells.cells`) with the columns :data:`KEYS`.

    ``algorithm`` and ``pass`` are those of convolutions. Of matrix products ``gemm`` is the tile
    and the layout of the operands as the name prints them (``128x64_nn``), and ``form`` is as
    :func:`form` tells; of copies ``direction`` and ``host_memory`` are as ``transfers`` has them.
    """
    if by == "algorithm":
        conv = pl.col("category") == "conv"
        return cells.with_columns(
            pl.when(conv).then("part").alias("algorithm"),
            pl.when(conv).then(pl.col("pass").cast(pl.String)).alias("pass"),
        )
    if by == "gemm":
        gemm = pl.col("category") == "gemm"
        name = pl.concat_str("tile", "gemm_layout", separator="_", ignore_nulls=True)
        named = pl.when(name == "").then(pl.lit(NO_TILE)).otherwise(name)
        return cells.with_columns(
            pl.when(gemm).then(named).otherwise(pl.lit(OTHER)).alias("gemm"),
            pl.when(gemm).then(form()).alias("form"),
            *(
                pl.when(gemm).then(column)
                for column in ("precision", "library", "tile", "gemm_layout")
            ),
        )
    if by == "transfer":
        return cells.with_columns(pl.col("copy").fill_null(OTHER).alias("direction"))
    return cells


def form() -> pl.Expr:
    """Return whether a product is ``plain``, ``batched``, ``strided batched`` or either.

    ``plain or batched`` is where neither the name nor the launch tells. A batched product is
    ``strided batched`` where the name says so. Source of the rule for Tensile's kernels:
    ``ProblemType.__str__`` of Tensile marks what takes arrays of pointers (``_GB``) or groups
    (``_GG``), and nothing else. Others called ``batched`` may be strided nonetheless.
    """
    name = pl.col("name")
    tensile = name.str.contains(_TENSILE) & ~name.str.contains(_TENSILE_POINTERS)
    strided = name.str.contains(_STRIDED) | tensile
    return (
        pl.when(pl.col("batched").is_null())
        .then(pl.lit("plain or batched"))
        .when(pl.col("batched") & strided)
        .then(pl.lit("strided batched"))
        .when("batched")
        .then(pl.lit("batched"))
        .otherwise(pl.lit("plain"))
    )
