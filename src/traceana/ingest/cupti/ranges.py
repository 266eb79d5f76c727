"""Ranges that the recording ended before the program did."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from traceana.trace import Ledger


def close_open(
    ranges: pl.DataFrame, others: Iterable[pl.DataFrame], ledger: Ledger
) -> pl.DataFrame:
    """End the ranges that were never closed with the last event of ``ranges`` and ``others``.

    They have a start and no duration; ``ledger`` counts them.
    """
    ends = [
        frame.select((pl.col("start") + pl.col("duration")).max()).item()
        for frame in [ranges, *others]
    ]
    last_ns = max((end for end in ends if end is not None), default=0)
    is_open = pl.col("duration").is_null() & pl.col("start").is_not_null()
    ledger.add(
        "missing_time",
        ranges.select(is_open.sum()).item(),
        table="ranges",
        kept=True,
        detail="never closed: they end with the last event",
    )
    until_then = pl.max_horizontal(pl.lit(last_ns) - pl.col("start"), pl.lit(0, pl.Int64))
    return ranges.with_columns(
        pl.when(is_open).then(until_then).otherwise("duration").alias("duration")
    )
