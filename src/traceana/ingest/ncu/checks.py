"""Cells of a table of Nsight Compute that no sound table has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceana.trace import Ledger

MISSING: Final = "launches without a metric that others have"
CONTRADICTION: Final = "launches with rows that contradict each other"
JOINED: Final = "rows with a metric and advice"
_DIGIT: Final = r"\d"

Numbers = NDArray[np.int64]


def together(
    cells: pl.DataFrame, keys: Sequence[str], launches: int
) -> tuple[pl.DataFrame, Numbers]:
    """Return ``cells`` with the rows of each launch together, and the number of each row's launch.

    Rows of a launch have equal ``keys``; there are so many ``launches``. Nsight Compute prints the
    rows of a launch together.
    """
    number: Numbers = np.cumsum(_changes(cells, keys), dtype=np.int64)
    if number[-1:].tolist() <= [launches]:
        return cells, number
    cells = cells.sort(keys, maintain_order=True)
    return cells, np.cumsum(_changes(cells, keys), dtype=np.int64)


def count_contradictions(
    cells: pl.DataFrame,
    launch: Numbers,
    facts: Iterable[str],
    value: str,
    metrics: Iterable[pl.Series],
    ledger: Ledger,
) -> None:
    """Count the launches whose rows differ in a fact, or that have two values of a metric.

    ``cells`` and ``launch`` are those of :func:`together`, ``facts`` and ``value`` columns of it;
    each of ``metrics`` is whether a row is of one. Nsight Compute repeats the facts of a launch in
    each of its rows, and a metric that stands in two sections has one value.
    """
    # Every row has the facts, so an empty cell beside a full one differs; a value may be missing.
    found = [launch[1:][_changes(cells, facts)[1:] & (launch[1:] == launch[:-1])]]
    values, has_value = cells[value], cells[value].is_not_null()
    for is_metric in metrics:
        rows = is_metric & has_value
        known, of = values.filter(rows), launch[rows.to_numpy()]
        differs = known[1:].ne(known[:-1]).to_numpy()
        found.append(of[1:][differs & (of[1:] == of[:-1])])
    count = len(np.unique(np.concatenate(found)))
    ledger.add("damaged", count, table="counters", kept=True, detail=CONTRADICTION)


def _changes(cells: pl.DataFrame, columns: Iterable[str]) -> NDArray[np.bool_]:
    """Return whether each row differs from the one before it in one of ``columns``.

    Hashes of 64 bits are compared, which takes half the time of comparing texts.
    """
    changed = np.zeros(cells.height, np.bool_)
    changed[:1] = True
    for name in columns:
        hashes = cells[name].hash().to_numpy()
        changed[1:] |= hashes[1:] != hashes[:-1]
    return changed


def count_missing(launch: Numbers, metrics: Iterable[pl.Series], ledger: Ledger) -> None:
    """Count the launches without a row of one of ``metrics``: each is whether a row is of one.

    Nsight Compute has a row of each metric for every launch, ``n/a`` where it has no value.
    """
    missing = np.zeros(int(launch[-1]) if len(launch) else 0, np.bool_)
    for is_metric in metrics:
        without = np.ones(len(missing), np.bool_)
        without[launch[is_metric.to_numpy()] - 1] = False
        missing |= without
    ledger.add("damaged", int(missing.sum()), table="counters", kept=True, detail=MISSING)


def count_advice(cells: pl.DataFrame, metric: str, value: str, ledger: Ledger) -> None:
    """Count the rows with a name in the column ``metric`` and text behind the column ``value``.

    The columns behind the value hold the advice of Nsight Compute's rules, in rows without a
    metric: such a row is two halves of others.
    """
    advice = cells.columns[cells.columns.index(value) + 1 :]
    has_advice = pl.repeat(False, cells.height, dtype=pl.Boolean, eager=True)
    for name in advice:
        has_advice |= (cells[name] != "").fill_null(False)
    joined = has_advice & (cells[metric] != "")
    ledger.add("damaged", int(joined.sum()), table="counters", kept=True, detail=JOINED)


def count_unread(text: pl.Series, read: pl.Series, what: str, ledger: Ledger) -> None:
    """Count the cells of ``text`` with a digit for which ``read`` is null, as ``lost_field``."""
    lost = text.filter(read.is_null()).str.contains(_DIGIT).sum()
    ledger.add("lost_field", int(lost), table="counters", kept=True, detail=what)
