"""The rows and columns of a result that the user chose."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import polars as pl
from msgspec.structs import replace

from traceana.errors import UsageError
from traceana.report.cells import DISPLAY_UNITS, value_text
from traceana.report.page import Page, Table
from traceana.result import Result, column_named, column_sum
from traceana.table import Column, Kind, by_name

ALL: Final = "all"
_FILTER: Final = re.compile(
    r"\s*(?P<column>[^=!<>~]+?)\s*(?P<how>[=!<>]=|[<>~])\s*(?P<value>.+?)\s*"
)
_AMOUNT: Final = re.compile(r"(?P<number>[-\u2212]?\d[\d,]*(?:\.\d+)?)\s*(?P<unit>\S*)")


def filtered(result: Result, text: str, titles: Callable[[], Mapping[str, str]]) -> Result:
    """Return ``result`` with the rows that ``text`` selects: ``class == GEMM``, ``time > 2 ms``.

    A column is named as in :func:`~traceana.result.arrange`. ``==`` and ``!=`` compare the value
    as the table or CSV shows it, ignoring case; ``~`` searches in the text; numbers without a unit
    have the unit of CSV. Rows without a value are not selected, except by ``!=``.

    Raises :class:`~traceana.errors.UsageError` on another form, and
    :class:`~traceana.errors.NoSuchSelectionError` on an unknown column.
    """
    match = _FILTER.fullmatch(text)
    if match is None:
        raise UsageError(f"--filter {text}: write COLUMN == VALUE, or !=, ~, <, <=, >, >=")
    frame = result.frame
    name = column_named(frame, match["column"], titles, "filter by")
    how, value = match["how"], match["value"]
    kinds = {column.name: column.kind for column in result.columns}
    kept = _compared(frame[name], kinds.get(name, Kind.TEXT), how, value)
    rows = frame.filter(kept)
    # Totals other than sums, such as a union of intervals, keep the value of all rows.
    totals = {
        column: column_sum(rows[column]) if column_sum(frame[column]) == total else total
        for column, total in result.totals.items()
    }
    note = f"filter {text}: {rows.height:,} of {frame.height:,} rows"
    return Result(rows, totals, (note, *result.notes), result.columns)


def _compared(values: pl.Series, kind: Kind, how: str, given: str) -> pl.Series:
    if how in ("==", "!=", "~"):
        wanted = given.casefold()
        shown: dict[Any, bool] = {}
        for value in values.drop_nulls().unique():
            texts = [str(value).casefold(), value_text(kind, value).casefold()]
            shown[value] = any(wanted in text if how == "~" else wanted == text for text in texts)
        equal = pl.Series([shown.get(value, False) for value in values], dtype=pl.Boolean)
        return ~equal if how == "!=" else equal
    if not values.dtype.is_numeric():
        raise UsageError(f"--filter: {values.name} is text: compare it by ==, != or ~")
    limit = _amount(kind, given)
    compare = {"<": values.lt, "<=": values.le, ">": values.gt, ">=": values.ge}[how]
    return compare(limit).fill_null(False)


def _amount(kind: Kind, text: str) -> float:
    """Return a number in the unit of the machine formats."""
    match = _AMOUNT.fullmatch(text)
    units: dict[str, float] = {name: factor for factor, name in DISPLAY_UNITS.get(kind, ())}
    units[""] = 1
    if kind is Kind.TIME:
        units["us"] = 1000
    if kind is Kind.SHARE:
        units["%"] = 0.01
    if match is None or match["unit"] not in units:
        allowed = ", ".join(unit for unit in units if unit)
        raise UsageError(f"--filter: {text} is not a number{f' with {allowed}' if allowed else ''}")
    return float(match["number"].replace(",", "").replace("\u2212", "-")) * units[match["unit"]]


def with_columns(page: Page, names: Sequence[str]) -> Page:
    """Return ``page`` with the columns ``names`` of its first table, in this order.

    ``all`` keeps every column, even if the terminal is narrow.

    Raises :class:`~traceana.errors.NoSuchSelectionError` on an unknown column.
    """
    at = next((at for at, block in enumerate(page.blocks) if isinstance(block, Table)), None)
    blocks = [
        replace(block, dropped=()) if isinstance(block, Table) else block for block in page.blocks
    ]
    if at is None or tuple(names) == (ALL,):
        return replace(page, blocks=tuple(blocks))
    table = blocks[at]
    assert isinstance(table, Table)
    by_title = {column.title.lower(): column.name for column in reversed(table.columns)}
    wanted = [column_named(table.frame, name, lambda: by_title, "show") for name in names]
    declared = by_name((*page.data.rows.columns, *table.columns))
    bars = table.bars if table.bars in wanted else None
    columns = tuple(declared.get(name) or Column(name) for name in wanted)
    blocks[at] = replace(table, columns=columns, bars=bars)
    rows, data = page.data.rows, page.data
    in_rows = [name for name in wanted if name in rows.frame.columns]
    if in_rows and data.whole is None:
        data = replace(data, rows=replace(rows, frame=rows.frame.select(in_rows)))
    return replace(page, blocks=tuple(blocks), data=data)
