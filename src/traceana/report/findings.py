"""What the rules of :mod:`traceana.advise` find, in sentences and as a table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from traceana.report import human, words
from traceana.report.columns import shown
from traceana.report.kinds import Kind, kind_of
from traceana.report.text import cut_end

if TYPE_CHECKING:
    from traceana.advise import Advice, Finding, Rule
    from traceana.result import Arranged

FRAMEWORKS: Final[dict[str, str]] = {
    "pytorch": "PyTorch",
    "tensorflow": "TensorFlow",
    "jax": "JAX",
}
"""Columns with what to change, and what the framework is called."""

SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "rule": pl.String,
    "title": pl.String,
    "kind": pl.String,
    "saving_ns": pl.Int64,
    "saving_share": pl.Float64,
    "finding": pl.String,
    "estimate": pl.String,
    "caveat": pl.String,
    **dict.fromkeys(FRAMEWORKS, pl.String),
}

_LONGEST: Final = 60
_FIGURE: Final = re.compile(r"\{(\w+)\}")
_OPTIONAL: Final = re.compile(r"\[([^\[\]]*)\]")
_WORDS: Final = {"direction": words.part, "algorithm": words.part, "category": words.category}


def table(findings: Sequence[Finding]) -> pl.DataFrame:
    """Return one row a finding: columns of :data:`SCHEMA`."""
    rows = [
        (
            *(finding.rule.id, finding.rule.title, finding.rule.kind),
            *(finding.saving_ns, finding.saving_share, sentence(finding)),
            *(finding.rule.estimate, finding.rule.caveat, *_changes(finding.rule)),
        )
        for finding in findings
    ]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def arranged(advice: Advice, table: Arranged) -> Advice:
    """Return the findings that ``table`` has rows of, in its order; a note on the others."""
    by_rule = {finding.rule.id: finding for finding in advice.findings}
    shown = tuple(by_rule[rule] for rule in table.frame["rule"])
    notes = advice.notes
    if table.hidden:
        notes = (f"{human.counted(table.hidden, 'finding')} more: --limit 0 shows all", *notes)
    return replace(advice, findings=shown, notes=notes)


def rules_table(rules: Sequence[Rule]) -> pl.DataFrame:
    """Return one row a rule: the columns of :data:`SCHEMA` that are of no trace."""
    rows = [
        (rule.id, rule.title, rule.kind, rule.estimate, rule.caveat, *_changes(rule))
        for rule in rules
    ]
    of_trace = ("saving_ns", "saving_share", "finding")
    schema = [(name, dtype) for name, dtype in SCHEMA.items() if name not in of_trace]
    return pl.DataFrame(rows, schema=schema, orient="row")


def sentence(finding: Finding) -> str:
    """Return what a finding says.

    A figure in braces is shown as a column of its name is; what stands in square brackets is left
    out where a figure in it is not known.
    """
    figures = finding.figures

    def known(match: re.Match[str]) -> str:
        inside = match.group(1)
        lacking = any(figures[name] is None for name in _FIGURE.findall(inside))
        return "" if lacking else inside

    template = _OPTIONAL.sub(known, finding.rule.sentence)
    return _FIGURE.sub(lambda match: _figure(match.group(1), figures), template.strip())


def saving(finding: Finding) -> str:
    """Return the saving for people: ``≈ 3.20 ms (12.3 %)``, ``≤`` for an upper bound."""
    match finding.rule.kind:
        case "measurement validity":
            return "affects measurement validity"
        case "no saving":
            return "no saving"
        case kind:
            sign = "≤" if kind == "upper bound" else "≈"
            share = human.share(finding.saving_share)
            return f"{sign} {human.duration(finding.saving_ns)} ({share})"


def changes(finding: Finding, framework: str | None) -> list[tuple[str, str]]:
    """Return framework and change, of the trace's framework alone where that is known."""
    told = dict(zip(FRAMEWORKS.values(), _changes(finding.rule), strict=True))
    own = {name: change for name, change in told.items() if name == framework}
    return list((own or told).items())


def _changes(rule: Rule) -> tuple[str, str, str]:
    return rule.change.pytorch, rule.change.tensorflow, rule.change.jax


def _figure(name: str, figures: Mapping[str, Any]) -> str:
    value = figures[name]
    if value is None:
        return "unknown"
    if name in _WORDS:
        return _WORDS[name](value)
    text = shown(kind_of(name), value)
    return cut_end(text, _LONGEST) if kind_of(name) in (Kind.TEXT, Kind.KERNEL) else text
