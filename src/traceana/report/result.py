"""The result of a command: an analysis' frame with its page, which shows and saves itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from traceana.errors import UsageError, in_python
from traceana.files import check_free, write_output
from traceana.report.page import Block, Page, Table, head_of
from traceana.report.render import (
    HTML_ROWS,
    ILLUSTRATED_FORMATS,
    Format,
    format_of,
    plot_format,
    render,
)
from traceana.result import Arranged, Result, arrange

if TYPE_CHECKING:
    import os


class CommandResult(Result, frozen=True, kw_only=True):
    """The result of a command: a frame with its totals and notes, and its page.

    ``totals`` maps a column to its total over all rows, which is its sum unless the analysis
    documents another (a union of intervals, for example); columns without a known value have none.
    ``notes`` are short sentences on the validity of the values: excluded work, missing data. An
    empty ``frame`` always has a note with the reason. ``summary`` has the figures of the page's
    head: of ``report`` a :class:`~traceana.report.pages.report.Summary`, of ``diff`` a
    :class:`~traceana.comparison.diff.Diff`, of ``compare`` a
    :class:`~traceana.comparison.run_tables.Comparison`.

    A notebook shows the pictures and tables of the command of the same name.
    """

    summary: Any = None
    _make_page: Callable[[Arranged], Page]
    screenful: int | None = None
    """Rows that a terminal shows by default; ``None``: all."""
    _pictures: Callable[[], Sequence[Block]] | None = None
    _complete: Callable[[Page, int | None, bool], Page] | None = None
    _per_step: CommandResult | None = None
    filterable: bool = True
    """Whether the page is a table of the rows of ``frame``."""

    @classmethod
    def of(
        cls,
        result: Result,
        page: Callable[[Arranged], Page],
        *,
        screenful: int | None = None,
        pictures: Callable[[], Sequence[Block]] | None = None,
        complete: Callable[[Page, int | None, bool], Page] | None = None,
        summary: Any = None,
        filterable: bool = True,
        per_step: CommandResult | None = None,
    ) -> CommandResult:
        """Return ``result`` with its page.

        HTML and workbooks also have the ``pictures``, or the page that ``complete`` returns, with
        at most the given number of rows in each table, and exact sums or means per step. Screens,
        HTML and Markdown show the page of ``per_step``, if given.
        """
        return cls(
            result._frame, result.totals, result.notes, result.columns,
            summary=summary, _make_page=page, screenful=screenful, _pictures=pictures,
            _complete=complete, _per_step=per_step, filterable=filterable,
        )  # fmt: skip

    def page(
        self,
        *,
        sort: str | None = None,
        limit: int | None = None,
        filter: str | None = None,  # noqa: A002
        columns: Sequence[str] = (),
        exact: bool = False,
    ) -> Page:
        """Return the page with the rows of :func:`~traceana.result.arrange`.

        ``sort`` can be the title of a column too, as the page has it. ``filter`` selects rows
        (:func:`~traceana.report.selection.filtered`) and ``columns`` columns of the first table.
        Its blocks have means per step where the command has them, unless ``exact``; its data are
        exact.
        """
        if self._per_step is not None and not exact:
            # A value in a filter is one of the table that shows it.
            chosen = {"sort": sort, "limit": limit, "filter": filter, "columns": columns}
            data = self.page(**chosen, exact=True).data  # type: ignore[arg-type]
            return replace(self._per_step.page(**chosen), data=data)  # type: ignore[arg-type]
        selected: Result = self
        if filter is not None:
            from traceana.report.selection import filtered

            if not self.filterable:
                raise UsageError(
                    "--filter applies to the rows of one table, as kernels and layers have: this "
                    "command has several"
                )
            selected = filtered(self, filter, self._titles)
        page = self._make_page(arrange(selected, sort=sort, limit=limit, titles=self._titles))
        if columns:
            from traceana.report.selection import with_columns

            page = with_columns(page, columns)
        return page

    def _titles(self) -> dict[str, str]:
        blocks = self._make_page(arrange(self)).blocks
        shown = [column for block in blocks if isinstance(block, Table) for column in block.columns]
        # A page may show columns that it makes of the rows, such as one a run.
        in_frame = [column for column in shown if column.name in self._frame.columns]
        return {column.title.lower(): column.name for column in reversed(in_frame)}

    def illustrated(
        self,
        *,
        sort: str | None = None,
        limit: int | None = None,
        filter: str | None = None,  # noqa: A002
        columns: Sequence[str] = (),
        exact: bool = False,
    ) -> Page:
        """Return the page for HTML and workbooks, with pictures; the rest as :meth:`page`."""
        page = self.page(sort=sort, limit=limit, filter=filter, columns=columns, exact=exact)
        shown = self if exact or self._per_step is None else self._per_step
        if shown._pictures is not None:
            # Below the title and facts, above the other blocks.
            head = head_of(page)
            blocks = (*head, *shown._pictures(), *page.blocks[len(head) :])
            page = replace(page, blocks=blocks)
        return page if self._complete is None else self._complete(page, limit, exact)

    @in_python
    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the result and return its path; the suffix names the format.

        ``.csv``, ``.tsv``, ``.json``, ``.md``, ``.parquet``, ``.xlsx``, ``.html`` and ``.txt`` are
        the formats of the command, with all rows (HTML: 2,000). Raises
        :class:`~traceana.errors.CannotWriteError`, also for another suffix, and if ``path`` exists
        and ``overwrite`` is false.
        """
        target = Path(path)
        form = format_of(target)
        check_free(target, force=overwrite)
        if form in ILLUSTRATED_FORMATS:
            is_html = form is Format.HTML
            page = self.illustrated(limit=HTML_ROWS if is_html else None, exact=not is_html)
        else:
            page = self.page()
        write_output(target, render(page, form), force=overwrite)
        return target

    @in_python
    def plot(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the pictures of the result as PNG or SVG and return the path.

        Raises :class:`~traceana.errors.NoSuchSelectionError` if it has none,
        :class:`~traceana.errors.MissingDependencyError` without the ``html`` extra, and
        :class:`~traceana.errors.CannotWriteError` on another suffix, and if ``path`` exists and
        ``overwrite`` is false.
        """
        from traceana.report.charts.plot import write_plot

        target = Path(path)
        form = plot_format(target)
        check_free(target, force=overwrite)
        write_plot(self.illustrated(), target, form, force=overwrite)
        return target

    def __repr__(self) -> str:
        from traceana.report import terminal

        return terminal.render(self.page(limit=self.screenful)).rstrip("\n")

    def _repr_html_(self) -> str:
        from traceana.report import notebook

        return notebook.render(self.illustrated(limit=self.screenful or notebook.ROWS))
