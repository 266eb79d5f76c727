"""The rows of a table by layer: which row each of the layers belongs to."""

from __future__ import annotations

from typing import Final, Literal

import polars as pl

from traceana.enrich.layers.layer_intervals import SEPARATOR

By = Literal["layer", "type"]

KEYS: Final = ("layer", "type", "role", "position")

OUTSIDE: Final = "(outside all layers)"
"""The row of work without a layer, as :mod:`traceana.enrich` calls it."""

_ROW: Final = "layer_row"


def layer_keys(layers: pl.DataFrame, by: By, depth: int | None) -> pl.DataFrame:
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
