"""The frames of a program at moments of its host, and the names of its lines."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceana.columns.nesting import NONE, Ints, from_rows, take, to_rows
from traceana.enrich.frames import FrameStacks
from traceana.trace import Trace, per_trace


@per_trace
def frame_stacks(trace: Trace) -> FrameStacks:
    """Return the stacks of ``trace``, which is whole: :attr:`~traceana.trace.Trace.whole`."""
    tables = trace.tables
    ranges = tables.ranges.filter(pl.col("frame").is_not_null())
    return FrameStacks.of(tables, ranges, tables.memory)


def frames_of_gaps(trace: Trace, gaps: pl.DataFrame) -> Ints:
    """Return the row in ``frames`` of the line in which each of the ``gaps`` began.

    Of a GPU it is that of the thread that launches the next work, when the gap began:
    ``loss.item()`` ends as soon as the GPU has nothing more to do. Of a CPU it is the one on the
    program's thread in the middle of the gap, in which no operator ran. ``gaps`` have ``start``,
    ``end``, ``before`` and ``after``, rows of activities of ``trace``, which is whole.
    """
    stacks = frame_stacks(trace)
    activities = trace.tables.activities
    thread, time = np.full(gaps.height, NONE, dtype=np.int64), gaps["start"].to_numpy()
    for side in ("before", "after"):
        for column, threads in (("op", stacks.op_thread), ("call", stacks.call_thread)):
            row = from_rows(activities[column].gather(gaps[side]))
            thread = np.where(row == NONE, thread, take(threads, row))
    if trace.on_cpu:
        time = (time + gaps["end"].to_numpy()) // 2
        # Work of other threads, as of autograd's, waits for the program's.
        main = take(stacks.main, thread)
        thread = np.where(main == NONE, thread, main)
    return stacks.at(thread, time)


def line_name(said: str = "text") -> pl.Expr:
    """Return the name of a line: ``train.py:41 loss.item()``, with the column ``said`` behind it.

    The number and the column are left out where they are null.
    """
    place = pl.concat_str("file", pl.lit(":"), "line")
    return pl.concat_str(pl.coalesce(place, "file"), pl.concat_str(pl.lit(" "), said).fill_null(""))


def line_names(trace: Trace, frames: Ints) -> pl.Series:
    """Return the :func:`line_name` of each of ``frames``, null without one."""
    names = trace.tables.frames.select(line_name().alias("line"))["line"]
    return names.gather(to_rows(frames))
