"""Output of a command to stdout, or to a file, atomically."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from traceana.cli import streams
from traceana.cli.options import Drawing, Tabling, Writing
from traceana.report.render import (
    BINARY_FORMATS,
    HTML_ROWS,
    ILLUSTRATED_FORMATS,
    ROUNDED_FORMATS,
    Format,
    format_of,
    plot_format,
)

if TYPE_CHECKING:
    from traceana.report.result import CommandResult
    from traceana.report.terminal import Terminal


class Output:
    """The output of one run of a command.

    Created before the trace is read, so that an unwritable output fails early. Raises
    ``typer.BadParameter`` and :class:`~traceana.errors.CannotWriteError`.
    """

    def __init__(self, tabling: Tabling, writing: Writing, *, reads: Sequence[Path] = ()) -> None:
        """Check the options; ``reads`` are the inputs, which are never overwritten."""
        self._writing = writing
        self._tabling = tabling
        self._format = tabling.format or format_of(writing.output)
        if self._format in BINARY_FORMATS and writing.output is None:
            raise typer.BadParameter(
                f"{self._format.value} is binary: give a file with -o", param_hint="--format"
            )
        if writing.output is not None:
            from traceana.files import check_free

            check_free(writing.output, force=writing.force, reads=reads)
        elif writing.open:
            raise typer.BadParameter("opens the file that -o names", param_hint="--open")
        self._plot = writing.plot if isinstance(writing, Drawing) else None
        if self._plot is not None:
            from traceana.files import check_free
            from traceana.report.charts.plot import require_vl_convert

            plot_format(self._plot)
            require_vl_convert()
            check_free(self._plot, force=writing.force, reads=reads)

    @property
    def is_illustrated(self) -> bool:
        """Whether the page is written with its pictures."""
        return self._plot is not None or self._format in ILLUSTRATED_FORMATS

    def write(self, result: CommandResult) -> None:
        """Write the page of ``result`` in the format of the options, and its pictures."""
        self.write_page(result)
        if self._plot is not None:
            limit = self._tabling.limit or None
            page = result.illustrated(limit=limit, **self._chosen)
            from traceana.report.charts.plot import write_plot

            write_plot(page, self._plot, plot_format(self._plot), force=self._writing.force)
            streams.note(f"wrote {self._plot}")

    def write_page(self, result: CommandResult) -> None:
        """Write the page of ``result`` in the format of the options."""
        from traceana.report.render import render

        limit = self._tabling.limit
        if limit is None:
            limit = self._default_limit(result)
        make = result.illustrated if self._format in ILLUSTRATED_FORMATS else result.page
        # The other formats of exact figures have the page's data.
        page = make(limit=limit or None, exact=self._format is Format.XLSX, **self._chosen)
        if self._writing.output is None:
            content = render(page, self._format, _terminal())
            streams.remove_bar()
            sys.stdout.buffer.write(content)
            return
        from traceana.files import write_output

        write_output(self._writing.output, render(page, self._format), force=self._writing.force)
        streams.note(f"wrote {self._writing.output}")
        if self._writing.open:
            typer.launch(str(self._writing.output.absolute()))

    @property
    def _chosen(self) -> Mapping[str, Any]:
        """The rows and columns of the table, as :meth:`CommandResult.page` takes them."""
        given = self._tabling
        columns = [name for text in (given.columns or "").split(",") if (name := text.strip())]
        return {"sort": given.sort, "filter": given.filter, "columns": columns}

    def _default_limit(self, result: CommandResult) -> int | None:
        if self._format is Format.HTML:
            return HTML_ROWS
        return result.screenful if self._format in ROUNDED_FORMATS else None


def _terminal() -> Terminal:
    import shutil

    from traceana.report.terminal import Terminal

    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((100, 40)).columns if terminal else 100
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Terminal(max(width, 60), colour)
