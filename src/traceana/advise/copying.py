"""What copies of a trace reach where nothing keeps them from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

LARGE: Final = 1 << 20
"""From this many bytes on the link decides, and no longer the call."""


def large_rates(figures: Figures) -> pl.DataFrame:
    """Return ``direction`` and ``large_bytes_per_s``, of copies of :data:`LARGE` bytes and more."""
    return (
        figures.transfers("size")
        .filter((pl.col("size") >= LARGE) & (pl.col("time_ns") > 0))
        .group_by("direction")
        .agg((pl.col("bytes").sum() * 1e9 / pl.col("time_ns").sum()).alias("large_bytes_per_s"))
    )
