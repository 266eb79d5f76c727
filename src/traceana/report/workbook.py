"""A page as an Excel workbook: a sheet per table, with exact values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from traceana.errors import MissingDependencyError, how_to_install
from traceana.plain_text import plain
from traceana.report.page import Facts, Heading, Notes, Page, Single, Table, in_order

if TYPE_CHECKING:
    from xlsxwriter import Workbook

_MOST_ROWS: Final = 1_048_576 - 1
_MOST_CHARACTERS: Final = 32_767
_LONGEST_NAME: Final = 31
_EXACT: Final = 1 << 53
"""A cell is a float64; larger integers are written as text."""
_WIDEST: Final = 60


def render(page: Page) -> bytes:
    """Return ``page`` as a workbook.

    The first sheet has the facts and notes; each other sheet a table, with the name of the column
    and its unit in the first row (``time_ns``: nanoseconds), integers and fractions as they are. A
    sheet holds 1,048,575 rows; a line in the first sheet has the number of the others. Raises
    :class:`~traceana.errors.MissingDependencyError` without XlsxWriter.
    """
    try:
        from xlsxwriter import Workbook
    except ImportError as error:
        raise MissingDependencyError(f"XLSX needs XlsxWriter: {how_to_install('excel')}") from error
    buffer = BytesIO()
    # Text of a trace is never a formula or a link.
    options = {
        **{"in_memory": True, "strings_to_formulas": False, "strings_to_urls": False},
        **{"strings_to_numbers": False, "nan_inf_to_errors": True},
    }
    with Workbook(buffer, options) as book:
        # Equal pages make equal files.
        book.set_properties({"created": datetime(2000, 1, 1, tzinfo=UTC).replace(tzinfo=None)})
        summary = book.add_worksheet("summary")
        lines = [*_facts(in_order(page.blocks))]
        for name, table in _tables(page):
            _write(book, _free(book, name), table)
            if table.frame.height > _MOST_ROWS:
                lines.append((name, f"{table.frame.height - _MOST_ROWS:,} more rows, left out"))
        bold = book.add_format({"bold": True})
        for at, (label, text) in enumerate(lines):
            summary.write_string(at, 0, _value(label), bold)
            summary.write_string(at, 1, _value(text))
        widest = max((len(label) for label, _ in lines), default=0)
        summary.set_column(0, 0, min(widest + 2, _WIDEST))
    return buffer.getvalue()


def _tables(page: Page) -> Iterator[tuple[str, Table]]:
    """Yield the tables of ``page`` with names of sheets."""
    for block in in_order(page.blocks):
        if isinstance(block, Table):
            yield block.columns[0].title if block.columns else page.command, block
    for section in page.sections:
        for block in in_order(section.blocks):
            if isinstance(block, Table):
                yield section.name, block


def _facts(blocks: Iterable[Single]) -> Iterator[tuple[str, str]]:
    for block in blocks:
        match block:
            case Heading(text, remark):
                yield text, remark
            case Facts(rows) | Notes(rows):
                yield from rows


def _free(book: Workbook, name: str) -> str:
    """Return ``name`` as the name of a new sheet: without forbidden characters, not used yet."""
    cleaned = "".join("_" if letter in "[]:*?/\\'" else letter for letter in plain(name)) or "table"
    used = {sheet.get_name().lower() for sheet in book.worksheets()}
    number = 1
    while True:
        suffix = f" {number}" if number > 1 else ""
        title = cleaned[: _LONGEST_NAME - len(suffix)] + suffix
        if title.lower() not in used:
            return title
        number += 1


def _write(book: Workbook, name: str, table: Table) -> None:
    sheet = book.add_worksheet(name)
    bold = book.add_format({"bold": True})
    percent = book.add_format({"num_format": "0.0%"})
    frame = table.frame.head(_MOST_ROWS)
    for at, column in enumerate(table.columns):
        unit = column.unit
        share = unit == "fraction of 1"
        title = column.name if unit is None or share else f"{column.name} ({unit})"
        sheet.write_string(0, at, title, bold)
        values = [_value(value) for value in frame[column.name]]
        sheet.write_column(1, at, values, percent if share else None)
        longest = max((len(str(value)) for value in values[:1000]), default=0)
        sheet.set_column(at, at, min(max(longest, len(title)) + 2, _WIDEST))
    sheet.freeze_panes(1, 0)
    if table.columns and frame.height:
        sheet.autofilter(0, 0, frame.height, len(table.columns) - 1)


def _value(value: Any) -> Any:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _EXACT else str(value)
    return plain(str(value))[:_MOST_CHARACTERS]
