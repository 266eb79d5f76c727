"""Running numbers and sums within groups, computed over all groups at once.

The window functions of polars that return a value a row evaluate their expression for each group:
a microsecond each, which is most of the time where a trace has a million steps.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from traceana.enrich.nesting import Ints


def groups(frame: pl.DataFrame, *keys: str) -> Ints:
    """Return a number for the rows of ``frame`` with equal ``keys``: the first of these rows.

    Null equals null.
    """
    numbered = frame.select(*keys).with_row_index("_row")
    return numbered.select(pl.col("_row").first().over(keys).cast(pl.Int64)).to_series().to_numpy()


def nth(group: Ints) -> Ints:
    """Return the number of each row within its ``group``, in order, from 0."""
    return running_sum(group, np.ones(len(group), np.int64)) - 1


def running_sum(group: Ints, values: Ints) -> Ints:
    """Return the sum of ``values`` of each row and of those before it in its ``group``."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    sums = np.cumsum(values[order])
    begins = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    before = sums[begins] - values[order[begins]]
    found = np.empty_like(sums)
    found[order] = sums - np.repeat(before, np.diff(begins, append=len(ordered)))
    return found
