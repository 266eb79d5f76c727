"""The machine formats of a page, with exact numbers: JSON, CSV, TSV and Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any, Final

import msgspec
import polars as pl

from traceana.plain_text import plain, without_secrets
from traceana.report.page import Page, Rows
from traceana.settings import SETTINGS
from traceana.version import __version__

JSON_SCHEMA_VERSION: Final = 3
"""Increased when a key of the JSON output changes its name, type or meaning; see docs/json.md."""

_FORMULA: Final = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""Beginnings of formulas, behind white space too; spreadsheets read full-width signs as others."""


def render_json(page: Page) -> str:
    """Return the data of ``page`` as one JSON object, pretty-printed and in ASCII.

    Names in it cannot control a terminal, and its URLs have no passwords and signatures.
    docs/json.md describes the keys.
    """
    # With an indent json.dumps is written in Python, which takes three times as long.
    text = without_secrets(json.dumps(json_object(page), allow_nan=False))
    return msgspec.json.format(text, indent=2) + "\n"


def render_csv(page: Page) -> str:
    """Return the rows of ``page`` as CSV for spreadsheets.

    Control characters are escaped (``\\n``), and text that a spreadsheet would evaluate as a
    formula has an apostrophe before it.
    """
    frame = _safe(page.data.rows.frame, _no_formula)
    return frame.write_csv(separator=",", quote_style="necessary")


def render_tsv(page: Page) -> str:
    """Return the rows of ``page`` as TSV, without quoting; tabs and line ends are escaped."""
    frame = _safe(page.data.rows.frame, plain)
    return frame.write_csv(separator="\t", quote_style="never")


def render_parquet(page: Page) -> bytes:
    """Return the rows of ``page`` as a Parquet file."""
    buffer = BytesIO()
    page.data.rows.frame.write_parquet(buffer, compression="zstd")
    return buffer.getvalue()


def json_object(page: Page) -> dict[str, Any]:
    """Return the data of ``page``, with the keys of docs/json.md."""
    data = page.data
    if data.whole is not None:
        return {"schema_version": JSON_SCHEMA_VERSION, "meta": _head(page.command), **data.whole}
    meta = {
        **_head(page.command, data.source),
        "units": _units((data.rows, *data.sections.values())),
        "totals": dict(data.totals),
        "total_ns": data.totals.get("time_ns"),
        "rows_total": data.rows_total,
        "notes": list(data.notes),
    }
    whole: dict[str, Any] = {"meta": meta}
    if data.summary is not None:
        whole["summary"] = data.summary
    whole["rows"] = _rows(data.rows)
    if data.sections:
        whole["sections"] = {name: _rows(rows) for name, rows in data.sections.items()}
    return whole


def _rows(rows: Rows) -> list[dict[str, Any]]:
    records = rows.frame.to_dicts()
    for row, details in zip(records, rows.details, strict=False):
        for name, value in details.items():
            row[name] = value.to_dicts() if isinstance(value, pl.DataFrame) else value
    return records


def _head(command: str, source: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {
        "schema_version": JSON_SCHEMA_VERSION,
        "traceana": __version__,
        "command": command,
        **(source or {}),
        "settings": {name: setting.value for name, setting in SETTINGS.items()},
    }


def _units(tables: Sequence[Rows]) -> dict[str, str]:
    columns: dict[str, None] = {}
    for rows in tables:
        columns |= dict.fromkeys(rows.frame.columns)
        for details in rows.details:
            frames = (value for value in details.values() if isinstance(value, pl.DataFrame))
            columns |= dict.fromkeys(name for frame in frames for name in frame.columns)
    declared = {column.name: column.unit for rows in tables for column in rows.columns}
    units = {name: declared.get(name) for name in columns}
    return {name: unit for name, unit in units.items() if unit is not None}


def _safe(frame: pl.DataFrame, write: Callable[[str], str]) -> pl.DataFrame:
    texts = [name for name, dtype in frame.schema.items() if dtype == pl.String]
    return frame.with_columns(
        pl.Series(name, [None if v is None else write(v) for v in frame[name]], dtype=pl.String)
        for name in texts
    )


def _no_formula(text: str) -> str:
    shown = plain(text)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown
