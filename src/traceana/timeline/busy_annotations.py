"""Annotations in which a thread works or sleeps, though another thread ends its work meanwhile.

A thread without operators and calls may wait for another thread, or do something that no profiler
records. Where an annotation is around that time, its recordings tell: of a wait, the annotation
ends when the other thread has ended; of work of its own, it takes as long as always.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.enrich.nesting import Flags, Ints
from traceana.enrich.ranges import ThreadRanges
from traceana.settings import BUSY_ANNOTATION

if TYPE_CHECKING:
    from traceana.trace import Trace

_LEAST: Final = 3
"""Recordings of an annotation of which a spread says something."""

Spans = tuple[Ints, Ints]
"""Begins and ends of intervals that are disjoint and in order."""


def busy_annotations(trace: Trace, key: Ints, thread: int, active: Spans, others: Ints) -> Spans:
    """Return begin and end (ns) of the annotations in which ``thread`` was busy, by begin.

    ``key`` are the threads of ``trace.ranges``, ``active`` the operators and calls of ``thread``,
    ``others`` the times at which other threads ended their work, in order. Markers of steps do not
    count: they are around all that a thread does.
    """
    none = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    own = np.flatnonzero(key == thread)
    if not len(own) or not len(others):
        return none
    ranges = trace.whole.ranges[own].select("text", "kind", "start", "duration")
    begin = ranges["start"].to_numpy()
    end = begin + ranges["duration"].to_numpy()
    handed = others[np.searchsorted(others, end, side="left") - 1]
    idle = (handed > begin) & (handed < end) & (handed > _idle_since(active, end))
    idle &= ~_steps(trace, ranges)
    if not idle.any():
        return none
    same = np.zeros(len(own), dtype=np.int64)
    idle[idle] = ThreadRanges.of(ranges, same).innermost(same[idle], handed[idle]) == (
        np.flatnonzero(idle)
    )
    spreads = pl.DataFrame(
        {
            "row": np.flatnonzero(idle),
            "text": ranges["text"].filter(pl.Series(idle)),
            "taken": (end - begin)[idle],
            "after": (end - handed)[idle],
        }
    ).with_columns(_spread("taken"), _spread("after"), pl.len().over("text").alias("count"))
    steadier = pl.col("taken") * BUSY_ANNOTATION < pl.col("after")
    rows = spreads.filter(steadier & (pl.col("count") >= _LEAST))["row"].to_numpy()
    rows = rows[np.argsort(begin[rows], kind="stable")]
    return begin[rows], end[rows]


def _spread(column: str) -> pl.Expr:
    """Return the median absolute deviation of ``column`` in each text."""
    return (pl.col(column) - pl.col(column).median()).abs().median().over("text")


def _idle_since(active: Spans, time: Ints) -> Ints:
    """Return the end of the last interval that began before each time: later than it where that
    goes on."""
    begins, ends = active
    last = np.searchsorted(begins, time, side="left") - 1
    return np.where(last < 0, np.iinfo(np.int64).min, np.append(ends, 0)[last])


def _steps(trace: Trace, ranges: pl.DataFrame) -> Flags:
    """Return which of ``ranges`` are the markers of steps."""
    steps = trace.whole.steps.select("start", "duration").unique()
    marked: Flags = (
        ranges.join(
            steps.with_columns(pl.lit(value=True).alias("step")),
            on=["start", "duration"],
            how="left",
            maintain_order="left",
        )["step"]
        .fill_null(value=False)
        .to_numpy()
    )
    return marked
