"""Completes a class with what the name itself prints: precision, tile, layout, epilogue …"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.enrich.classify.literals import Words
from traceana.enrich.classify.rules_model import Attribute

_GROUP = re.compile(r"\$(\d)")


def complete(
    classes: pl.DataFrame, names: pl.Series, heads: pl.Series, attributes: Sequence[Attribute]
) -> pl.DataFrame:
    """``classes`` with its nulls filled by the first attribute that reads a value of the name.

    ``classes`` has one row a distinct name and the class columns; ``names`` are its names in their
    canonical spelling, ``heads`` their heads.
    """
    parts = {"name": names, "head": heads}
    category, library = _Choice(classes["category"]), _Choice(classes["library"])
    columns = {name: classes[name] for name in {attribute.column for attribute in attributes}}
    empty = {name: column.is_null().to_numpy() for name, column in columns.items()}
    for turn in _turns(attributes):
        readings: dict[str, pl.LazyFrame] = {}
        for attribute in turn:
            wanted = empty[attribute.column] & category.among(attribute.categories)
            rows = np.flatnonzero(wanted & library.among(attribute.libraries))
            texts = parts[attribute.name_part][rows]
            if len(rows) and Words(texts).allow(attribute.pattern):
                readings[attribute.column] = _reading(rows, texts, attribute)
        for name, read in zip(readings, pl.collect_all(list(readings.values())), strict=True):
            if read.height:
                filled = read["row"].to_numpy()
                columns[name] = columns[name].clone().scatter(filled, read["value"])
                empty[name][filled] = False
    return classes.with_columns(**columns)


def _turns(attributes: Sequence[Attribute]) -> list[list[Attribute]]:
    """The first attribute of every column, then the second of every column, and so on.

    Those of one column fill what the ones before left open; columns know nothing of each other, so
    a turn can run at once.
    """
    by_column: dict[str, list[Attribute]] = {}
    for attribute in attributes:
        by_column.setdefault(attribute.column, []).append(attribute)
    turns = zip_longest(*by_column.values())
    return [[attribute for attribute in turn if attribute is not None] for turn in turns]


class _Choice:
    """Which rows hold one of a few values of a column; every row where no values are named."""

    def __init__(self, column: pl.Series) -> None:
        distinct = column.unique(maintain_order=True)
        self._position = {value: position for position, value in enumerate(distinct)}
        self._codes = column.replace_strict(
            distinct, pl.Series(range(len(distinct)), dtype=pl.Int32), return_dtype=pl.Int32
        ).to_numpy()

    def among(self, values: Sequence[str]) -> npt.NDArray[np.bool_]:
        wanted = np.full(len(self._position), not values, dtype=np.bool_)
        for value in values:
            if value in self._position:
                wanted[self._position[value]] = True
        chosen: npt.NDArray[np.bool_] = wanted[self._codes]
        return chosen


def _reading(rows: npt.NDArray[np.int64], texts: pl.Series, attribute: Attribute) -> pl.LazyFrame:
    """What ``attribute`` reads in ``texts``: ``value`` and ``row``, where it reads something."""
    text = pl.col("text")
    if isinstance(attribute.value, bool) or "$" not in attribute.value:
        value: pl.Expr = pl.when(text.str.contains(attribute.pattern)).then(pl.lit(attribute.value))
    else:
        value = _assembled(text, attribute)
    frame = pl.LazyFrame([pl.Series("row", rows), texts.alias("text")])
    return frame.select("row", value.alias("value")).filter(pl.col("value").is_not_null())


def _assembled(text: pl.Expr, attribute: Attribute) -> pl.Expr:
    pieces: list[pl.Expr] = []
    for number, piece in enumerate(_GROUP.split(str(attribute.value))):
        if number % 2:
            pieces.append(text.str.extract(attribute.pattern, int(piece)).str.to_lowercase())
        elif piece:
            pieces.append(pl.lit(piece))
    value = pl.concat_str(pieces)
    if attribute.values:
        return value.replace_strict(dict(attribute.values), default=None, return_dtype=pl.String)
    return value
