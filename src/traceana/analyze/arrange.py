"""Which rows of a result are shown, and in what order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from traceana.analyze.result import Result, sums
from traceana.errors import NoSuchSelectionError


@dataclass(frozen=True, slots=True)
class Arranged:
    """The rows of a result that are shown.

    ``totals`` are of all rows, shown or not; ``hidden`` counts the rows that are not, and
    ``hidden_totals`` are theirs.
    """

    frame: pl.DataFrame
    totals: Mapping[str, int]
    notes: tuple[str, ...]
    hidden: int
    hidden_totals: Mapping[str, int]


def arrange(result: Result, *, sort: str | None = None, limit: int | None = None) -> Arranged:
    """Return the first ``limit`` rows of ``result`` (all: ``None``) after sorting it.

    ``sort`` is a column, with or without its ``_ns``; numbers come largest first, text in
    alphabetical order, nulls last; ``:asc`` or ``:desc`` behind it says otherwise. Equal rows keep
    their order. Raises :class:`~traceana.errors.NoSuchSelectionError` on an unknown column.
    """
    frame = result.frame if sort is None else _sorted(result.frame, sort)
    shown = frame if limit is None else frame.head(limit)
    in_shown = sums(shown, *result.totals)
    return Arranged(
        shown,
        result.totals,
        result.notes,
        frame.height - shown.height,
        {column: total - in_shown.get(column, 0) for column, total in result.totals.items()},
    )


def _sorted(frame: pl.DataFrame, sort: str) -> pl.DataFrame:
    name, _, order = sort.partition(":")
    column = f"{name}_ns" if f"{name}_ns" in frame.columns else name
    if column not in frame.columns:
        raise NoSuchSelectionError(
            f"cannot sort by {name}: the columns are {', '.join(frame.columns)}"
        )
    if order not in ("", "asc", "desc"):
        raise NoSuchSelectionError(f"cannot sort {order}: write {name}:asc or {name}:desc")
    descending = order == "desc" if order else frame.schema[column].is_numeric()
    return frame.sort(column, descending=descending, nulls_last=True, maintain_order=True)
