"""Blocks of a page as HTML elements; text from the trace is escaped."""

from __future__ import annotations

import re
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import msgspec
from markupsafe import Markup, escape

from traceana.plain_text import plain
from traceana.report.cells import BAR, Cells, cells_of
from traceana.report.page import Block, Table
from traceana.report.text import cut_distinct, cut_end, cut_path
from traceana.table import Kind

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_CHARACTERS: Final = 2_000
"""Characters of a text; a longer one is cut with an ellipsis."""

LONGEST_KERNEL: Final = 64
"""Characters of a kernel's name, about two lines; its exact value is shown on demand."""

LONGEST_PATH: Final = 28
"""Characters of a layer's path in a table of many columns: its end distinguishes layers."""

LONGEST_UNBROKEN: Final = 24
"""Characters of text that no table breaks into lines for lack of width."""

_LONGEST_WORDS: Final = 14
"""Characters of text that a table of many columns does not break."""

_MANY: Final = 11
_STYLES: Final = {8: "tight", _MANY: "many", 15: "most"}
"""Number of columns -> class of wider tables in the style sheet, added to the classes above."""


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
    made.filters["command"] = command
    made.filters["terms"] = terms
    return made


def _shown(value: Any) -> Any:
    """Return text as one line without invisible and control characters, cut if it is very long."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    text = plain(value)
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def command(text: str) -> str:
    """Return the command that ``text`` begins with.

    It is empty for a machine format, which has the rows that the page leaves out.
    """
    if "--format" in text:
        return ""
    return text.strip("()").removeprefix("traceana ").split(" ", 1)[0].rstrip(":")


_TERMS: Final = {
    "exposed": "not overlapped with compute: no kernel runs at the same time",
    "queued": "launched before the work ahead of it ended, or long before its start",
    "capture": "from the first to the last activity on any device",
}
"""Terms that have a tooltip."""
_TERM: Final = re.compile(rf"\b({'|'.join(_TERMS)})\b")


def terms(text: str) -> Markup:
    """Return ``text`` with tooltips on the terms in it."""

    def explained(match: re.Match[str]) -> str:
        return f'<abbr title="{_TERMS[match[1]]}">{match[1]}</abbr>'

    return Markup(_TERM.sub(explained, str(escape(_shown(text)))))


def _kind(block: Block) -> str:
    """Return the name of the template's macro for ``block``."""
    return type(block).__name__.lower()


class Cell(msgspec.Struct, frozen=True):
    """A cell: its text, and its exact value where the text is rounded or cut, else empty."""

    text: str
    exact: str = ""


class Grid(msgspec.Struct, frozen=True):
    """The cells of a table: its columns, the rows, the totals, and the share of each bar.

    ``groups`` are titles above neighbouring columns with their number, empty without any.
    ``style`` has the classes of the table in the style sheet, ``styles`` those of a column's cells.
    ``heat`` is what the bars are of program text: a colour in the margin.
    """

    columns: list[Cells]
    groups: list[tuple[str, int]]
    rows: list[list[Cell]]
    totals: list[str]
    bars: list[float]
    heat: list[float]
    style: str
    styles: list[str]


def grid(table: Table) -> Grid:
    """Return the cells of ``table``, without the column of bars, whose lengths are numbers here."""
    columns = [column for column in cells_of(table) if column.name != BAR]
    exact = [
        ["" if value is None else plain(str(value)) for value in table.frame[column.name]]
        for column in columns
    ]
    crowded = len(columns) > _MANY
    shown = [_distinct(column, crowded=crowded) for column in columns]
    cells = zip(*shown, strict=True)
    rows = [
        [Cell(text, "" if value == text else value) for text, value in zip(*pair, strict=True)]
        for pair in zip(cells, zip(*exact, strict=True), strict=True)
    ]
    totals: list[str] = []
    if columns and table.totals and table.layout == "ruled":
        totals = [column.total for column in columns]
        totals[0] = totals[0] or "total"
    style = " ".join(["data", *(name for most, name in _STYLES.items() if len(columns) > most)])
    styles = [_style(column, crowded=crowded) for column in columns]
    # A table of many columns has no room for bars that can be seen.
    bars = [] if crowded or table.bars is None else table.bars_of(table.bars)
    is_text = any(column.kind is Kind.CODE for column in columns)
    bars, heat = ([], bars) if is_text else (bars, [])
    titles = [column.group for column in columns]
    groups = [(title, len([*members])) for title, members in groupby(titles)]
    groups = groups if any(title for title, _ in groups) else []
    return Grid(columns, groups, rows, totals, bars, heat, style, styles)


def _style(column: Cells, *, crowded: bool) -> str:
    """Return the class of the cells of ``column`` in the style sheet."""
    if column.right:
        return "n"
    if column.kind is Kind.CODE:
        return "code"
    longest = max(map(len, column.cells), default=0)
    if longest > LONGEST_UNBROKEN:
        return "long path" if crowded and column.kind is Kind.PATH else "long"
    return "words" if crowded and longest > _LONGEST_WORDS else ""


def _distinct(column: Cells, *, crowded: bool) -> list[str]:
    """Return the cells of ``column``, long names and paths cut so that they stay different."""
    if column.kind is Kind.KERNEL:
        return cut_distinct(column.cells, LONGEST_KERNEL, cut_end)
    if column.kind is Kind.PATH:
        width = LONGEST_PATH if crowded else LONGEST_KERNEL
        return cut_distinct(column.cells, width, cut_path)
    return column.cells
