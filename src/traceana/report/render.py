"""Rendering of a page in each of the formats."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

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
    PARQUET = "parquet"


ROUNDED_FORMATS = frozenset({Format.TABLE, Format.MARKDOWN})
"""The formats that show blocks with rounded numbers; the others have the exact data."""


def format_of(path: Path | None) -> Format:
    """Return the format of the suffix of ``path``, ``Format.TABLE`` for other suffixes."""
    suffix = "" if path is None else path.suffix.removeprefix(".")
    return next((known for known in Format if known.value == suffix), Format.TABLE)


def render(page: Page, form: Format, terminal: Terminal | None = None) -> bytes:
    """Return ``page`` in ``form``, text in UTF-8; ``terminal`` applies to ``Format.TABLE``."""
    if form is Format.TABLE:
        from traceana.report import terminal as renderer

        return renderer.render(page, terminal or renderer.Terminal()).encode()
    if form is Format.MARKDOWN:
        from traceana.report import markdown

        return markdown.render(page).encode()
    from traceana.report import machine

    if form is Format.PARQUET:
        return machine.render_parquet(page)
    if form is Format.JSON:
        return machine.render_json(page).encode()
    return (machine.render_csv if form is Format.CSV else machine.render_tsv)(page).encode()
