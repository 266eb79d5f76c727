"""The result of an analysis: a frame, its totals and notes; the rows of it that a table shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from traceana.errors import NoSuchSelectionError


@dataclass(frozen=True, slots=True)
class Result:
    """A frame with the figures that hold for the whole of it.

    ``totals`` maps a column to its total over all rows, which is its sum unless the analysis
    documents another (a union of intervals, for example); columns without a known value have none.
    ``notes`` are short sentences on the validity of the figures: what is excluded, what the file
    lacks. An empty ``frame`` always has a note with the reason.
    """

    frame: pl.DataFrame
    totals: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Arranged:
    """The rows of a result that a table shows.

    ``totals`` are those of all rows, shown or hidden; ``hidden`` is the number of hidden rows, and
    ``hidden_totals`` are their totals.
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


def with_share(frame: pl.DataFrame, of: str = "time_ns") -> pl.DataFrame:
    """Append ``share``, each row's fraction of the sum of column ``of``; null where that is 0."""
    total = int(frame[of].sum())
    share = pl.col(of) / total if total else pl.lit(None, pl.Float64)
    return frame.with_columns(share.alias("share"))


def ratio(value: pl.Expr, reference: pl.Expr) -> pl.Expr:
    """Return ``value`` over ``reference``, exactly 1 where they are equal.

    polars divides by a column that holds one value by multiplying with its reciprocal, which gives
    0.9999999999999999 for some.
    """
    return pl.when((value == reference) & (reference != 0)).then(1.0).otherwise(value / reference)


def sums(frame: pl.DataFrame, *columns: str) -> dict[str, int]:
    """Return the sum of each of ``columns``, without those of which no row has a value."""
    known = [name for name in columns if frame.is_empty() or frame[name].count()]
    return {column: int(frame[column].sum()) for column in known}
