"""Completes a class with what the name itself prints: precision, tile, layout, epilogue …"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.classify.rules_model import Attribute

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
    for attribute in attributes:
        wanted = empty[attribute.column] & category.among(attribute.categories)
        rows = np.flatnonzero(wanted & library.among(attribute.libraries))
        if not len(rows):
            continue
        value = _read(parts[attribute.name_part].gather(rows), attribute)
        found = value.is_not_null()
        if found.any():
            filled = rows[found.to_numpy()]
            column = columns[attribute.column]
            columns[attribute.column] = column.clone().scatter(filled, value.filter(found))
            empty[attribute.column][filled] = False
    return classes.with_columns(**columns)


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


def _read(texts: pl.Series, attribute: Attribute) -> pl.Series:
    """What ``attribute`` reads in each text; null where it reads nothing."""
    if isinstance(attribute.value, bool) or "$" not in attribute.value:
        matched = texts.str.contains(attribute.pattern)
        return pl.select(pl.when(matched).then(pl.lit(attribute.value))).to_series()
    pieces: list[pl.Expr] = []
    text = pl.lit(texts)
    for number, piece in enumerate(_GROUP.split(attribute.value)):
        if number % 2:
            pieces.append(text.str.extract(attribute.pattern, int(piece)).str.to_lowercase())
        elif piece:
            pieces.append(pl.lit(piece))
    value = pl.concat_str(pieces)
    if attribute.values:
        value = value.replace_strict(dict(attribute.values), default=None, return_dtype=pl.String)
    return pl.select(value).to_series()
