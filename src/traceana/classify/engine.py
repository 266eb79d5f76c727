"""Runs a rule set over names: every rule over all open names at once, each distinct name once.

Patterns run in polars' Rust regular expressions, whose time is linear in the text whatever the
pattern. Names are only ever text to be searched, never patterns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.classify.attributes import complete
from traceana.classify.heads import heads_of
from traceana.classify.load import load_rules
from traceana.classify.rules_model import Rule, RuleSet
from traceana.classify.schema import CLASS_COLUMNS, CLASS_SCHEMA, FAMILY_OF_ALGORITHM
from traceana.classify.spelling import canonical

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def classify_names(names: Sequence[str] | pl.Series, rules: RuleSet | None = None) -> pl.DataFrame:
    """Classify kernel, copy and operator names; one row a name, in order, :data:`CLASS_SCHEMA`.

    ``rules`` defaults to traceana's own. A null in ``names`` is read as the empty name.
    """
    chosen = load_rules() if rules is None else rules
    given = pl.Series("name", names, dtype=pl.String).fill_null("")
    if given.is_empty():
        return pl.DataFrame(schema=CLASS_SCHEMA)
    distinct = given.unique(maintain_order=True)
    classes = _classify_distinct(distinct, chosen)
    return given.to_frame().join(classes, on="name", how="left", maintain_order="left")


class _Undecided:
    """The names that no rule has decided yet, grouped by their heads.

    Most rules look at heads, of which there are far fewer than names, and a head is dropped as soon
    as all its names are decided.
    """

    def __init__(self, names: pl.Series, heads: pl.Series) -> None:
        self._names = names
        self._open = np.ones(len(names), dtype=np.bool_)
        distinct, head_of = _distinct(heads)
        self._rows = np.argsort(head_of, kind="stable")  # rows of `names`, head by head
        self._counts = np.bincount(head_of, minlength=len(distinct))
        self._heads = distinct

    def matching(self, rule: Rule) -> Indices:
        """The rows of the undecided names that ``rule`` matches."""
        if rule.head is None:
            rows = self._rows
        else:
            matched = _contains(self._heads, rule.head)
            if not matched.any():
                return np.empty(0, dtype=np.int64)
            rows = self._rows[np.repeat(matched, self._counts)]
        rows = rows[self._open[rows]]
        if rule.name is not None and len(rows):
            rows = rows[_contains(self._names.gather(rows), rule.name)]
        if rule.unless is not None and len(rows):
            rows = rows[~_contains(self._names.gather(rows), rule.unless)]
        return rows

    def decide(self, rows: Indices) -> None:
        """Take ``rows`` out; heads without undecided names are no longer searched."""
        self._open[rows] = False
        still = self._open[self._rows]
        group = np.repeat(np.arange(len(self._counts)), self._counts)[still]
        counts = np.bincount(group, minlength=len(self._counts))
        self._rows = self._rows[still]
        live = counts > 0
        if not live.all():
            self._heads = self._heads.filter(pl.Series(live))
        self._counts = counts[live]


def _classify_distinct(names: pl.Series, rules: RuleSet) -> pl.DataFrame:
    texts = canonical(names)
    heads = heads_of(texts)
    deciding = deciding_rules(texts, heads, rules.rules)
    classes = _rule_table(rules.rules)[deciding]
    completed = complete(classes, texts, heads, rules.attributes).with_columns(name=names)
    family = pl.col("algorithm").replace_strict(FAMILY_OF_ALGORITHM, default=None)
    return completed.with_columns(family=family.cast(pl.String)).select(list(CLASS_SCHEMA))


def deciding_rules(names: pl.Series, heads: pl.Series, rules: Sequence[Rule]) -> Indices:
    """For each name the position of the first rule that matches it; the last one matches all.

    ``names`` are in their canonical spelling, ``heads`` their heads.
    """
    deciding = np.full(len(names), len(rules) - 1, dtype=np.int64)
    undecided = _Undecided(names, heads)
    for position, rule in enumerate(rules):
        rows = undecided.matching(rule)
        if len(rows):
            deciding[rows] = position
            undecided.decide(rows)
    return deciding


def matches(rule: Rule, names: pl.Series, heads: pl.Series) -> bool:
    """Whether ``rule`` matches any of ``names``, whose heads are ``heads``."""
    return len(_Undecided(names, heads).matching(rule)) > 0


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
