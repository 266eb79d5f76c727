"""Cells of a table of Nsight Compute that no sound table has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import polars as pl

from traceana.trace import Ledger

MISSING: Final = "launches without a metric that others have"
CONTRADICTION: Final = "launches with rows that contradict each other"
JOINED: Final = "rows with a metric and advice"
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
    _count_launches(cells, keys, differing, CONTRADICTION, ledger)


def count_missing(
    cells: pl.DataFrame, keys: Sequence[str], column: str, metrics: Iterable[str], ledger: Ledger
) -> None:
    """Count the launches without a row of one of ``metrics``, which are names in ``column``.

    Nsight Compute has a row of each metric for every launch, ``n/a`` where it has no value.
    """
    missing = pl.any_horizontal(
        pl.lit(False), *((pl.col(column) == metric).sum() == 0 for metric in metrics)
    )
    _count_launches(cells, keys, missing, MISSING, ledger)


def _count_launches(
    cells: pl.DataFrame, keys: Sequence[str], condition: pl.Expr, detail: str, ledger: Ledger
) -> None:
    found = cells.group_by(keys).agg(condition.alias("found"))["found"]
    ledger.add("damaged", int(found.sum()), table="counters", kept=True, detail=detail)


def count_advice(cells: pl.DataFrame, metric: str, value: str, ledger: Ledger) -> None:
    """Count the rows with a name in the column ``metric`` and text behind the column ``value``.

    The columns behind the value hold the advice of Nsight Compute's rules, in rows without a
    metric: such a row is two halves of others.
    """
    advice = cells.columns[cells.columns.index(value) + 1 :]
    full = [pl.col(name).fill_null("") != "" for name in (metric, *advice)]
    joined = cells.select((full[0] & pl.any_horizontal(pl.lit(False), *full[1:])).sum()).item()
    ledger.add("damaged", int(joined), table="counters", kept=True, detail=JOINED)


def count_unread(text: pl.Series, read: pl.Series, what: str, ledger: Ledger) -> None:
    """Count the cells of ``text`` with a digit for which ``read`` is null, as ``lost_field``."""
    lost = text.str.contains(_DIGIT).fill_null(False) & read.is_null()
    ledger.add("lost_field", int(lost.sum()), table="counters", kept=True, detail=what)
