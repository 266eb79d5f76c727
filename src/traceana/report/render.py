"""Rendering of a page in each of the formats."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traceana.errors import CannotWriteError

if TYPE_CHECKING:
    from traceana.report.page import Page
    from traceana.report.terminal import Terminal


class Format(Enum):
    """The values of ``--format``; except for ``table`` they are the file suffixes too."""

    TABLE = "table"
    CSV = "csv"
    TSV = "tsv"
    JSON = "json"
    MARKDOWN = "md"
    HTML = "html"
    XLSX = "xlsx"
    PARQUET = "parquet"


ROUNDED_FORMATS = frozenset({Format.TABLE, Format.MARKDOWN})
"""The formats that show blocks with rounded numbers; the others have the exact data."""

BINARY_FORMATS = frozenset({Format.XLSX, Format.PARQUET})

ILLUSTRATED_FORMATS = frozenset({Format.HTML, Format.XLSX})
"""The formats with the sections of a page."""

HTML_ROWS = 2_000
"""Rows of a table in HTML, if nothing else is asked for."""

_SUFFIXES = {f".{format_.value}": format_ for format_ in Format if format_ is not Format.TABLE} | {
    ".txt": Format.TABLE
}


_PLOT_SUFFIXES: Final = (".png", ".svg")


def plot_format(path: Path) -> str:
    """Return the format of a plot, ``png`` or ``svg``, by the suffix of ``path``.

    Raises :class:`~traceana.errors.CannotWriteError` on another suffix.
    """
    suffix = path.suffix.lower()
    if suffix not in _PLOT_SUFFIXES:
        raise CannotWriteError(f"{path.name}: plots end with {' or '.join(_PLOT_SUFFIXES)}")
    return suffix.removeprefix(".")


def format_of(path: Path | None) -> Format:
    """Return the format of the suffix of ``path``; ``Format.TABLE`` without path or suffix.

    Raises :class:`~traceana.errors.CannotWriteError` on another suffix.
    """
    if path is None or not path.suffix:
        return Format.TABLE
    format_ = _SUFFIXES.get(path.suffix.lower())
    if path.suffix.lower() in _PLOT_SUFFIXES:
        raise CannotWriteError(f"{path.name}: pictures are written with --plot")
    if format_ is None:
        raise CannotWriteError(
            f"{path.name}: no format by that suffix; use {', '.join(_SUFFIXES)}, or --format"
        )
    return format_


def render(page: Page, form: Format, terminal: Terminal | None = None) -> bytes:
    """Return ``page`` in ``form``, text in UTF-8; ``terminal`` applies to ``Format.TABLE``."""
    if form is Format.TABLE:
        from traceana.report import terminal as renderer

        return renderer.render(page, terminal or renderer.Terminal()).encode()
    if form is Format.MARKDOWN:
        from traceana.report import markdown

        return markdown.render(page).encode()
    if form is Format.HTML:
        from traceana.report.html import html_file

        return html_file.render(page).encode()
    if form is Format.XLSX:
        from traceana.report import workbook

        return workbook.render(page)
    from traceana.report import machine

    if form is Format.PARQUET:
        return machine.render_parquet(page)
    if form is Format.JSON:
        return machine.render_json(page).encode()
    return (machine.render_csv if form is Format.CSV else machine.render_tsv)(page).encode()
