"""Threads under one numbering, whatever rank and process they are of."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceana.enrich.nesting import NONE, Ints, thread_keys


def thread_numbers(*frames: pl.DataFrame) -> list[Ints]:
    """Number the threads (``rank``, ``process``, ``thread``) of ``frames`` alike, from 0."""
    ranks = pl.concat([frame["rank"].cast(pl.Int64) for frame in frames]).fill_null(NONE)
    dense = ranks.rank("dense").cast(pl.Int64).to_numpy() - 1
    of_rank = np.split(dense, np.cumsum([frame.height for frame in frames])[:-1])
    many = int(dense.max(initial=0)) + 1
    keys = thread_keys(*frames)
    return [key * many + rank for key, rank in zip(keys, of_rank, strict=True)]
