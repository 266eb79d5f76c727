"""How much the time of one program differs from run to run, by the kind of work."""

from __future__ import annotations

import math
from collections.abc import Iterable

import polars as pl

from traceana.settings import (
    RUN_TO_RUN_COPIES,
    RUN_TO_RUN_CPU,
    RUN_TO_RUN_HOST,
    RUN_TO_RUN_KERNELS,
    RUN_TO_RUN_PAGEABLE,
)


def relative_spread(parts: Iterable[tuple[float, float]]) -> float:
    """Return the standard deviation of a time between runs, relative to it.

    ``parts`` are the times that it is composed of, each with its own relative standard deviation;
    they vary independently.
    """
    listed = list(parts)
    total = max(sum(time for time, _ in listed), 1)
    return math.hypot(*(time / total * spread for time, spread in listed))


def spread_of_work(*, on_cpu: bool, ready_share: float) -> pl.Expr:
    """Return the relative standard deviation between runs of the time of a row of device work.

    The row has ``kind``, ``host_memory`` and ``category``. Collectives wait for other hosts. Work
    of a CPU varies by the ``ready_share`` of its run in addition: on a machine without other load
    no thread would have waited for a processor.
    """
    if on_cpu:
        return pl.lit(math.hypot(RUN_TO_RUN_CPU, ready_share))
    copy = pl.col("kind") == "memcpy"
    return (
        pl.when(copy & (pl.col("host_memory") == "pageable"))
        .then(RUN_TO_RUN_PAGEABLE)
        .when(copy)
        .then(RUN_TO_RUN_COPIES)
        .when(pl.col("category") == "collective")
        .then(RUN_TO_RUN_HOST)
        .otherwise(RUN_TO_RUN_KERNELS)
    )
