"""The diff of two runs on one screen."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from traceana.report.columns import show
from traceana.report.diff_facts import Compared
from traceana.report.diff_lines import MOST_CHANGES, MOST_LAYERS, head
from traceana.report.diff_sentences import sentence
from traceana.report.document import Document, Paper
from traceana.report.grid import compact
from traceana.report.screen import WIDEST
from traceana.report.terminal import draw
from traceana.report.text import plain

_COLUMNS = (*("a", "b", "confidence", "time_a_ns", "time_b_ns", "delta_ns", "relative", "verdict"),)


def render(document: Document, facts: Compared, paper: Paper) -> str:
    """Return the summary of a diff as text, at most :data:`WIDEST` characters wide."""
    paper = Paper(min(paper.width, WIDEST), paper.colour)
    lines = head(facts)
    parts: list[Any] = [Text(line) for line in lines[:2]]
    parts += [Text(lines[2], style="bold"), *(Text(line) for line in lines[3:])]
    parts += [Text(""), Text("What changed, most effect first", style="bold")]
    parts += _changes(facts.changes.head(MOST_CHANGES).to_dicts())
    if facts.changes.height > MOST_CHANGES:
        more = facts.changes.height - MOST_CHANGES
        parts.append(Text(f"… {more} more (--format json has them)", style="dim"))
    top = document.table.frame.head(MOST_LAYERS)
    parts += [Text(""), *compact(show(top, {}, _COLUMNS), paper.width, ("confidence", "relative"))]
    hidden = document.table.frame.height + document.table.hidden - top.height
    if hidden:
        parts.append(Text(f"… {hidden} more rows (--by layer)", style="dim"))
    parts += [Text(""), *(Text(plain(note), style="dim") for note in document.table.notes)]
    return draw(parts, paper)


def _changes(rows: list[dict[str, Any]]) -> list[Any]:
    if not rows:
        return [Text("Nothing that changes the step.")]
    table = Table.grid(padding=(0, 1, 0, 0))
    for number, row in enumerate(rows, start=1):
        table.add_row(f"{number}.", Text(sentence(row)))
    return [table]
