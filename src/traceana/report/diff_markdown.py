"""The diff of two runs as Markdown, for a pull request."""

from __future__ import annotations

from dataclasses import replace

from traceana.report.diff_facts import Compared
from traceana.report.diff_lines import MOST_CHANGES, VERDICTS, head
from traceana.report.diff_sentences import sentence
from traceana.report.document import Document
from traceana.report.markdown import escaped
from traceana.report.markdown import render as render_markdown

_COLUMNS = ("a", "b", "confidence", "time_a_ns", "time_b_ns", "delta_ns", "relative", "verdict")


def render(document: Document, facts: Compared) -> str:
    """Return the summary: the verdict as title, what changed, the layers folded away."""
    title = VERDICTS[facts.step.verdict]
    lines = [f"- {escaped(line)}" for line in head(facts)]
    found = [sentence(row) for row in facts.changes.head(MOST_CHANGES).to_dicts()]
    told = [f"{n}. {escaped(line)}" for n, line in enumerate(found, start=1)]
    rows = render_markdown(replace(document, columns=_COLUMNS, compared=None))
    return (
        f"# {title[0].upper()}{title[1:]}\n\n"
        + "\n".join(lines)
        + "\n\n## What changed, most effect first\n\n"
        + ("\n".join(told) or "Nothing that changes the step.")
        + f"\n\n<details><summary>Layers, per step</summary>\n\n{rows}\n</details>\n"
    )
