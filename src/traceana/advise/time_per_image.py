"""Time per example by batch, and whether a larger batch lowers it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from traceana.settings import LESS_PER_IMAGE

if TYPE_CHECKING:
    from traceana.runs.run_files import BatchSeries

SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "batch": pl.Int64,
    "steps": pl.Int64,
    "image_ns": pl.Int64,
    "low_ns": pl.Int64,
    "high_ns": pl.Int64,
}

_STEPS: Final = 3
"""The minimum number of steps for quartiles."""


class TimePerImage(msgspec.Struct, frozen=True):
    """The time per example of the runs: one row of :data:`SCHEMA` per batch, by batch.

    ``image_ns`` is the step time divided by the batch, of the median step, or of the mean if only
    the sum of the steps is exact. ``low_ns`` and ``high_ns`` are the quartiles, null for a mean.
    All are rounded down.
    """

    own: int
    frame: pl.DataFrame

    @property
    def comparable(self) -> bool:
        """Whether this run and one with a larger batch were measured."""
        batches = self.frame["batch"]
        return bool((batches == self.own).any() and (batches > self.own).any())

    @property
    def best(self) -> int | None:
        """The row of the larger batch with the lowest time per example, None without a decrease.

        A decrease is :data:`LESS_PER_IMAGE` or more, with disjoint interquartile ranges of the
        step times.
        """
        if not self.comparable:
            return None
        (own,) = self.frame.filter(pl.col("batch") == self.own).iter_rows(named=True)
        less = (pl.col("image_ns") <= (1 - LESS_PER_IMAGE) * own["image_ns"]) & (
            pl.col("high_ns") < pl.lit(own["low_ns"], pl.Int64)
        ).fill_null(value=True)
        falls = self.frame.with_row_index("row").filter(pl.col("batch") > self.own, less)
        return None if falls.is_empty() else int(falls.sort("image_ns", "batch")["row"][0])


def time_per_image(series: BatchSeries) -> TimePerImage:
    """Return the time per example of each run of ``series`` with three steps or more."""
    rows = []
    for batch, times in sorted(series.times.items()):
        if len(times.steps_ns) < _STEPS or not batch or not times.step_ns:
            continue
        quartiles: tuple[int | None, int | None] = (None, None)
        if times.synchronized:
            low, high = np.quantile(np.array(times.steps_ns) / batch, (0.25, 0.75))
            quartiles = (int(low), int(high))
        rows.append((batch, len(times.steps_ns), int(times.step_ns / batch), *quartiles))
    return TimePerImage(series.own, pl.DataFrame(rows, schema=SCHEMA, orient="row"))
