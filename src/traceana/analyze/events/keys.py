"""Streams and contexts by number, and rows of columns."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceana.enrich.nesting import NONE, Ints

ANY, NO_WORK = -1, -2
"""In place of the key of a stream or context: any may be meant; one on which nothing ran."""

NEVER: Final = np.iinfo(np.int64).min


def keys_of(syncs: pl.DataFrame, keys: pl.DataFrame, *told: str) -> Ints:
    """Return the key of the stream or context of each record: :data:`ANY` where the record does not
    tell it or several have that number, :data:`NO_WORK` where nothing ran on it.

    ``told`` are the columns that name it: a record's device need not be right.
    """
    several = pl.len() > 1
    known = keys.group_by(told).agg(pl.when(several).then(ANY).otherwise(pl.col("key").first()))
    found = syncs.select(told).join(
        known, on=list(told), how="left", nulls_equal=True, maintain_order="left"
    )
    return (
        found.select(
            pl.when(pl.col(told[-1]).is_null())
            .then(ANY)
            .otherwise(pl.col(known.columns[-1]).fill_null(NO_WORK))
            .cast(pl.Int64)
        )
        .to_series()
        .to_numpy()
    )


def event_keys(waits: pl.DataFrame, streams: pl.DataFrame, *told: str) -> Ints:
    """Return the key of the stream that the event of each of ``waits`` was recorded on."""
    return keys_of(waits.with_columns(pl.col("event_stream").alias("stream")), streams, *told)


def take(values: Ints, rows: Ints) -> Ints:
    """Return the values of ``rows``, NONE of those that are NONE."""
    if not len(values):
        return np.full(len(rows), NONE, dtype=np.int64)
    return np.where(rows == NONE, NONE, values[rows])
