"""Completes a class with what the name itself prints: precision, tile, layout, epilogue …"""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl

from traceana.classify.rules_model import Attribute

_GROUP = re.compile(r"\$(\d)")


def complete(
    classes: pl.DataFrame, heads: pl.Series, attributes: Sequence[Attribute]
) -> pl.DataFrame:
    """``classes`` with its nulls filled by the first attribute that reads a value of the name.

    ``classes`` has one row a distinct name, the columns of the class schema; ``heads`` its heads.
    """
    frame = classes.with_columns(head=heads, _row=pl.int_range(pl.len()))
    for attribute in attributes:
        frame = _filled(frame, attribute)
    return frame.drop("head", "_row")


def _filled(frame: pl.DataFrame, attribute: Attribute) -> pl.DataFrame:
    wanted = pl.col(attribute.column).is_null()
    if attribute.categories:
        wanted &= pl.col("category").is_in(attribute.categories)
    if attribute.libraries:
        wanted &= pl.col("library").is_in(attribute.libraries)
    found = (
        frame.lazy()
        .filter(wanted)
        .filter(pl.col(attribute.name_part).str.contains(attribute.pattern))
        .select("_row", value=_value(attribute))
        .drop_nulls()
        .collect()
    )
    if found.is_empty():
        return frame
    filled = frame[attribute.column].scatter(found["_row"], found["value"])
    return frame.with_columns(filled.alias(attribute.column))


def _value(attribute: Attribute) -> pl.Expr:
    if isinstance(attribute.value, bool):
        return pl.lit(attribute.value)
    pieces: list[pl.Expr] = []
    for number, piece in enumerate(_GROUP.split(attribute.value)):
        if number % 2:
            text = pl.col(attribute.name_part)
            pieces.append(text.str.extract(attribute.pattern, int(piece)).str.to_lowercase())
        elif piece:
            pieces.append(pl.lit(piece))
    value = pl.concat_str(pieces)
    if attribute.values:
        value = value.replace_strict(dict(attribute.values), default=None, return_dtype=pl.String)
    return value
