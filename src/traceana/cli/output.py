"""Where the output of a verb goes: stdout, or a file that appears whole or not at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from traceana import files
from traceana.cli.options import Tabling, Writing
from traceana.errors import CannotWriteError
from traceana.report.formats import Format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceana.advise import Advice
    from traceana.report.compare.beside import Beside
    from traceana.report.diff.facts import Compared
    from traceana.report.document import Document, Paper
    from traceana.report.overview import Overview
    from traceana.result import Result
    from traceana.study.study import Study
    from traceana.trace import Trace


class Output:
    """The output of one run of a verb.

    Made before the trace is read, so that an output that cannot be written is told at once:
    raises ``typer.BadParameter`` and :class:`~traceana.errors.CannotWriteError`.
    """

    def __init__(
        self,
        tabling: Tabling,
        writing: Writing,
        *,
        reads: Sequence[Path] = (),
        screenful: int | None = None,
    ) -> None:
        """Check the options.

        ``reads`` is the input, which is never written over; ``screenful`` the number of rows that
        text shows where no limit is given (``None``: all).
        """
        self._writing = writing
        self._sort = tabling.sort
        self._format = tabling.format or _by_suffix(writing.output)
        limit = screenful if tabling.limit is None and self.is_text else tabling.limit
        self._limit = limit or None
        if self._format is Format.PARQUET and writing.output is None:
            raise typer.BadParameter(
                "parquet is no text: name a file with -o", param_hint="--format"
            )
        if writing.output is not None:
            check_free(writing.output, force=writing.force, reads=reads)

    @property
    def is_text(self) -> bool:
        """Whether the output is for people: rounded, and no wider than it has to be."""
        return self._format in (Format.TABLE, Format.MARKDOWN)

    def show(
        self,
        verb: str,
        result: Result,
        trace: Trace | None = None,
        *,
        columns: tuple[str, ...] = (),
        optional: tuple[str, ...] = (),
        records: bool = False,
        bars: str | None = None,
        overview: Overview | None = None,
        facts: Mapping[str, Any] | None = None,
        advice: Advice | None = None,
        sections: Mapping[str, Result] | None = None,
        source: Mapping[str, Any] | None = None,
        compared: Compared | None = None,
        beside: Beside | None = None,
        study: Study | None = None,
    ) -> None:
        """Write ``result`` as the options have it; ``columns`` are those of a table of text.

        ``source`` is there where the input is more than ``trace``. The rest as in
        :class:`~traceana.report.document.Document`.
        """
        from traceana.report.document import Document
        from traceana.report.source import source_of
        from traceana.result import arrange

        self._write(
            Document(
                verb,
                arrange(result, sort=self._sort, limit=self._limit),
                source or ({} if trace is None else source_of(trace)),
                columns=columns,
                optional=optional,
                records=records,
                bars=bars,
                overview=overview,
                facts=facts,
                advice=advice,
                sections=sections or {},
                compared=compared,
                beside=beside,
                study=study,
            )
        )

    def _write(self, document: Document) -> None:
        from traceana.report.render import render

        if self._writing.output is None:
            sys.stdout.buffer.write(render(document, self._format, _paper()))
            return
        from traceana.report.document import Paper

        content = render(document, self._format, Paper())
        write_whole(self._writing.output, content, force=self._writing.force)


def check_free(path: Path, *, force: bool, reads: Sequence[Path] = ()) -> None:
    """Raise :class:`~traceana.errors.CannotWriteError` when ``path`` must not be written."""
    if path.exists() and any(one.exists() and path.samefile(one) for one in reads):
        raise CannotWriteError(f"{path} is the input: choose another name")
    if path.is_dir():
        raise CannotWriteError(f"{path} is a directory: name a file in it")
    if path.exists() and not force:
        raise CannotWriteError(f"{path} exists already: choose another name, or --force")


def write_whole(path: Path, content: bytes, *, force: bool) -> None:
    """Write ``path`` so that it never holds a part of ``content``.

    Without ``force`` a file that appeared meanwhile is not replaced. Raises
    :class:`~traceana.errors.CannotWriteError`.
    """
    try:
        files.write_whole(path, content, replace=force)
    except OSError as error:
        raise CannotWriteError(f"cannot write {path}: {error.strerror or error}") from error


def _by_suffix(path: Path | None) -> Format:
    suffix = "" if path is None else path.suffix.removeprefix(".")
    return next((known for known in Format if known.value == suffix), Format.TABLE)


def _paper() -> Paper:
    import shutil

    from traceana.report.document import Paper

    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((100, 40)).columns if terminal else 100
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Paper(max(width, 60), colour)
