"""How long the host waits for its data in each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.analyze.intervals import union
from traceana.analyze.steps import measured_steps
from traceana.enrich.layers.roles import role_of

if TYPE_CHECKING:
    from traceana.trace import Trace


def loading(trace: Trace, numbers: pl.Series) -> npt.NDArray[np.int64] | None:
    """Return the union of the data loader's ranges within each step (ns), null without any.

    ``numbers`` are those of the steps that are compared; of several processes the times add up.
    """
    texts = pl.col("text").cast(pl.String)
    ranges = trace.ranges.filter(
        (role_of(texts) == "data") & pl.col("kind").is_in(["annotation", "nvtx"])
    )
    if ranges.is_empty() or trace.steps.is_empty():
        return None
    at = dict(zip(numbers, range(len(numbers)), strict=True))
    found = np.zeros(len(numbers), dtype=np.int64)
    chosen = trace.steps[measured_steps(trace).rows]
    for process, steps in chosen.group_by("process", maintain_order=True):
        own = ranges.filter(pl.col("process").eq_missing(pl.lit(process[0], pl.Int64)))
        starts = own["start"].to_numpy()
        begins, ends = union(starts, starts + own["duration"].to_numpy())
        for number, start, duration in steps.select("number", "start", "duration").iter_rows():
            inside = np.minimum(ends, start + duration) - np.maximum(begins, start)
            if number in at:
                found[at[number]] += int(np.maximum(inside, 0).sum())
    return found
