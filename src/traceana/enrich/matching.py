"""Which rows have a label that a pattern is found in."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceana.enrich.nesting import Flags


def matching(column: pl.Series, pattern: str) -> Flags:
    """Tell which values of a categorical ``column`` match ``pattern``; null does not."""
    values = column.unique()
    found = values.filter(values.cast(pl.String).str.contains(pattern).fill_null(value=False))
    if found.is_empty():
        return np.zeros(len(column), dtype=np.bool_)
    codes, wanted = column.to_physical(), found.to_physical()
    table = np.zeros(int(values.to_physical().max()) + 2, dtype=np.bool_)  # type: ignore[arg-type]
    table[wanted.to_numpy()] = True
    return np.asarray(table[codes.fill_null(len(table) - 1).to_numpy()])
