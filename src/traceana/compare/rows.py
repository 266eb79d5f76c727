"""Work of two runs side by side, step by step: rows whose differences add up to the whole's."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceana.compare.judging import Series, Things, mean_available, with_deltas
from traceana.compare.samples import Sample

IDLE: Final = "(idle)"
"""Time of the step in which a device did nothing, added up over the devices."""

REMAINDER: Final = "(remainder)"
"""What makes the rows add up to the step: work of several streams at once counts less than its sum,
work that a step launched may run behind its end, and means are rounded down."""


def series(sample: Sample, rows: pl.Series, count: int) -> Series:
    """Return the cells of ``sample`` added up by step and row; ``rows`` has each cell's row."""
    kept = rows.is_not_null()
    cells, places = sample.cells.filter(kept), rows.filter(kept).cast(pl.Int64).to_numpy()
    at = (cells["step"].cast(pl.Int64).to_numpy(), places)
    times = np.zeros((sample.count, count), dtype=np.int64)
    calls = np.zeros_like(times)
    np.add.at(times, at, cells["time_ns"].to_numpy())
    np.add.at(calls, at, cells["calls"].to_numpy())
    return Series(times, calls)


def whole(a: Sample, b: Sample, rows_a: Series, rows_b: Series) -> Things:
    """Return rows that hold all work, with :data:`IDLE` and :data:`REMAINDER` behind them."""
    full_a, full_b = _with_rest(a, rows_a), _with_rest(b, rows_b)
    return Things(full_a, full_b, np.arange(full_a.times.shape[1]) >= rows_a.times.shape[1])


def adding_up(figures: pl.DataFrame, a: Sample, b: Sample) -> pl.DataFrame:
    """Return what is said of :func:`whole` with the last row's times as the others leave them.

    The times of a side then add up to the mean of its steps' device time (``available_ns``).
    """
    last = pl.int_range(pl.len()) == figures.height - 1
    for side, sample in (("a", a), ("b", b)):
        column = f"time_{side}_ns"
        rest = mean_available(sample) - int(figures[column].head(figures.height - 1).sum())
        figures = figures.with_columns(pl.when(last).then(rest).otherwise(column).alias(column))
    # What is over or under the sum is no share of anything.
    none = pl.when(last).then(None).otherwise("relative").alias("relative")
    return with_deltas(figures, mean_available(a)).with_columns(none)


def _with_rest(sample: Sample, rows: Series) -> Series:
    steps = sample.steps
    available, busy = (steps[c].to_numpy() for c in ("available_ns", "busy_ns"))
    rest = np.column_stack([available - busy, busy - rows.times.sum(axis=1)])
    return Series(np.hstack([rows.times, rest]), np.hstack([rows.calls, np.zeros_like(rest)]))
