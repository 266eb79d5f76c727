"""A table of text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from traceana.report import human
from traceana.report.columns import Kind, Shown, show
from traceana.report.document import Document, Paper
from traceana.report.text import plain


def render(document: Document, paper: Paper) -> str:
    """Return ``document`` as a table as wide as ``paper``, with its totals and notes."""
    table = document.table
    frame = table.frame
    wanted = [c for c in document.columns or frame.columns if frame[c].null_count() < frame.height]
    columns = [show(frame[column], table.totals.get(column)) for column in wanted]
    parts: list[Any] = []
    if frame.height:
        parts.append(grid(columns, _hidden(document), footer=bool(table.totals)))
    parts += [Text(plain(note), style="dim") for note in table.notes]
    return draw(parts, paper)


def grid(columns: list[Shown], hidden: str | None = None, *, footer: bool = False) -> Table:
    """Return a rich table of ``columns``; ``hidden`` says what is not shown of it."""
    table = Table(
        box=box.SIMPLE_HEAD,
        show_footer=footer,
        pad_edge=False,
        show_edge=False,
        caption=None if hidden is None else Text(hidden),
        caption_justify="left",
        header_style="bold",
        footer_style="bold",
    )
    for number, column in enumerate(columns):
        table.add_column(
            Text(column.title),
            footer=Text(column.total or ("total" if number == 0 else "")),
            justify="right" if column.right else "left",
            no_wrap=column.kind is not Kind.NAME or number == 0,
            overflow="ellipsis",
            ratio=1 if column.kind is Kind.NAME else None,
            style="bold" if column.kind is Kind.TIME and column.title.startswith("time") else "",
        )
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*(Text(cell) for cell in cells))
    return table


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
        console.print(part)
    return "\n".join(line.rstrip() for line in buffer.getvalue().split("\n"))


def _hidden(document: Document) -> str | None:
    table = document.table
    if not table.hidden:
        return None
    text = f"… {human.counted(table.hidden, 'row')} more"
    if "time_ns" in table.hidden_totals:
        text += f" with {human.duration(table.hidden_totals['time_ns'])}"
    return f"{text} (--limit 0 shows all)"
