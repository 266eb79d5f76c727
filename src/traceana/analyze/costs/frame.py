"""The frame of charges: adding up without turning what is not known into nothing."""

from __future__ import annotations

import polars as pl

KEYS = ("layer", "part", "kind", "formula")
COUNTS = ("flops", "executed_flops", "bytes")


def whole_sum(column: str) -> pl.Expr:
    """Return the sum of ``column``, null if any of it is null: a part is no total."""
    return pl.when(pl.col(column).null_count() == 0).then(pl.col(column).sum()).alias(column)


def summed(charged: pl.DataFrame) -> pl.DataFrame:
    """Return ``charged``, which has the columns of ``CHARGES``, with a row a layer and formula."""
    return (
        charged.group_by(KEYS, maintain_order=True)
        .agg(pl.col("count").sum(), *(whole_sum(column) for column in COUNTS))
        .select(*KEYS, "count", *COUNTS)
    )
