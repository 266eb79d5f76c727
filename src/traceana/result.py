"""The result of an analysis: a frame, its totals and notes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import polars as pl

from traceana.errors import MissingDependencyError, NoSuchSelectionError, how_to_install, suggested
from traceana.frozen import frozen_mapping
from traceana.table import Column, Columns, schema_of


class Result(msgspec.Struct, frozen=True):
    """A frame with its totals and notes.

    ``totals`` maps a column to its total over all rows, which is its sum unless the analysis
    documents another (a union of intervals, for example); columns without a known value have none.
    ``notes`` are short sentences on the validity of the values: excluded work, missing data. An
    empty ``frame`` always has a note with the reason. ``columns`` are the declarations of the
    columns of ``frame``.
    """

    _frame: pl.DataFrame
    totals: Mapping[str, int] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()

    def __post_init__(self) -> None:
        """Make the totals read-only."""
        msgspec.structs.force_setattr(self, "totals", frozen_mapping(self.totals))

    @property
    def frame(self) -> pl.DataFrame:
        """A clone of the rows: who changes it does not change the result."""
        return self._frame.clone()

    def to_pandas(self) -> Any:
        """Return ``frame`` as a pandas frame.

        Raises :class:`~traceana.errors.MissingDependencyError` without the ``pandas`` extra.
        """
        try:
            return self.frame.to_pandas()
        except ImportError as error:
            raise MissingDependencyError(
                f"to_pandas() needs pandas and pyarrow: {how_to_install('pandas')}"
            ) from error


def nothing(columns: Columns, note: str) -> Result:
    """Return a result without rows; ``note`` is the reason."""
    frame = pl.DataFrame(schema=schema_of(columns))
    return Result(frame, {}, (note,), columns)


class Arranged(msgspec.Struct, frozen=True):
    """The rows of a result that a table shows.

    ``totals`` are those of all rows, shown or hidden; ``hidden`` is the number of hidden rows, and
    ``hidden_totals`` are their totals. ``sort`` and ``limit`` are those of :func:`arrange`.
    ``rows`` are all rows, None where all are shown. ``columns`` are the declared ones.
    """

    frame: pl.DataFrame
    totals: Mapping[str, int]
    notes: tuple[str, ...]
    hidden: int
    hidden_totals: Mapping[str, int]
    sort: str | None = None
    limit: int | None = None
    rows: pl.DataFrame | None = None
    columns: tuple[Column, ...] = ()


def arrange(
    result: Result,
    *,
    sort: str | None = None,
    limit: int | None = None,
    titles: Callable[[], Mapping[str, str]] = dict,
) -> Arranged:
    """Return the first ``limit`` rows of ``result`` (all: ``None``) after sorting it.

    ``sort`` is a column, with or without its ``_ns``, or one of ``titles``, which name
    columns and are made where no column is meant;
    numbers come largest first, text in alphabetical order, nulls last; ``:asc`` or ``:desc`` after
    it selects the order. Equal rows keep their order. Raises
    :class:`~traceana.errors.NoSuchSelectionError` on an unknown column.
    """
    frame = result.frame if sort is None else _sorted(result.frame, sort, titles)
    shown = frame if limit is None else frame.head(limit)
    in_shown = sums(shown, *result.totals)
    return Arranged(
        shown,
        result.totals,
        result.notes,
        frame.height - shown.height,
        {column: total - in_shown.get(column, 0) for column, total in result.totals.items()},
        sort,
        limit,
        frame if shown.height < frame.height else None,
        result.columns,
    )


def _sorted(
    frame: pl.DataFrame, sort: str, titles: Callable[[], Mapping[str, str]]
) -> pl.DataFrame:
    name, _, order = sort.partition(":")
    if order not in ("", "asc", "desc"):
        raise NoSuchSelectionError(f"invalid sort order {order}: use {name}:asc or {name}:desc")
    column = column_named(frame, name, titles, "sort by")
    descending = order == "desc" if order else frame.schema[column].is_numeric()
    return frame.sort(column, descending=descending, nulls_last=True, maintain_order=True)


def column_named(
    frame: pl.DataFrame, name: str, titles: Callable[[], Mapping[str, str]], action: str
) -> str:
    """Return the column of ``frame`` that ``name`` means: its name, with or without ``_ns``, or one
    of ``titles``, which name columns and are made where no column is meant.

    Raises :class:`~traceana.errors.NoSuchSelectionError` where no column is; it begins with
    ``action``.
    """
    known = {one.removesuffix("_ns"): one for one in frame.columns}
    known |= {one: one for one in frame.columns}
    if name in known:
        return known[name]
    shown = titles()
    if name.lower() in shown:
        return shown[name.lower()]
    # All names are long to read where one of them was meant.
    meant = suggested(name, [*shown, *known]) or f"; columns: {', '.join(shown or frame.columns)}"
    raise NoSuchSelectionError(f"cannot {action} {name}{meant}")


def with_share(frame: pl.DataFrame, of: str = "time_ns") -> pl.DataFrame:
    """Append ``share``, each row's fraction of the sum of column ``of``; null where that is 0."""
    return frame.with_columns(share_of(int(frame[of].sum()), of))


def share_of(total: int, of: str = "time_ns") -> pl.Expr:
    """Return ``share``, the fraction of ``total`` that column ``of`` is; null where that is 0."""
    return (pl.col(of) / total if total else pl.lit(None, pl.Float64)).alias("share")


def ratio(value: pl.Expr, reference: pl.Expr) -> pl.Expr:
    """Return ``value`` over ``reference``, exactly 1 where they are equal.

    polars divides by a column that holds one value by multiplying with its reciprocal, which gives
    0.9999999999999999 for some.
    """
    return pl.when((value == reference) & (reference != 0)).then(1.0).otherwise(value / reference)


def sums(frame: pl.DataFrame, *columns: str) -> dict[str, int]:
    """Return the sum of each of ``columns``, without columns that are null in every row."""
    known = [name for name in columns if frame.is_empty() or frame[name].count()]
    return {column: column_sum(frame[column]) for column in known}


def column_sum(values: pl.Series) -> Any:
    """Return the sum of ``values``: an int, of means of counts a float."""
    total: Any = values.sum()
    return total if values.dtype.is_float() else int(total)
