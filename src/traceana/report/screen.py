"""The report: one run on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from traceana.report import human
from traceana.report.advice_screen import brief_list
from traceana.report.document import Paper
from traceana.report.header import header
from traceana.report.overview import Overview
from traceana.report.screen_tables import classes, copies, top_layers
from traceana.report.terminal import draw
from traceana.report.text import plain

WIDEST = 110
"""The screen does not stretch beyond this many characters: lines would be hard to follow."""


def render(overview: Overview, paper: Paper) -> str:
    """Return the report on ``overview`` as text, at most :data:`WIDEST` characters wide."""
    paper = Paper(min(paper.width, WIDEST), paper.colour)
    parts: list[Any] = [header(overview)]
    if overview.breakdown.frame.height:
        parts += _section(classes(overview, paper.width))
        parts += _section(top_layers(overview, paper.width))
        parts += _section(copies(overview, paper.width))
        parts += _section(_findings(overview, paper))
    parts += _section(_notes(overview))
    return draw(parts, paper)


def _section(body: Sequence[Any]) -> list[Any]:
    return [Text(""), *body] if body else []


def _findings(overview: Overview, paper: Paper) -> list[Any]:
    title = Text("What to change, most saving first", style="bold")
    found = overview.top_findings
    if not found:
        return [title, *(Text(plain(note)) for note in overview.advice.notes)]
    title.append(" (how, and how it is estimated: traceana advise)", style="not bold dim")
    return [title, brief_list(found, paper.width)]


def _notes(overview: Overview) -> list[Any]:
    notes = [plain(note) for note in overview.breakdown.notes]
    if overview.breakdown.frame.height:
        share = human.share(overview.unclassified)
        notes.insert(0, f"of no known class: {share} of the {overview.place} time")
    lines = [Text(note, style="dim") for note in notes]
    facts = overview.facts
    problems = [entry for entry in facts["ledger"] if entry["severity"] == "problem"]
    if problems:
        listed = ", ".join(f"{human.count(e['count'])} {plain(e['reason'])}" for e in problems)
        lines.append(Text(f"Integrity: {listed} (traceana info lists them)", style="yellow"))
    if facts["truncated"]:
        read = "an unknown part"
        if facts["bytes_read"] is not None and facts["bytes_total"]:
            share = human.share(facts["bytes_read"] / facts["bytes_total"])
            read = f"{share} of the {human.size(facts['bytes_total'])} that are there"
        lines.append(Text(f"The file ends in the middle: {read} was read.", style="yellow"))
    return lines
