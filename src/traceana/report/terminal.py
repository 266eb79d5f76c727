"""A table of text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from traceana.report import human
from traceana.report.bars import PATTERN, bars
from traceana.report.columns import Shown, show, title_of
from traceana.report.document import Document, Paper
from traceana.report.grid import grid, narrowed
from traceana.report.text import plain

BAR: Final = "bar"
"""The name among a table's optional columns of the one with bars."""
_BAR_WIDTH: Final = 12


def render(document: Document, paper: Paper) -> str:
    """Return ``document`` as a table as wide as ``paper``, with its totals and notes."""
    table = document.table
    frame = table.frame
    named = document.columns or tuple(frame.columns)
    columns = show(frame, table.totals, [column for column in named if column != BAR])
    parts: list[Any] = []
    if document.records:
        parts += _records(columns)
    elif columns:
        if document.bars is not None:
            titles = [column.title for column in columns]
            place = (
                titles.index(title_of(document.bars)) + 1
                if title_of(document.bars) in titles
                else 0
            )
            columns[place:place] = [bars(frame[document.bars], _BAR_WIDTH)] if place else []
        optional = ["" if c == BAR else title_of(c) for c in document.optional]
        lines = grid(
            narrowed(columns, paper.width, optional), paper.width, footer=bool(table.totals)
        )
        for line in lines:
            line.highlight_regex(PATTERN, "cyan")
        parts += lines
    if table.hidden:
        parts.append(Text(_hidden(document)))
    parts += [Text(plain(note), style="dim") for note in table.notes]
    return draw(parts, paper)


def _records(columns: list[Shown]) -> list[Any]:
    parts: list[Any] = []
    for row in zip(*(column.cells for column in columns), strict=True):
        block = Table.grid(padding=(0, 2, 0, 0))
        for column, cell in zip(columns, row, strict=True):
            if cell:
                block.add_row(Text(column.title, style="dim"), Text(cell, overflow="fold"))
        parts += [Text(""), block] if parts else [block]
    return parts


def draw(parts: Iterable[Any], paper: Paper) -> str:
    """Return rich renderables as text: with ANSI colours where ``paper`` takes them."""
    buffer = StringIO()
    console = Console(
        file=buffer,
        width=paper.width,
        force_terminal=paper.colour,
        color_system="standard" if paper.colour else None,
        no_color=not paper.colour,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for part in parts:
        # A line that does not wrap is longer than the paper rather than cut: nothing is lost.
        whole = isinstance(part, Text) and bool(part.no_wrap)
        console.print(part, soft_wrap=whole)
    return "\n".join(line.rstrip() for line in buffer.getvalue().split("\n"))


def _hidden(document: Document) -> str:
    table = document.table
    text = f"… {human.counted(table.hidden, 'row')} more"
    if "time_ns" in table.hidden_totals:
        text += f" with {human.duration(table.hidden_totals['time_ns'])}"
    return f"{text} (--limit 0 shows all)"
