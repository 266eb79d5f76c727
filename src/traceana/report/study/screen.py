"""A study on a screen and in Markdown: what was measured on what, its tables, what is missing."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from traceana.report import human
from traceana.report.columns import Shown, show
from traceana.report.document import Document, Paper
from traceana.report.grid import grid
from traceana.report.markdown import escaped, pipe_table
from traceana.report.study.columns import LAYOUTS, SECTIONS
from traceana.report.study.table import printed, tables
from traceana.report.terminal import draw
from traceana.report.text import plain
from traceana.result import Arranged
from traceana.study.study import Study


def render_screen(document: Document, study: Study, paper: Paper) -> str:
    """Return ``study`` as text as wide as ``paper``."""
    layout = LAYOUTS[study.name]
    table = document.table
    parts: list[Any] = [Text(plain(study.title), style="bold")]
    parts += [Text(plain(line), style="dim") for line in study.on]
    for columns in tables(table.frame, layout, paper.width):
        parts += [Text(""), *grid(columns, paper.width)]
    for source, columns in printed(table.frame, layout).items():
        parts += [Text(""), Text(plain(source), style="bold"), *grid(columns, paper.width)]
    if table.hidden:
        parts.append(Text(f"… {human.counted(table.hidden, 'row')} more (--limit 0 shows all)"))
    for name, result in study.sections.items():
        parts += [Text(""), Text(SECTIONS[name], style="bold")]
        parts += grid(show(result.frame, {}, result.frame.columns), paper.width)
    notes = [plain(note) for note in (*table.notes, *study.missing)]
    parts += [Text(""), *(Text(note, style="dim") for note in notes)] if notes else []
    return draw(parts, paper)


def render_markdown(document: Document, study: Study) -> str:
    """Return ``study`` as Markdown."""
    table = document.table
    parts = [f"# {escaped(plain(study.title))}\n"]
    parts.append("".join(f"{escaped(plain(line))}\n" for line in study.on))
    layout = LAYOUTS[study.name]
    parts += [_piped(columns) for columns in tables(table.frame, layout)]
    for source, columns in printed(table.frame, layout).items():
        parts.append(f"## {escaped(plain(source))}\n\n{_piped(columns)}")
    for name, result in study.sections.items():
        rows = _piped(show(result.frame, {}, result.frame.columns))
        parts.append(f"## {escaped(SECTIONS[name])}\n\n{rows}")
    notes = [*table.notes, *_hidden(table), *study.missing]
    parts.append("".join(f"- {escaped(plain(note))}\n" for note in notes))
    return "\n".join(part for part in parts if part)


def _piped(columns: list[Shown]) -> str:
    return "\n".join(pipe_table(columns)) + "\n"


def _hidden(table: Arranged) -> list[str]:
    if not table.hidden:
        return []
    return [f"{human.counted(table.hidden, 'row')} more: --limit 0 shows all"]
