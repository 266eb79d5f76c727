"""The gaps of each device: from when nothing runs on it to when the next work begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.attribute.nesting import NONE, Ints, to_rows

if TYPE_CHECKING:
    from traceana.analyze.idle.lanes import Lane
    from traceana.trace import Trace

_TABLES: Final = ("activities", "calls", "ops", "ranges")


def recording(trace: Trace) -> pl.DataFrame:
    """Return ``rank``, ``begin``, ``finish``: the first and the last moment of anything recorded.

    One row a rank, or one whose rank is null.
    """
    end = pl.col("start") + pl.col("duration")
    limits = (pl.col("start").min().alias("begin"), end.max().alias("finish"))
    parts = []
    for name in _TABLES:
        table = trace.table(name).select("rank", "start", "duration")
        if table["rank"].null_count() == table.height:
            parts.append(table.select(pl.lit(None, pl.Int32).alias("rank"), *limits))
        else:
            parts.append(table.group_by("rank").agg(limits))
    return (
        pl.concat(parts)
        .group_by("rank")
        .agg(pl.col("begin").min(), pl.col("finish").max())
        .drop_nulls(["begin", "finish"])
    )


def gaps(work: Lane, begin: int, finish: int) -> pl.DataFrame:
    """Return the moments from ``begin`` to ``finish`` at which a device does nothing, in order.

    Columns: ``rank``, ``device``, ``start``, ``end``, ``before`` (row of the activity that ended
    last) and ``after`` (row of the one that begins then; of several the first in the table), null
    where the recording begins and ends. O(n).
    """
    rank, device = work.place
    start, end, before, after = _of_device(work, begin, finish)
    return pl.DataFrame(
        {"start": start, "end": end, "before": to_rows(before), "after": to_rows(after)}
    ).select(
        pl.lit(rank, pl.Int32).alias("rank"), pl.lit(device, pl.Int32).alias("device"), pl.all()
    )


def _of_device(lane: Lane, begin: int, finish: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return start, end, activity before and activity after each gap of one device."""
    starts, ends, row = lane.start, lane.end, lane.row
    reached = np.maximum.accumulate(ends)
    # Where the reach grows, that piece of work is the last to end from there on.
    grows = np.concatenate(([True], ends[1:] > reached[:-1]))
    last = np.maximum.accumulate(np.where(grows, np.arange(len(ends)), 0))
    idle = np.flatnonzero(starts[1:] > reached[:-1])
    edge = np.array([NONE], dtype=np.int64)
    start = np.concatenate(([begin], reached[idle], [reached[-1]]))
    end = np.concatenate(([starts[0]], starts[idle + 1], [finish]))
    before = np.concatenate((edge, row[last[idle]], row[last[-1:]]))
    after = np.concatenate((row[:1], row[idle + 1], edge))
    there = end > start
    return start[there], end[there], before[there], after[there]
