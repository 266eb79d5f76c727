"""What the finders of changes look at, and what they give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from traceana.compare.align import Side
from traceana.compare.judging import Times
from traceana.compare.samples import Sample


@dataclass(frozen=True, slots=True)
class Half:
    """One run: its steps, its cells with ``pair`` (row of the pairs of layers), what else it does.

    ``loading`` is the host's time in the data loader in each step (ns), null where the trace shows
    no loader.
    """

    sample: Sample
    cells: pl.DataFrame
    side: Side
    loading: Times | None

    def time(self, chosen: pl.Expr) -> Times:
        """Return the time of the cells that are ``chosen`` in each step (ns)."""
        rows = self.cells.filter(chosen)
        times = np.zeros(self.sample.count, dtype=np.int64)
        np.add.at(times, rows["step"].cast(pl.Int64).to_numpy(), rows["time_ns"].to_numpy())
        return times

    def calls(self, chosen: pl.Expr) -> float:
        """Return the mean number of calls a step of the cells that are ``chosen``."""
        return int(self.cells.filter(chosen)["calls"].sum()) / self.sample.count


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not as it was: ``kind`` (see ``docs/diff.md``), and where.

    ``before`` and ``after`` are what it was in a and is in b; ``layers`` how many pairs of layers
    it is of, ``layer_a`` and ``layer_b`` the one with the most effect. ``a`` and ``b`` are the time
    that it is about in each step of either side (ns).
    """

    kind: str
    a: Times
    b: Times
    subject: str | None = None
    before: str | None = None
    after: str | None = None
    count_a: float | None = None
    count_b: float | None = None
    layers: int | None = None
    layer_a: str | None = None
    layer_b: str | None = None
