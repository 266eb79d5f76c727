"""Whose work it was, in files that say so of the calls only."""

from __future__ import annotations

import polars as pl


def with_process(work: pl.DataFrame, made: pl.DataFrame) -> pl.DataFrame:
    """Give device work without a process the only one that made calls, if there is but one."""
    processes = made["process"].drop_nulls().unique()
    if len(processes) != 1:
        return work
    return work.with_columns(pl.col("process").fill_null(processes[0]))
