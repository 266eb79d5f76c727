"""Cells of a table of Nsight Compute that no sound table has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import polars as pl

from traceana.trace import Ledger

CONTRADICTION: Final = "launches with rows that contradict each other"
_DIGIT: Final = r"\d"


def count_contradictions(
    cells: pl.DataFrame,
    keys: Sequence[str],
    facts: Iterable[str],
    values: Iterable[pl.Expr],
    ledger: Ledger,
) -> None:
    """Count the launches whose rows, those with equal ``keys``, differ in a fact or a value.

    ``facts`` are columns of ``cells``. Nsight Compute repeats the facts of a launch in each of its
    rows, and a metric that stands in two sections has one value.
    """
    # Every row has the facts, so an empty cell beside a full one differs; a value may be missing.
    differing = pl.any_horizontal(
        *(pl.col(name).n_unique() > 1 for name in facts),
        *(value.drop_nulls().n_unique() > 1 for value in values),
    )
    found = cells.group_by(keys).agg(differing.alias("_differing"))
    count = int(found["_differing"].sum())
    ledger.add("damaged", count, table="counters", kept=True, detail=CONTRADICTION)


def count_unread(text: pl.Series, read: pl.Series, what: str, ledger: Ledger) -> None:
    """Count the cells of ``text`` with a digit for which ``read`` is null, as ``lost_field``."""
    lost = text.str.contains(_DIGIT).fill_null(False) & read.is_null()
    ledger.add("lost_field", int(lost.sum()), table="counters", kept=True, detail=what)
