"""Markdown output, for pull requests and notes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from traceana.analyze.arrange import arrange
from traceana.analyze.overview import Overview
from traceana.report import human
from traceana.report.columns import Shown, show
from traceana.report.document import Document
from traceana.report.findings import sentence
from traceana.report.header import header
from traceana.report.text import plain
from traceana.report.transfer_columns import COLUMNS

_COLUMNS: Final = {"transfers": COLUMNS}
"""The columns of those sections of the report that have more than people read."""

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~&!@])")


def render(document: Document) -> str:
    """Return ``document`` as a pipe table with its notes below; the report as one a section."""
    if document.overview is None:
        return _table(document)
    return _report(document.overview)


def _report(overview: Overview) -> str:
    title, *head = header(overview).plain.split("\n")
    parts = [f"# {escaped(title)}\n\n" + "".join(f"- {escaped(line)}\n" for line in head)]
    for name, result in overview.sections.items():
        body = (
            _findings(overview)
            if name == "attention"
            else _table(Document(name, arrange(result), columns=_COLUMNS.get(name, ())))
        )
        parts.append(f"## {name}\n\n{body}")
    return "\n".join(parts)


def _findings(overview: Overview) -> str:
    found = [" ".join(sentence(row)) for row in overview.attention.frame.to_dicts()]
    return "".join(f"- {escaped(line)}\n" for line in found or overview.attention.notes)


def escaped(text: str) -> str:
    """Return ``text`` so that Markdown shows it as it is."""
    return _MARKUP.sub(r"\\\1", text)


def _table(document: Document) -> str:
    table = document.table
    columns = show(table.frame, table.totals, document.columns or table.frame.columns)
    lines = []
    if columns:
        lines.append(_line(escaped(_title(column)) for column in columns))
        lines.append(_line("---:" if column.right else "---" for column in columns))
        lines += [
            _line(map(escaped, cells)) for cells in zip(*(c.cells for c in columns), strict=True)
        ]
        if table.totals:
            lines.append(_line(_totals(columns)))
    notes = list(table.notes)
    if table.hidden:
        notes.append(f"{human.counted(table.hidden, 'row')} more: --limit 0 shows all")
    if notes:
        lines += ["", *(f"- {escaped(plain(note))}" for note in notes)]
    return "\n".join(lines) + "\n"


def _title(column: Shown) -> str:
    return f"{column.title} ({column.unit})" if column.unit else column.title


def _totals(columns: list[Shown]) -> list[str]:
    cells = [f"**{column.total}**" if column.total else "" for column in columns]
    return [cells[0] or "**total**", *cells[1:]]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
