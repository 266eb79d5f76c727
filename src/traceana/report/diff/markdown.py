"""The diff of two runs as Markdown, for a pull request."""

from __future__ import annotations

from dataclasses import replace

from traceana.report.diff.facts import SUMMARY, Compared
from traceana.report.diff.lines import VERDICTS, changes, head, nothing
from traceana.report.document import Document
from traceana.report.markdown import escaped
from traceana.report.markdown import render as render_markdown


def render(document: Document, facts: Compared) -> str:
    """Return the summary: the verdict as title, what changed, the layers folded away."""
    title = VERDICTS[facts.step.verdict]
    lines = [f"- {escaped(line)}" for line in head(facts)]
    number = 1
    for heading, told in changes(facts):
        lines += ["", f"## {heading}", ""]
        lines += [f"{n}. {escaped(line)}" for n, line in enumerate(told, start=number)]
        lines += [] if told else [nothing(facts)]
        number += len(told)
    rows = render_markdown(replace(document, columns=SUMMARY, compared=None))
    per = "whole run" if facts.whole else "per step"
    return (
        f"# {title[0].upper()}{title[1:]}\n\n"
        + "\n".join(lines)
        + f"\n\n<details><summary>Layers, {per}</summary>\n\n{rows}\n</details>\n"
    )
