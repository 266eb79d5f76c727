"""What a thread was at: its innermost operator and annotation at any moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traceana.analyze.idle.threads import THREAD
from traceana.attribute.nesting import NONE, Ints, Nesting, from_rows

if TYPE_CHECKING:
    from traceana.trace import Trace


@dataclass(frozen=True, slots=True)
class Doing:
    """The operators and the annotations of some threads, numbered by ``key``."""

    ops: Nesting
    ranges: Nesting

    @classmethod
    def of(cls, trace: Trace, threads: pl.DataFrame) -> Doing:
        """Prepare the lookup for ``threads`` (``key`` and :data:`THREAD`)."""
        return cls(_nesting(trace.ops, threads), _nesting(trace.ranges, threads))

    def operator(self, key: Ints, moment: Ints) -> Ints:
        """Return the row of the innermost operator on each thread at each moment."""
        return self.ops.innermost(key, moment)

    def annotation(self, key: Ints, moment: Ints) -> Ints:
        """Return the row of the innermost range of the program's own."""
        return self.ranges.innermost(key, moment)


def keys(frame: pl.DataFrame, threads: pl.DataFrame) -> Ints:
    """Return the key of the thread of each row of ``frame``; NONE of others."""
    found = frame.select(THREAD).join(
        threads, on=THREAD, how="left", nulls_equal=True, maintain_order="left"
    )
    return from_rows(found["key"])


def _nesting(frame: pl.DataFrame, threads: pl.DataFrame) -> Nesting:
    key = keys(frame, threads)
    start = frame["start"].to_numpy()
    end = start + frame["duration"].to_numpy()
    depth = from_rows(frame["depth"])
    rows = np.flatnonzero((key != NONE) & (depth != NONE))
    order = rows[np.lexsort((-end[rows], start[rows], key[rows]))]
    return Nesting(key, start, end, from_rows(frame["parent"]), depth, order)
