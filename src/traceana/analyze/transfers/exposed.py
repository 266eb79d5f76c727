"""Exposed time: of copies, how much no kernel of their device hides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from traceana.analyze.intervals import Busy

COMPUTING: Final = ("kernel", "op", "graph")
"""Kinds of work that hide a copy. A graph recorded whole may hold copies too: it counts as
kernels, which it mostly is."""


def computing(activities: pl.DataFrame) -> Busy:
    """Return when each device ran kernels."""
    return Busy.of(activities.filter(pl.col("kind").is_in(COMPUTING)))


def exposed(copies: pl.DataFrame, kernels: Busy, keys: Sequence[str]) -> pl.DataFrame:
    """Return ``exposed_ns`` of each distinct combination of ``keys``, columns of ``copies``.

    It is the length of the union of the copies of the combination on a device, less the time in
    which ``kernels`` ran on that device, added up over the devices. Copies that overlap count once
    within their combination; those of two combinations count in both. ``copies`` has ``rank``,
    ``device``, ``start`` and ``duration``; those without a device are left out, and so are
    combinations that have no others. O(n log n).
    """
    each = [*keys, "rank", "device"]
    end, begin = pl.col("end"), pl.col("start")
    ordered = (
        copies.select(*each, "start", (begin + pl.col("duration")).alias("end"))
        .drop_nulls("device")
        .sort("start")
    )
    reached = end.cum_max().shift(1).over(each)
    windows = (
        ordered.with_columns((begin > reached).fill_null(value=True).alias("first"))
        .with_columns(pl.col("first").cum_sum().over(each).alias("window"))
        .group_by(*each, "window")
        .agg(begin.min(), end.max())
        .sort("start")  # moments are looked up faster in their order
    )
    hidden = kernels.within(windows)
    return (
        windows.with_columns((end - begin - hidden).alias("exposed_ns"))
        .group_by(keys)
        .agg(pl.col("exposed_ns").sum())
        if keys
        else windows.select((end - begin - hidden).sum().alias("exposed_ns"))
    )


def exposed_within(copies: pl.DataFrame, kernels: Busy, windows: pl.DataFrame) -> int:
    """Return the time inside ``windows`` in which one of ``copies`` ran and no kernel.

    Each device's copies and windows are apart, and windows that overlap count each. ``windows`` has
    ``rank``, ``device``, ``start`` and ``end``; the rest as of :func:`exposed`.
    """
    return int((kernels.with_also(copies).within(windows) - kernels.within(windows)).sum())
