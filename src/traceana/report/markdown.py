"""Markdown output, for pull requests and notes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from traceana.advise import Advice
from traceana.report import human
from traceana.report.columns import Shown, show
from traceana.report.document import Document
from traceana.report.findings import arranged, changes, saving, sentence
from traceana.report.header import header
from traceana.report.overview import Overview
from traceana.report.text import plain
from traceana.report.transfers.columns import COLUMNS
from traceana.result import Result, arrange

_COLUMNS: Final = {"transfers": COLUMNS}
"""The columns of those sections of the report that have more than people read."""

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~&!@])")


def render(document: Document) -> str:
    """Return ``document`` as a pipe table with its notes below; the report as one a section."""
    if document.overview is not None:
        return _report(document.overview)
    if document.advice is not None:
        framework = document.source.get("framework")
        advice = arranged(document.advice, document.table)
        return _advice(advice, framework, whole=document.records)
    return _table(document)


def _report(overview: Overview) -> str:
    title, *head = header(overview).plain.split("\n")
    parts = [f"# {escaped(title)}\n\n" + "".join(f"- {escaped(line)}\n" for line in head)]
    for name, result in overview.sections.items():
        body = _table(Document(name, arrange(result), columns=_COLUMNS.get(name, ())))
        parts.append(f"## {name}\n\n{body}")
    found = [f"{one.rule.id}, {saving(one)}: {sentence(one)}" for one in overview.top_findings]
    listed = "".join(f"- {escaped(plain(line))}\n" for line in found or overview.advice.notes)
    parts.append(f"## findings\n\n{listed}")
    return "\n".join(parts)


def _advice(advice: Advice, framework: str | None, *, whole: bool) -> str:
    parts = []
    for number, finding in enumerate(advice.findings, start=1):
        told = [
            ("found", sentence(finding)),
            ("estimate", finding.rule.estimate),
            ("caveat", finding.rule.caveat),
            *changes(finding, framework),
        ]
        lines = "".join(f"- **{name}**: {escaped(plain(text))}\n" for name, text in told)
        parts.append(
            f"## {number}. {escaped(finding.rule.id)}: {escaped(saving(finding))}\n\n{lines}"
        )
        if whole and finding.evidence.height:
            parts.append(_table(Document("evidence", arrange(Result(finding.evidence)))))
    parts.append("".join(f"- {escaped(plain(note))}\n" for note in advice.notes))
    return "\n".join(parts)


def escaped(text: str) -> str:
    """Return ``text`` so that Markdown shows it as it is."""
    return _MARKUP.sub(r"\\\1", text)


def _table(document: Document) -> str:
    table = document.table
    columns = show(table.frame, table.totals, document.columns or table.frame.columns)
    lines = []
    if columns:
        lines = pipe_table(columns)
        if table.totals:
            lines.append(_line(_totals(columns)))
    notes = list(table.notes)
    if table.hidden:
        notes.append(f"{human.counted(table.hidden, 'row')} more: --limit 0 shows all")
    if notes:
        lines += ["", *(f"- {escaped(plain(note))}" for note in notes)]
    return "\n".join(lines) + "\n"


def pipe_table(columns: Sequence[Shown]) -> list[str]:
    """Return the lines of a table of ``columns``."""
    return [
        _line(escaped(_title(column)) for column in columns),
        _line("---:" if column.right else "---" for column in columns),
        *(_line(map(escaped, cells)) for cells in zip(*(c.cells for c in columns), strict=True)),
    ]


def _title(column: Shown) -> str:
    return f"{column.title} ({column.unit})" if column.unit else column.title


def _totals(columns: list[Shown]) -> list[str]:
    cells = [f"**{column.total}**" if column.total else "" for column in columns]
    return [cells[0] or "**total**", *cells[1:]]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
