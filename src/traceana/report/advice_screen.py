"""Findings for people: numbered, with what they would save and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table
from rich.text import Text

from traceana.report.columns import show
from traceana.report.document import Paper
from traceana.report.findings import changes, saving, sentence
from traceana.report.grid import grid
from traceana.report.terminal import draw
from traceana.report.text import cut_end, plain

if TYPE_CHECKING:
    from traceana.advise import Advice, Finding

EVIDENCE_ROWS: Final = 12
_BROKEN: Final = 9
"""Characters of a line that its number takes, and that a word too long for it leaves."""


def render(advice: Advice, framework: str | None, paper: Paper, *, whole: bool = False) -> str:
    """Return ``advice`` as text; ``whole`` with estimate, doubt, all changes and the evidence."""
    parts: list[Any] = []
    for number, finding in enumerate(advice.findings, start=1):
        parts += (
            [Text(""), *_finding(number, finding, framework)]
            if parts
            else _finding(number, finding, framework)
        )
        if whole:
            parts += _evidence(finding, paper.width)
    parts += [Text("")] if parts else []
    parts += [Text(plain(note), style="dim") for note in advice.notes]
    return draw(parts, paper)


def brief_list(findings: Sequence[Finding], width: int) -> Table:
    """Return findings, what they would save and what they say, in two lines of ``width`` each."""
    table = Table.grid(padding=(0, 1, 0, 0))
    for number, finding in enumerate(findings, start=1):
        line = Text(finding.rule.id, style="bold")
        said = f", {saving(finding)}: {plain(sentence(finding))}"
        # A line that breaks between words is shorter than the paper.
        room = max(2 * (width - _BROKEN), 1) - len(line)
        line.append(cut_end(said, room), style="not bold")
        table.add_row(f"{number}.", line)
    return table


def _finding(number: int, finding: Finding, framework: str | None) -> list[Any]:
    head = Text(f"{number}. {finding.rule.id}", style="bold")
    head.append(f"  {saving(finding)}", style="not bold cyan")
    return [head, _block(_lines(finding, framework))]


def _block(lines: Iterator[tuple[str, str]]) -> Table:
    block = Table.grid(padding=(0, 2, 0, 0))
    block.add_column(width=13)
    block.add_column()
    for title, text in lines:
        block.add_row(Text(f"   {title}", style="dim"), Text(plain(text)))
    return block


def _lines(finding: Finding, framework: str | None) -> Iterator[tuple[str, str]]:
    yield "found", sentence(finding)
    yield "estimate", finding.rule.estimate
    yield "caveat", finding.rule.caveat
    yield from changes(finding, framework)


def _evidence(finding: Finding, width: int) -> list[Any]:
    frame = finding.evidence.head(EVIDENCE_ROWS)
    columns = show(frame, {}, frame.columns)
    if not columns:
        return []
    parts: list[Any] = [Text(""), *grid(columns, width)]
    hidden = finding.evidence.height - frame.height
    if hidden:
        parts.append(Text(f"… {hidden:,} rows more: --format json has all"))
    return parts
