"""Several runs side by side as Markdown."""

from __future__ import annotations

from dataclasses import replace

from traceana.report import human
from traceana.report.compare.beside import (
    Beside,
    item_columns,
    legend,
    run_columns,
    summary_columns,
)
from traceana.report.document import Document
from traceana.report.markdown import escaped, pipe_table
from traceana.report.text import plain


def render(document: Document, facts: Beside) -> str:
    """Return who the runs are, their table with a column a run and figure, and its notes."""
    shown = document.table
    lines = [*(f"- {escaped(line)}" for line in legend(facts)), ""]
    if facts.classes is not None:
        lines += pipe_table(summary_columns(shown.frame))
    elif shown.frame.height:
        columns = item_columns(shown.frame, facts.by)
        for run in run_columns(facts.table, shown.frame):
            columns += [replace(one, title=f"{run.title}: {one.title}") for one in run.columns]
        lines += pipe_table(columns)
    notes = list(shown.notes)
    if shown.hidden:
        notes.append(f"{human.counted(shown.hidden, 'row')} more: --limit 0 shows all")
    if notes:
        lines += ["", *(f"- {escaped(plain(note))}" for note in notes)]
    return "\n".join(lines) + "\n"
