"""The result of an analysis or a command: a frame, its totals and notes, and its page."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from traceana.errors import MissingExtraError, NoSuchSelectionError, how_to_install, suggested
from traceana.frozen import frozen_mapping

if TYPE_CHECKING:
    from traceana.report.page import Page


class Result(msgspec.Struct, frozen=True):
    """A frame with its totals and notes, and the page that shows it.

    ``totals`` maps a column to its total over all rows, which is its sum unless the analysis
    documents another (a union of intervals, for example); columns without a known value have none.
    ``notes`` are short sentences on the validity of the values: excluded work, missing data. An
    empty ``frame`` always has a note with the reason.

    A notebook shows the pictures and tables of the command of the same name.
    """

    _frame: pl.DataFrame
    totals: Mapping[str, int] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    # Of a Page: its module is above this one, and the signature's annotations are evaluated.
    _make_page: Callable[[Arranged], Any] | None = None
    screenful: int | None = None
    """Rows that a terminal shows by default; ``None``: all."""
    _add_pictures: Callable[[Any, int | None], Any] | None = None
    summary: Any = None
    """Of ``report``: :class:`traceana.report.pages.report.Summary`, the figures of its head."""

    def __post_init__(self) -> None:
        """Make the totals read-only."""
        msgspec.structs.force_setattr(self, "totals", frozen_mapping(self.totals))

    @property
    def frame(self) -> pl.DataFrame:
        """A clone of the rows: who changes it does not change the result."""
        return self._frame.clone()

    def with_page(
        self,
        make_page: Callable[[Arranged], Page],
        *,
        screenful: int | None = None,
        pictures: Callable[[Page, int | None], Page] | None = None,
    ) -> Result:
        """Return the result with a page made by ``make_page``.

        ``pictures`` returns that page with what HTML and workbooks have besides, whose tables have
        at most the given number of rows.
        """
        return msgspec.structs.replace(
            self, _make_page=make_page, screenful=screenful, _add_pictures=pictures
        )

    def page(self, *, sort: str | None = None, limit: int | None = None) -> Page:
        """Return the page with the rows of :func:`arrange`."""
        arranged = arrange(self, sort=sort, limit=limit)
        if self._make_page is not None:
            made: Page = self._make_page(arranged)
            return made
        from traceana.report.pages.single_table import table_page

        return table_page("table", arranged)

    def illustrated(self, *, sort: str | None = None, limit: int | None = None) -> Page:
        """Return the page for HTML and workbooks, with pictures; ``limit`` as of :meth:`page`."""
        page = self.page(sort=sort, limit=limit)
        if self._add_pictures is not None:
            page = self._add_pictures(page, limit)
        return page

    def to_pandas(self) -> Any:
        """Return ``frame`` as a pandas frame.

        Raises :class:`~traceana.errors.MissingExtraError` without the ``pandas`` extra.
        """
        try:
            return self.frame.to_pandas()
        except ImportError as error:
            raise MissingExtraError(
                f"to_pandas() needs pandas and pyarrow: {how_to_install('pandas')}"
            ) from error

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the result and return its path; the suffix names the format.

        ``.csv``, ``.tsv``, ``.json``, ``.md``, ``.parquet``, ``.xlsx``, ``.html`` and ``.txt`` are
        the formats of the command, with all rows (HTML: 2,000). Raises
        :class:`~traceana.errors.CannotWriteError`, also for another suffix, and if ``path`` exists
        and ``overwrite`` is false.
        """
        from traceana.files import check_free, write_output
        from traceana.report.render import (
            HTML_ROWS,
            ILLUSTRATED_FORMATS,
            Format,
            format_of,
            render,
        )

        target = Path(path)
        form = format_of(target)
        check_free(target, force=overwrite)
        if form in ILLUSTRATED_FORMATS:
            page = self.illustrated(limit=HTML_ROWS if form is Format.HTML else None)
        else:
            page = self.page()
        write_output(target, render(page, form), force=overwrite)
        return target

    def plot(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the pictures of the result as PNG or SVG and return the path.

        Raises :class:`~traceana.errors.NoSuchSelectionError` if it has none,
        :class:`~traceana.errors.MissingExtraError` without the ``plots`` extra, and
        :class:`~traceana.errors.CannotWriteError` on another suffix, and if ``path`` exists and
        ``overwrite`` is false.
        """
        from traceana.files import check_free
        from traceana.report.plots.page_pictures import write_plot

        target = Path(path)
        check_free(target, force=overwrite)
        write_plot(self.illustrated(), target, force=overwrite)
        return target

    def __repr__(self) -> str:
        from traceana.report.terminal import render

        return render(self.page(limit=self.screenful)).rstrip("\n")

    def _repr_html_(self) -> str:
        from traceana.report.notebook import ROWS, render

        return render(self.illustrated(limit=self.screenful or ROWS))


class HasResult(msgspec.Struct, frozen=True):
    """Base of objects that show and save a :class:`Result`."""

    def result(self) -> Result:
        """Return the result to show."""
        raise NotImplementedError

    @property
    def frame(self) -> pl.DataFrame:
        """The rows of the result."""
        return self.result().frame

    @property
    def totals(self) -> Mapping[str, int]:
        """The totals of the result's columns."""
        return self.result().totals

    def to_pandas(self) -> Any:
        """Return ``frame`` as a pandas frame; see :meth:`Result.to_pandas`."""
        return self.result().to_pandas()

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the result and return its path; see :meth:`Result.save`."""
        return self.result().save(path, overwrite=overwrite)

    def plot(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the pictures and return the path; see :meth:`Result.plot`."""
        return self.result().plot(path, overwrite=overwrite)

    def __repr__(self) -> str:
        return repr(self.result())

    def _repr_html_(self) -> str:
        return self.result()._repr_html_()


class Arranged(msgspec.Struct, frozen=True):
    """The rows of a result that a table shows.

    ``totals`` are those of all rows, shown or hidden; ``hidden`` is the number of hidden rows, and
    ``hidden_totals`` are their totals. ``sort`` and ``limit`` are those of :func:`arrange`.
    ``rows`` are all rows, None where all are shown.
    """

    frame: pl.DataFrame
    totals: Mapping[str, int]
    notes: tuple[str, ...]
    hidden: int
    hidden_totals: Mapping[str, int]
    sort: str | None = None
    limit: int | None = None
    rows: pl.DataFrame | None = None


def arrange(result: Result, *, sort: str | None = None, limit: int | None = None) -> Arranged:
    """Return the first ``limit`` rows of ``result`` (all: ``None``) after sorting it.

    ``sort`` is a column, with or without its ``_ns``; numbers come largest first, text in
    alphabetical order, nulls last; ``:asc`` or ``:desc`` after it selects the order. Equal rows
    keep their order. Raises :class:`~traceana.errors.NoSuchSelectionError` on an unknown column.
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
        sort,
        limit,
        frame if shown.height < frame.height else None,
    )


def _sorted(frame: pl.DataFrame, sort: str) -> pl.DataFrame:
    name, _, order = sort.partition(":")
    column = f"{name}_ns" if f"{name}_ns" in frame.columns else name
    if column not in frame.columns:
        known = [*(one.removesuffix("_ns") for one in frame.columns), *frame.columns]
        # All names are long to read where one of them was meant.
        meant = suggested(name, known) or f"; columns: {', '.join(frame.columns)}"
        raise NoSuchSelectionError(f"cannot sort by {name}{meant}")
    if order not in ("", "asc", "desc"):
        raise NoSuchSelectionError(f"invalid sort order {order}: use {name}:asc or {name}:desc")
    descending = order == "desc" if order else frame.schema[column].is_numeric()
    return frame.sort(column, descending=descending, nulls_last=True, maintain_order=True)


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
    return {column: int(frame[column].sum()) for column in known}
