"""The time of host threads, cut where their call, operator or annotation changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from traceana.analyze.critical import cut
from traceana.enrich.nesting import NONE, Ints, Nesting, take, timeline
from traceana.enrich.ranges import ThreadRanges
from traceana.whatif.factors import Floats

if TYPE_CHECKING:
    import polars as pl

    from traceana.analyze.critical_path import ThreadKeys
    from traceana.trace import Trace


class HostTime(msgspec.Struct, frozen=True):
    """Pieces of the threads of a process, thread by thread and in order, without gaps.

    ``call``, ``op`` and ``range`` are the rows of the innermost one around each piece, or -1.
    """

    thread: Ints
    begin: Ints
    end: Ints
    call: Ints
    op: Ints
    range: Ints

    @classmethod
    def of(cls, trace: Trace, threads: ThreadKeys, key: Ints, begin: Ints, end: Ints) -> HostTime:
        """Return the pieces of the threads ``key``, in order, each from ``begin`` to ``end``."""
        near = (int(begin.min()), int(end.max())) if len(key) else (0, 0)
        frames = ((trace.ops, threads.ops), (trace.calls, threads.calls))
        (op_rows, ops), (call_rows, calls) = (_nested(*frame, near) for frame in frames)
        range_rows = _rows(trace.ranges, near)
        ranges = ThreadRanges.of(trace.ranges[range_rows], threads.ranges[range_rows])
        whole = np.zeros(len(key), dtype=np.bool_)
        of, since, until = cut(key, begin, end, whole, [ops, calls, ranges.nesting])
        thread = key[of]
        return cls(
            thread,
            since,
            until,
            take(call_rows, calls.innermost(thread, since)),
            take(op_rows, ops.innermost(thread, since)),
            take(range_rows, ranges.innermost(thread, since)),
        )

    def lengths(self, thread: Ints, begin: Ints, end: Ints, factors: Floats) -> Ints:
        """Return how long each thread takes from ``begin`` to ``end``, if each piece takes as many
        times as long as ``factors`` says.

        Time outside the pieces stays; with factors of 1 the result is ``end - begin`` exactly.
        """
        own, asked = len(self.thread), len(thread)
        changed = factors != 1
        if not asked or not changed.any():
            return end - begin
        both, at = np.concatenate((thread, thread)), np.concatenate((begin, end))
        place, wanted = np.split(
            timeline(np.concatenate((self.thread, both)), np.concatenate((self.begin, at)))[0],
            [own],
        )
        rows = np.searchsorted(place, wanted, side="right") - 1
        # A moment before the pieces of its thread follows those of another one.
        inside = (rows != NONE) & (self.thread[rows] == both)
        less = (self.end - self.begin) * (1 - factors)
        before = np.cumsum(less) - less
        into = (np.minimum(at, self.end[rows]) - self.begin[rows]) * (1 - factors[rows])
        first = np.searchsorted(self.thread, both, side="left")
        base = before[np.minimum(first, own - 1)]
        saved = np.where(inside, before[rows] + into - base, 0.0)
        less_time: Ints = np.rint(saved[asked:] - saved[:asked]).astype(np.int64)
        return end - begin - less_time


def _nested(frame: pl.DataFrame, key: Ints, near: tuple[int, int]) -> tuple[Ints, Nesting]:
    """Return the nested rows of ``frame`` that overlap the time ``near``, after their numbers."""
    rows = _rows(frame, near)
    start, duration = (frame[name].to_numpy()[rows] for name in ("start", "duration"))
    return rows, Nesting.of(key[rows], start, duration)


def _rows(frame: pl.DataFrame, near: tuple[int, int]) -> Ints:
    start = frame["start"].to_numpy()
    return np.flatnonzero((start <= near[1]) & (start + frame["duration"].to_numpy() >= near[0]))
