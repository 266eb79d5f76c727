"""Runs a rule set over names: every rule over all open names at once, each distinct name once.

Patterns run in polars' Rust regular expressions, whose time is linear in the text whatever the
pattern. Names are only ever text to be searched, never patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.classify.attributes import complete
from traceana.classify.heads import heads_of
from traceana.classify.load import load_rules
from traceana.classify.rules_model import Rule, RuleSet
from traceana.classify.schema import CLASS_COLUMNS, CLASS_SCHEMA, FAMILY_OF_ALGORITHM

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def classify_names(names: Sequence[str] | pl.Series, rules: RuleSet | None = None) -> pl.DataFrame:
    """Classify kernel, copy and operator names; one row a name, in order, :data:`CLASS_SCHEMA`.

    ``rules`` defaults to traceana's own. A null in ``names`` is read as the empty name.
    """
    chosen = load_rules() if rules is None else rules
    given = pl.Series("name", names, dtype=pl.String).fill_null("")
    distinct = given.unique(maintain_order=True)
    classes = _classify_distinct(distinct, chosen)
    return given.to_frame().join(classes, on="name", how="left", maintain_order="left")


@dataclass(slots=True)
class _Open:
    """The names that no rule has decided yet."""

    names: pl.Series
    rows: Indices  # of `names` among all distinct names
    heads: pl.Series  # distinct heads
    head_of: Indices  # of each name, its row in `heads`

    @classmethod
    def start(cls, names: pl.Series, heads: pl.Series) -> _Open:
        rows = np.arange(len(names), dtype=np.int64)
        return cls(names, rows, *_distinct(heads))

    def without(self, matched: Indices) -> _Open:
        keep = np.ones(len(self.rows), dtype=np.bool_)
        keep[matched] = False
        kept = self.head_of[keep]
        used, head_of = np.unique(kept, return_inverse=True)
        heads = self.heads.gather(pl.Series(used))
        return _Open(self.names.filter(pl.Series(keep)), self.rows[keep], heads, head_of)


def _classify_distinct(names: pl.Series, rules: RuleSet) -> pl.DataFrame:
    heads = heads_of(names)
    deciding = deciding_rules(names, heads, rules.rules)
    classes = _rule_table(rules.rules)[deciding]
    frame = pl.DataFrame({"name": names}).hstack(classes)
    completed = complete(frame, heads, rules.attributes)
    family = pl.col("algorithm").replace_strict(FAMILY_OF_ALGORITHM, default=None)
    return completed.with_columns(family=family.cast(pl.String)).select(list(CLASS_SCHEMA))


def deciding_rules(names: pl.Series, heads: pl.Series, rules: Sequence[Rule]) -> Indices:
    """For each name the position of the first rule that matches it; the last one matches all."""
    deciding = np.full(len(names), len(rules) - 1, dtype=np.int64)
    undecided = _Open.start(names, heads)
    for position, rule in enumerate(rules):
        matched = _matching(rule, undecided)
        if len(matched):
            deciding[undecided.rows[matched]] = position
            undecided = undecided.without(matched)
    return deciding


def matches(rule: Rule, names: pl.Series, heads: pl.Series) -> bool:
    """Whether ``rule`` matches any of ``names``, whose heads are ``heads``."""
    return len(_matching(rule, _Open.start(names, heads))) > 0


def _matching(rule: Rule, undecided: _Open) -> Indices:
    if rule.head is None:
        rows = np.arange(len(undecided.rows), dtype=np.int64)
    else:
        head_matches = _contains(undecided.heads, rule.head)
        if not head_matches.any():
            return np.empty(0, dtype=np.int64)
        rows = np.flatnonzero(head_matches[undecided.head_of])
    if rule.name is not None and len(rows):
        rows = rows[_contains(undecided.names.gather(pl.Series(rows)), rule.name)]
    if rule.unless is not None and len(rows):
        rows = rows[~_contains(undecided.names.gather(pl.Series(rows)), rule.unless)]
    return rows


def _contains(texts: pl.Series, pattern: str) -> Mask:
    return texts.str.contains(pattern).to_numpy()


def _distinct(texts: pl.Series) -> tuple[pl.Series, Indices]:
    """The distinct texts, and for each text the position of its distinct one."""
    distinct = texts.unique(maintain_order=True)
    table = pl.DataFrame({"text": distinct}).with_row_index("position")
    joined = (
        texts.rename("text").to_frame().join(table, on="text", how="left", maintain_order="left")
    )
    return distinct, joined["position"].cast(pl.Int64).to_numpy()


def _rule_table(rules: Sequence[Rule]) -> pl.DataFrame:
    """One row a rule: the columns that it sets."""
    columns = {name: [rule.columns.get(name) for rule in rules] for name in CLASS_COLUMNS}
    table = pl.DataFrame(columns, schema=CLASS_COLUMNS)
    return table.with_columns(rule=pl.Series([rule.id for rule in rules], dtype=pl.String))
