"""From rows of a series and an item to bars."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceana.report.plots.picture import Bars
from traceana.report.plots.units import scaled


def summed(
    frame: pl.DataFrame, series: str, item: str, rows: Sequence[str], column: str, size: float
) -> list[Bars]:
    """Return a series of bars for each value of ``series``: the sums of ``column`` over ``size``.

    There is a bar for each of ``rows``, which are values of ``item``; a series without a figure is
    left out. One that has a ``source`` is a paper's.
    """
    found = []
    for (label,), own in frame.group_by(series, maintain_order=True):
        sums = own.drop_nulls(column).group_by(item).agg(pl.col(column).sum())
        values = dict(sums.iter_rows())
        printed = "source" in own.columns and own["source"].is_not_null().any()
        if values:
            told = scaled([values.get(row) for row in rows], size)
            found.append(Bars(str(label), told, printed=printed))
    return found
