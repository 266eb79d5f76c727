"""Why a name is of its class: the rule that decided, and those that would have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceana.enrich.classify.rules_model import ClassValue, RuleSet


@dataclass(frozen=True, slots=True)
class Explanation:
    """The class of one name and how it came about.

    ``also_matched`` are the ids of the rules after the deciding one that match too, in the order
    in which they would have been tried.
    """

    name: str
    head: str
    rule: str
    reason: str
    file: str
    also_matched: tuple[str, ...]
    columns: Mapping[str, ClassValue | None]


def explain(name: str, rules: RuleSet | None = None) -> Explanation:
    """Explain the class of ``name`` under ``rules`` (traceana's own where none are given)."""
    import polars as pl

    from traceana.enrich.classify.engine import classify_names, matches
    from traceana.enrich.classify.heads import heads_of
    from traceana.enrich.classify.load import load_rules
    from traceana.enrich.classify.spelling import canonical

    chosen = load_rules() if rules is None else rules
    names = canonical(pl.Series("name", [name], dtype=pl.String))
    heads = heads_of(names)
    matched = list(compress(chosen.rules, matches(chosen.rules, names, heads)))
    row = classify_names([name], chosen).row(0, named=True)
    deciding = matched[0]
    return Explanation(
        name=name,
        head=heads[0],
        rule=deciding.id,
        reason=deciding.reason,
        file=deciding.file,
        also_matched=tuple(rule.id for rule in matched[1:]),
        columns={key: value for key, value in row.items() if key not in ("name", "rule")},
    )
