"""Runs a rule set over names: every rule over all open names at once, each distinct name once.

Patterns run in polars' Rust regular expressions, whose time is linear in the text whatever the
pattern. Names are only ever text to be searched, never patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.enrich.classify.attributes import complete
from traceana.enrich.classify.heads import heads_of
from traceana.enrich.classify.literals import Words
from traceana.enrich.classify.load import load_rules
from traceana.enrich.classify.rules_model import Rule, RuleSet
from traceana.enrich.classify.schema import CLASS_COLUMNS, CLASS_SCHEMA, FAMILY_OF_ALGORITHM
from traceana.enrich.classify.spelling import canonical

Indices = npt.NDArray[np.int64]

_AT_ONCE: Final = 64
"""Rules that are run together; a name that one decides is still searched for those beside it."""


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
        self._in_names = Words(names)
        self._in_heads = Words(heads)
        self._open = np.ones(len(names), dtype=np.bool_)
        distinct, head_of = _distinct(heads)
        self._rows = np.argsort(head_of, kind="stable")  # rows of `names`, head by head
        self._counts = np.bincount(head_of, minlength=len(distinct))
        self._heads = distinct

    def matching(self, rules: Sequence[Rule]) -> list[Indices]:
        """The rows of the undecided names that each of ``rules`` matches.

        All patterns are compiled and run at once, so that they share the processor's cores.
        """
        rows = self._by_head(rules)
        searches = {
            i: pl.LazyFrame([self._names.gather(rows[i]).alias("name")]).select(_on_name(rule))
            for i, rule in enumerate(rules)
            if len(rows[i]) and (rule.name is not None or rule.unless is not None)
        }
        for i, found in zip(searches, pl.collect_all(list(searches.values())), strict=True):
            rows[i] = rows[i][found.to_series().to_numpy()]
        return rows

    def decide(self, rows: Indices) -> Indices:
        """Take ``rows`` out; return those of them that were undecided."""
        fresh = rows[self._open[rows]]
        self._open[fresh] = False
        return fresh

    def forget_decided(self) -> None:
        """Search heads without undecided names no longer."""
        still = self._open[self._rows]
        group = np.repeat(np.arange(len(self._counts)), self._counts)[still]
        counts = np.bincount(group, minlength=len(self._counts))
        self._rows = self._rows[still]
        live = counts > 0
        if not live.all():
            self._heads = self._heads.filter(pl.Series(live))
        self._counts = counts[live]

    def _by_head(self, rules: Sequence[Rule]) -> list[Indices]:
        """The rows of the undecided names whose heads let each of ``rules`` match."""
        none = np.empty(0, dtype=np.int64)
        rows = [self._rows if self._can_match(rule) else none for rule in rules]
        searched = {
            str(i): rule.head
            for i, rule in enumerate(rules)
            if rule.head is not None and len(rows[i])
        }
        heads = self._heads.alias("head").to_frame()
        found = heads.select(
            pl.col("head").str.contains(pattern).alias(i) for i, pattern in searched.items()
        )
        for column in found:
            rows[int(column.name)] = self._rows[np.repeat(column.to_numpy(), self._counts)]
        return rows

    def _can_match(self, rule: Rule) -> bool:
        return (rule.head is None or self._in_heads.allow(rule.head)) and (
            rule.name is None or self._in_names.allow(rule.name)
        )


def _on_name(rule: Rule) -> pl.Expr:
    name = pl.col("name").str
    matched = pl.lit(True) if rule.name is None else name.contains(rule.name)
    return matched if rule.unless is None else matched & ~name.contains(rule.unless)


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
    for first in range(0, len(rules), _AT_ONCE):
        for position, rows in enumerate(undecided.matching(rules[first : first + _AT_ONCE]), first):
            deciding[undecided.decide(rows)] = position
        undecided.forget_decided()
    return deciding


def matches(rules: Sequence[Rule], names: pl.Series, heads: pl.Series) -> list[bool]:
    """Whether each of ``rules`` matches any of ``names``, whose heads are ``heads``."""
    return [len(rows) > 0 for rows in _Undecided(names, heads).matching(rules)]


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
