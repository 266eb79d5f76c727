"""What follows from a text that many events share, found once for each that differs."""

from __future__ import annotations

import polars as pl


def of_distinct(texts: pl.Series, **columns: pl.Expr) -> pl.DataFrame:
    """Evaluate expressions of ``text``, a String, once for each distinct text of ``texts``.

    Returns a row for each of ``texts`` (Categorical), null where there is none.
    """
    distinct = texts.unique().drop_nulls()
    told = (
        distinct.alias("label")
        .to_frame()
        .with_columns(pl.col("label").cast(pl.String).alias("text"))
        .select("label", *(expression.alias(name) for name, expression in columns.items()))
    )
    frame = texts.alias("label").to_frame()
    if not len(distinct):
        nothing = (pl.lit(None, dtype).alias(name) for name, dtype in told.schema.items())
        return frame.with_columns(nothing).drop("label")
    return frame.join(told, on="label", how="left", maintain_order="left").drop("label")
