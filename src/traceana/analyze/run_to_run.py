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
    USUAL_BLOCKS,
)
from traceana.trace import Trace, TraceMeta


def relative_spread(parts: Iterable[tuple[float, float]]) -> float:
    """Return the standard deviation of a time between runs, relative to it.

    ``parts`` are the times that it is composed of, each with its own relative standard deviation;
    they vary independently.
    """
    listed = list(parts)
    total = max(sum(time for time, _ in listed), 1)
    return math.hypot(*(time / total * spread for time, spread in listed))


def spread_of_host(usual: float, meta: TraceMeta) -> float:
    """Return the relative standard deviation between runs of a host's time: ``usual``, corrected by
    what the recorded run measured.

    The variance between its blocks of timed steps is one more observation beside
    :data:`~traceana.settings.USUAL_BLOCKS` usual ones (the posterior of a variance with a scaled
    inverse chi-squared prior: Gelman et al., "Bayesian Data Analysis", 2.6). Its ``ready_share`` is
    added in quadrature: on a machine without other load no thread would have waited for a
    processor.
    """
    variance = usual**2
    if meta.spread_of_blocks is not None:
        variance = (USUAL_BLOCKS * variance + meta.spread_of_blocks**2) / (USUAL_BLOCKS + 1)
    return math.hypot(math.sqrt(variance), meta.ready_share)


def spread_of_work(trace: Trace) -> pl.Expr:
    """Return the relative standard deviation between runs of the time of a row of ``trace``'s work.

    The row has ``kind``, ``host_memory`` and ``category``. Collectives wait for other hosts. Work
    of a CPU varies as the host's (:func:`spread_of_host`).
    """
    if trace.on_cpu:
        return pl.lit(spread_of_host(RUN_TO_RUN_CPU, trace.meta))
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
