"""Blocks of a page as HTML elements; text from the trace is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from markupsafe import Markup

from traceana.report.cells import BAR, Cells, cells_of
from traceana.report.columns import Kind
from traceana.report.html.panels import charts
from traceana.report.page import Block, Table
from traceana.report.text import cut_distinct, cut_end, plain

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_CHARACTERS: Final = 2_000
"""Characters of a text; a longer one is cut with an ellipsis."""

LONGEST_KERNEL: Final = 64
"""Characters of a kernel's name, about two lines; its exact value is shown on demand."""

LONGEST_UNBROKEN: Final = 30
"""Characters of text that no table breaks into lines for lack of width."""


@cache
def environment() -> Environment:
    """Return the templates, which escape every text that they insert."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("traceana.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    made.filters["kind"] = _kind
    made.filters["grid"] = grid
    made.filters["section"] = section
    made.filters["charts"] = charts
    return made


def _shown(value: Any) -> Any:
    """Return text as one line without invisible and control characters, cut if it is very long."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return _cut(plain(value))


_SECTIONS: Final = {"advise": "recommendations", "flops": "roofline", "info": "trace"}
"""Sections of a report that have another name than their command."""


def section(text: str) -> str:
    """Return the section that shows what the command ``text`` begins with prints."""
    command = text.strip("()").removeprefix("traceana ").split(" ", 1)[0].rstrip(":")
    return _SECTIONS.get(command, command)


def _kind(block: Block) -> str:
    """Return the name of the template's macro for ``block``."""
    return type(block).__name__.lower()


class Cell(msgspec.Struct, frozen=True):
    """A cell: its text, and its exact value where the text is rounded or cut, else empty."""

    text: str
    exact: str = ""


class Grid(msgspec.Struct, frozen=True):
    """The cells of a table: its columns, the rows, the totals, and the share of each bar.

    ``wide`` has for each column whether a cell of it is longer than :data:`LONGEST_UNBROKEN`.
    """

    columns: list[Cells]
    rows: list[list[Cell]]
    totals: list[str]
    bars: list[float]
    wide: list[bool]


def grid(table: Table) -> Grid:
    """Return the cells of ``table``, without the column of bars, whose lengths are numbers here."""
    columns = [column for column in cells_of(table) if column.name != BAR]
    exact = [list(_exact(table, column)) for column in columns]
    cells = zip(*(_distinct(column) for column in columns), strict=True)
    rows = [
        [Cell(text, "" if value == text else value) for text, value in zip(*pair, strict=True)]
        for pair in zip(cells, zip(*exact, strict=True), strict=True)
    ]
    totals: list[str] = []
    if columns and table.totals and table.layout == "ruled":
        totals = [column.total for column in columns]
        totals[0] = totals[0] or "total"
    wide = [
        column.long and max(map(len, column.cells), default=0) > LONGEST_UNBROKEN
        for column in columns
    ]
    return Grid(columns, rows, totals, list(_lengths(table)), wide)


def _distinct(column: Cells) -> list[str]:
    """Return the cells of ``column``, long names of kernels cut so that they stay different."""
    if column.kind is not Kind.KERNEL:
        return column.cells
    return cut_distinct(column.cells, LONGEST_KERNEL, cut_end)


def _exact(table: Table, column: Cells) -> Iterable[str]:
    return ("" if value is None else plain(str(value)) for value in table.frame[column.name])


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def _lengths(table: Table) -> Iterator[float]:
    """Yield the length of each row's bar, 1 for the longest; nothing without bars."""
    if table.bars is None:
        return
    values = [max(float(value or 0), 0.0) for value in table.frame[table.bars]]
    longest = max(values, default=0.0) or 1.0
    yield from (value / longest for value in values)
