"""The gaps of each device: from when nothing runs on it to when the next work begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.idle.causes import BEGIN, END, Cause
from traceana.enrich.nesting import NONE, Ints, to_rows
from traceana.trace.schema import TABLES, TIME_COLUMNS

if TYPE_CHECKING:
    from traceana.analyze.idle.lanes import Lane
    from traceana.trace import Trace

_EVENTS: Final = ("activities", "calls", "ops", "ranges", "links", "memory")
"""Tables whose rows are events of the file."""


def recording(trace: Trace) -> pl.DataFrame:
    """Return ``rank``, ``begin``, ``finish``: the first and the last moment of anything recorded,
    work of the devices, calls, operators, ranges, flows and events of the allocators alike.

    One row a rank, or one whose rank is null.
    """
    parts = []
    for name in _EVENTS:
        columns = TIME_COLUMNS[name]
        begin, finish = pl.min_horizontal(columns), pl.max_horizontal(columns)
        if "duration" in TABLES[name]:
            finish += pl.col("duration")
        limits = (begin.min().alias("begin"), finish.max().alias("finish"))
        table = trace.table(name)
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


def gaps(work: Lane, begin: int, finish: int, step: int | None = None) -> pl.DataFrame:
    """Return the moments from ``begin`` to ``finish`` at which a device does nothing, in order.

    Columns: ``rank``, ``device``, ``start``, ``end``, ``before`` (row of the activity that ended
    last) and ``after`` (row of the one that begins next; of several the first in the table), null
    where there is none, and ``cause``: null but where the recording begins and ends.

    ``step`` is when the step began that launched the first work, null where none did. The recording
    begins until then; from there on the first work is waited for like any other. O(n).
    """
    rank, device = work.place
    start, end, before, after = _of_device(work, begin, finish)
    cause = np.full(len(start), NONE, dtype=np.int64)
    cause[after == NONE], cause[before == NONE] = END, BEGIN
    if step is not None and step < work.start[0]:
        start, end, before, after, cause = _cut(max(step, begin), start, end, before, after, cause)
    return pl.DataFrame(
        {
            "start": start,
            "end": end,
            "before": to_rows(before),
            "after": to_rows(after),
            "cause": to_rows(cause).cast(pl.UInt8).cat.to(Cause),
        }
    ).select(
        pl.lit(rank, pl.Int32).alias("rank"), pl.lit(device, pl.Int32).alias("device"), pl.all()
    )


def _cut(
    moment: int, start: Ints, end: Ints, before: Ints, after: Ints, cause: Ints
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return the gaps with the first, in which the recording begins, to be judged from ``moment``.

    What of it lies before stays on its own.
    """
    rest = np.concatenate(([NONE], cause[1:]))
    if moment == start[0]:
        return start, end, before, after, rest
    return (
        np.concatenate((start[:1], [moment], start[1:])),
        np.concatenate(([moment], end)),
        np.concatenate((before[:1], before)),
        np.concatenate((after[:1], after)),
        np.concatenate((cause[:1], rest)),
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
