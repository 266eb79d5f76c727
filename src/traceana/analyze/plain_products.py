"""Convolutions and matrix products in plain fp32: how long each takes, and what it has to move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.costs.frame import whole_sum

if TYPE_CHECKING:
    from traceana.analyze.roofline import Units

COLUMNS: Final = ("category", "calls", "time_ns", "bytes")
_PRODUCTS: Final = ("conv", "gemm")
_EXACT: Final = ("unit", "gradient")


def plain_products(computed: Units) -> pl.DataFrame:
    """Return one row a call of an operator, and gradient, that ran products without tensor cores.

    Columns: ``category``; ``calls`` and ``time_ns``, number and summed durations of its kernels in
    plain fp32; ``bytes``, what it has to move at least, null where shapes or types do not tell.
    Kernels of no operator that is counted are one row a category, without bytes.
    """
    rows, charged = computed.work, computed.charged
    plain = rows.filter(
        pl.col("category").is_in(_PRODUCTS)
        & (pl.col("precision") == "fp32")
        & (pl.col("tensor_core") == False)  # noqa: E712
    )
    moved = charged.group_by(_EXACT).agg(whole_sum("bytes"))
    return (
        plain.group_by("category", *_EXACT)
        .agg(pl.len().cast(pl.Int64).alias("calls"), pl.col("duration").sum().alias("time_ns"))
        .join(moved, on=list(_EXACT), how="left", nulls_equal=True)
        .with_columns(pl.when(pl.col("unit").is_not_null()).then("bytes").alias("bytes"))
        .select(COLUMNS)
    )
