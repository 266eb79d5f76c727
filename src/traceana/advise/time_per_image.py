"""Time per image by batch, and whether it still falls with a larger one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
"""Fewer steps tell no scatter."""


@dataclass(frozen=True, slots=True)
class TimePerImage:
    """What the steps of runs took for one image, one row a batch of :data:`SCHEMA`, by batch.

    ``image_ns`` is the time of a step over the batch: of the median step, or of the mean where only
    the sum of the steps is right. ``low_ns`` and ``high_ns`` are the quartiles, null of a mean. All
    are rounded down.
    """

    own: int
    frame: pl.DataFrame

    @property
    def told(self) -> bool:
        """Whether the run itself and one of a larger batch were measured."""
        batches = self.frame["batch"]
        return bool((batches == self.own).any() and (batches > self.own).any())

    @property
    def best(self) -> int | None:
        """The row of the larger batch with the least time per image, if that is certainly less.

        Certain: less by :data:`LESS_PER_IMAGE` or more, and the middle halves of the steps of both
        runs do not meet.
        """
        if not self.told:
            return None
        (own,) = self.frame.filter(pl.col("batch") == self.own).iter_rows(named=True)
        less = (pl.col("image_ns") <= (1 - LESS_PER_IMAGE) * own["image_ns"]) & (
            pl.col("high_ns") < pl.lit(own["low_ns"], pl.Int64)
        ).fill_null(value=True)
        falls = self.frame.with_row_index("row").filter(pl.col("batch") > self.own, less)
        return None if falls.is_empty() else int(falls.sort("image_ns", "batch")["row"][0])


def time_per_image(series: BatchSeries) -> TimePerImage:
    """Return the time per image of each run of ``series`` that timed three steps or more."""
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
