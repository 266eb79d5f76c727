"""The frames of a program at moments of its host."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceana.columns.nesting import NONE, Flags, Ints, from_rows, take
from traceana.enrich.frames import FrameStacks
from traceana.timeline.threads import cut
from traceana.trace import Trace, per_trace


@per_trace
def frame_stacks(trace: Trace) -> FrameStacks:
    """Return the stacks of ``trace``, which is whole: :attr:`~traceana.trace.Trace.whole`."""
    return _stacks(trace, trace.tables.calls.clear())


def _stacks(trace: Trace, others: pl.DataFrame) -> FrameStacks:
    ranges = trace.tables.ranges.filter(pl.col("frame").is_not_null())
    return FrameStacks.of(trace.tables, ranges, others)


def frames_at(trace: Trace, rows: pl.DataFrame, time: Ints) -> Ints:
    """Return the row in ``frames`` at each ``time`` of the thread of ``rows``, :data:`NONE` outside
    all.

    ``rows`` have ``rank``, ``process`` and ``thread``; ``trace`` is whole.
    """
    stacks = _stacks(trace, rows)
    return stacks.at(stacks.other_thread, time)


def pieces_by_frame(
    trace: Trace, rows: pl.DataFrame, begin: Ints, end: Ints, whole: Flags
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the pieces of intervals of the threads of ``rows``, cut where their frames change:
    the interval of each, its begin, end and row in ``frames``.

    Intervals of ``whole`` are not cut.
    """
    stacks = _stacks(trace, rows)
    thread = stacks.other_thread
    lost = ~np.isin(thread, stacks.nesting.key)
    main = stacks.main[thread]
    on_thread = np.where(lost & (main != NONE), main, thread)
    interval, since, until = cut(on_thread, begin, end, whole, [stacks.nesting])
    return interval, since, until, stacks.at(on_thread[interval], since)


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
