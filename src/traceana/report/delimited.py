"""CSV and TSV output: exact numbers, a header, one line a row whatever the names hold."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from traceana.report.document import Document
from traceana.report.text import plain

_FORMULA = ("=", "+", "-", "@")


def render_csv(document: Document) -> str:
    """Return ``document`` as CSV for spreadsheets.

    Control characters are written out (``\\n``), and text that a spreadsheet would run as a
    formula has an apostrophe before it.
    """
    frame = _safe(document.table.frame, _no_formula)
    return frame.write_csv(separator=",", quote_style="necessary")


def render_tsv(document: Document) -> str:
    """Return ``document`` as TSV: no quoting, as tabs and line ends inside text are written out."""
    frame = _safe(document.table.frame, plain)
    return frame.write_csv(separator="\t", quote_style="never")


def _safe(frame: pl.DataFrame, write: Callable[[str], str]) -> pl.DataFrame:
    texts = [name for name, dtype in frame.schema.items() if dtype == pl.String]
    return frame.with_columns(
        pl.Series(name, [None if v is None else write(v) for v in frame[name]], dtype=pl.String)
        for name in texts
    )


def _no_formula(text: str) -> str:
    shown = plain(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
