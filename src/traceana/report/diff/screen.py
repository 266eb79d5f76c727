"""The diff of two runs on one screen."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from traceana.report.columns import show
from traceana.report.diff.facts import SUMMARY, Compared
from traceana.report.diff.lines import MOST_CHANGES, MOST_LAYERS, changes, head, nothing
from traceana.report.document import Document, Paper
from traceana.report.grid import compact
from traceana.report.screen import WIDEST
from traceana.report.terminal import draw
from traceana.report.text import plain


def render(document: Document, facts: Compared, paper: Paper) -> str:
    """Return the summary of a diff as text, at most :data:`WIDEST` characters wide."""
    paper = Paper(min(paper.width, WIDEST), paper.colour)
    lines = head(facts)
    parts: list[Any] = [Text(line) for line in lines[:2]]
    parts += [Text(lines[2], style="bold"), *(Text(line) for line in lines[3:])]
    number = 1
    for title, told in changes(facts):
        parts += [Text(""), Text(title, style="bold")]
        parts.append(_numbered(told, number) if told else Text(nothing(facts)))
        number += len(told)
    if facts.changes.height > MOST_CHANGES:
        more = facts.changes.height - MOST_CHANGES
        parts.append(Text(f"… {more} more (--format json has them)", style="dim"))
    top = document.table.frame.head(MOST_LAYERS)
    parts += [Text(""), *compact(show(top, {}, SUMMARY), paper.width, ("confidence", "relative"))]
    hidden = document.table.frame.height + document.table.hidden - top.height
    if hidden:
        parts.append(Text(f"… {hidden} more rows (--by layer)", style="dim"))
    parts += [Text(""), *(Text(plain(note), style="dim") for note in document.table.notes)]
    return draw(parts, paper)


def _numbered(lines: list[str], first: int) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    for number, line in enumerate(lines, start=first):
        table.add_row(f"{number}.", Text(line))
    return table
