"""The critical path of each step, followed backwards: its window, and the walk through it.

The walk goes from the end of a window back to its begin, along the waits of device work and of
threads (``device_waits.py``, ``host_waits.py``). ``critical.py`` labels the stretches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from traceana.enrich.steps import OPTIMIZER_STEP
from traceana.timeline.device_waits import BY_LAUNCH, UNKNOWN
from traceana.timeline.host_waits import ThreadKeys, Waits
from traceana.timeline.idle_gaps import capture
from traceana.timeline.steps import step_windows

if TYPE_CHECKING:
    from traceana.trace import Trace

WORK, GAP, LAUNCH, SYNC, HOST = range(5)
"""Kinds of stretches of the path: device work; the gap between the awaited work and the next; the
time from a launch to its work; the rest of a call after the awaited work; time of a thread."""

_PROCESS: Final = ("rank", "process")
_MARK: Final = ("host_start", "host_end", *_PROCESS)
_END: Final = ("host_end", *_PROCESS)

_NOBODY: Final = -1
_NEVER: Final = -(2**63)
_NOWHERE: Final[tuple[list[int], list[int]]] = ([], [])


def windows(trace: Trace) -> pl.DataFrame:
    """Return the window of each step of ``trace``, in their order; one per rank without steps.

    It is that of :func:`~traceana.timeline.steps.step_windows`; without steps it is the capture.
    Columns: ``number``, ``rank``, ``process``, ``thread`` (of the marker), ``begin``, ``end``,
    ``host_end`` (of the marker).
    """
    if trace.steps.is_empty():
        return _spans(trace)
    every = step_windows(trace)
    return (
        every.join(_threads(trace, every), on=_MARK, how="left", nulls_equal=True,
                   maintain_order="left")
        .join(_ending(trace, every), on=_END, how="left", nulls_equal=True, maintain_order="left")
        .select(
            "number",
            *_PROCESS,
            pl.coalesce("thread", "ending"),
            pl.col("start").alias("begin"),
            "end",
            "host_end",
        )
    )  # fmt: skip


def _threads(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the thread of the outermost range of each process and time at which ``steps`` begin
    and end (``host_start``, ``host_end``)."""
    found = trace.ranges.select(
        *_PROCESS,
        "thread",
        pl.col("start").alias("host_start"),
        (pl.col("start") + pl.col("duration")).alias("host_end"),
    ).filter(
        pl.col("thread").is_not_null(), pl.col("host_start").is_in(steps["host_start"].implode())
    )
    return found.unique(_MARK, keep="first", maintain_order=True)


def _ending(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """Return ``ending``, the thread of the outermost range of each process that ends where one of
    ``steps`` does.

    A step that the optimizer ends has no marker of its own.
    """
    by_optimizer = (trace.steps["source"] == OPTIMIZER_STEP).any()
    ends = steps["host_end"] if by_optimizer else steps["host_end"].clear()
    at_steps = (pl.col("start") + pl.col("duration")).is_in(ends.implode())
    found = trace.ranges.filter(pl.col("thread").is_not_null() & at_steps)
    return (
        found.sort("start", maintain_order=True)
        .select(
            (pl.col("start") + pl.col("duration")).alias("host_end"),
            *_PROCESS,
            pl.col("thread").alias("ending"),
        )
        .unique(_END, keep="first", maintain_order=True)
    )


def _spans(trace: Trace) -> pl.DataFrame:
    """Return the capture of each rank, of a trace without steps.

    The last work ends with it, so ``host_end`` is its begin. Without work it spans the calls and
    operators.
    """
    spans = capture(trace.whole).rename({"start": "begin"})
    if spans.is_empty():
        tables = [trace.whole.calls, trace.whole.ops]
        begin, end = pl.col("start"), pl.col("start") + pl.col("duration")
        spans = (
            pl.concat(
                table.select("rank", begin.alias("begin"), end.alias("end")) for table in tables
            )
            .group_by("rank")
            .agg(pl.col("begin").min(), pl.col("end").max())
        )
    elif trace.activities.height:
        spans = spans.join(
            trace.activities.select("rank").unique(), on="rank", how="semi", nulls_equal=True
        )
    return spans.sort("rank").select(
        pl.lit(None, pl.Int64).alias("number"),
        "rank",
        pl.lit(None, pl.Int64).alias("process"),
        pl.lit(None, pl.Int64).alias("thread"),
        "begin",
        "end",
        pl.col("begin").alias("host_end"),
    )


def paths(trace: Trace, steps: pl.DataFrame, threads: ThreadKeys) -> pl.DataFrame:
    """Return the path of each step as stretches, the last stretch of a step first.

    ``steps`` are :func:`windows` with ``step_row``. Columns: ``step_row``, ``begin``, ``end``,
    ``what`` (WORK, GAP, LAUNCH, SYNC, HOST), ``of`` (row of the activity, for SYNC of the call, for
    HOST the key of the thread, -1 where unknown) and ``why`` (the kind of wait of work).
    """
    parts = [_paths(trace, own, threads) for own in processes(steps)]
    return pl.concat(parts) if parts else _frame([], Stretches())


def processes(own: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the windows of each process that marked steps."""
    for rank in own.partition_by("rank", maintain_order=True):
        yield from rank.partition_by("process", maintain_order=True)


def _paths(trace: Trace, steps: pl.DataFrame, threads: ThreadKeys) -> pl.DataFrame:
    """Return the path of each of ``steps``, the windows of one process, last stretch first."""
    own = Waits.of(trace, steps, threads)
    device = own.device
    walk = Walk(own)
    columns = steps.select("step_row", "begin", "end", "host_end").iter_rows()
    rows: list[int] = []
    stretches = Stretches()
    for (row, begin, end, host_end), thread in zip(columns, own.markers.tolist(), strict=True):
        walk.window(stretches, begin, end, host_end, thread)
        rows += [row] * (len(stretches.begin) - len(rows))
    path = _frame(rows, stretches)
    on_device = pl.col("what").is_in([WORK, GAP, LAUNCH])
    of_work = path.select(pl.when(on_device).then("of").otherwise(None)).to_series()
    activity = pl.Series(device.activity, dtype=pl.Int64).gather(of_work)
    why = pl.Series(device.why, dtype=pl.Int64).gather(of_work)
    return path.with_columns(
        pl.when(on_device).then(activity).otherwise("of").alias("of"), why.alias("why")
    )


def _frame(rows: Sequence[int], path: Stretches) -> pl.DataFrame:
    """Return a path as a frame, without ``why``; ``rows`` are the rows of the steps."""
    return pl.DataFrame(
        {
            "step_row": pl.Series(rows, dtype=pl.UInt32),
            "begin": pl.Series(path.begin, dtype=pl.Int64),
            "end": pl.Series(path.end, dtype=pl.Int64),
            "what": pl.Series(path.what, dtype=pl.Int64),
            "of": pl.Series(path.of, dtype=pl.Int64),
            "why": pl.Series([None] * len(path.begin), dtype=pl.Int64),
        }
    )


class Stretches(msgspec.Struct):
    """The paths of windows, last stretch of each first, as columns.

    ``of`` is the row in :class:`WorkWaits` of the work (WORK, GAP, LAUNCH), the row of the call
    (SYNC) or the key of the thread (HOST; -1 where unknown).
    """

    begin: list[int] = msgspec.field(default_factory=list)
    end: list[int] = msgspec.field(default_factory=list)
    what: list[int] = msgspec.field(default_factory=list)
    of: list[int] = msgspec.field(default_factory=list)

    def add(self, begin: int, end: int, what: int, of: int) -> None:
        """Append a stretch, unless it is empty."""
        if begin < end:
            self.begin.append(begin)
            self.end.append(end)
            self.what.append(what)
            self.of.append(of)


class Walk:
    """The paths of one process."""

    def __init__(self, waits: Waits) -> None:
        """Prepare the walk along the waits of device work and threads."""
        device = waits.device
        self._start = device.start.tolist()
        self._end = device.end.tolist()
        self._before = device.before.tolist()
        self._why = device.why.tolist()
        self._returned = device.returned.tolist()
        self._launching = waits.launching.tolist()
        self._host = waits.host

    def window(self, path: Stretches, begin: int, end: int, host_end: int, thread: int) -> None:
        """Append the path of a window: stretches without gaps from ``end`` back to ``begin``.

        The walk starts at the last device work if that ends with the window, else on ``thread``.
        It terminates: each stretch of work is an earlier row of :class:`WorkWaits` than the one
        before, and stretches of threads are not empty.
        """
        last = bisect_right(self._end, end) - 1
        if last >= 0 and self._end[last] == end >= host_end:
            at, thread, limit = self._along_device(path, begin, last)
        else:
            at, limit = end, len(self._end)
        while at > begin:
            work = self._along_host(path, begin, at, thread, limit)
            if work == _NOBODY:
                break
            at, thread, limit = self._along_device(path, begin, work)

    def _along_device(self, path: Stretches, begin: int, work: int) -> tuple[int, int, int]:
        """Follow the device from the end of ``work`` back to a launch or to ``begin``.

        Return the time, the launching thread, and the launched work.
        """
        while True:
            start = self._start[work]
            path.add(max(start, begin), self._end[work], WORK, work)
            why = self._why[work]
            if start <= begin:
                return begin, _NOBODY, work
            if why == BY_LAUNCH:
                returned = self._returned[work]
                path.add(max(returned, begin), start, LAUNCH, work)
                return returned, self._launching[work], work
            before = self._before[work]
            if why == UNKNOWN:
                before = min(bisect_right(self._end, start), work) - 1
            ended = self._end[before] if before >= 0 else begin
            path.add(max(ended, begin), start, GAP, work)
            if ended <= begin:
                return begin, _NOBODY, work
            work = before

    def _along_host(self, path: Stretches, begin: int, at: int, thread: int, limit: int) -> int:
        """Follow the host from ``at`` back to a wait of a thread for the device.

        Return the awaited work, before row ``limit``, or -1 when ``begin`` is reached.
        """
        left = at
        while at > begin:
            begins, ends = self._host.spans.get(thread, _NOWHERE)
            last = bisect_left(begins, at) - 1
            if last >= 0 and at <= ends[last]:
                wait = self._waited(thread, begins[last], at, limit)
                if wait is None:
                    at = begins[last]
                    continue
                returned, call, work = wait
                path.add(max(returned, begin), left, HOST, thread)
                ended = self._end[work]
                path.add(max(ended, begin), min(returned, left), SYNC, call)
                return work if ended > begin else _NOBODY
            # The thread was idle: it may have waited for another thread that was active then.
            idle_since = ends[last] if last >= 0 else begin
            other = bisect_right(self._host.handing_end, at) - 1
            if other >= 0 and self._host.handing_end[other] > idle_since:
                at = max(self._host.handing_end[other], begin)
                path.add(at, left, HOST, thread)
                left, thread = at, self._host.handing_thread[other]
            elif last < 0 and not self._host.spans:
                work = min(bisect_right(self._end, at), limit) - 1
                ended = max(self._end[work], begin) if work >= 0 else begin
                # Without any device work all of the step is the thread's.
                path.add(ended, left, HOST, _NOBODY if self._end else thread)
                return work if ended > begin else _NOBODY
            else:
                at = max(self._since(thread, idle_since, other), begin)
        path.add(begin, left, HOST, thread)
        return _NOBODY

    def _since(self, thread: int, at: int, handed: int) -> int:
        """Return the time until ``at`` since which only ``thread`` can have been waited for.

        It is the last end of a span of another thread that can pass work on, or of a wait of
        ``thread`` itself: the calls in between need not be visited one by one. ``handed`` is the
        last such span of any thread.
        """
        since = _NEVER
        if handed >= 0 and self._host.handing_thread[handed] == thread:
            handed = self._host.handing_before[handed]
        if handed >= 0:
            since = self._host.handing_end[handed]
        waits = self._host.waits.get(thread)
        if waits is not None and (last := bisect_right(waits.end, at)):
            since = max(since, waits.end[last - 1])
        return min(since, at)

    def _waited(self, thread: int, since: int, at: int, limit: int) -> tuple[int, int, int] | None:
        """Return the last wait of a thread that ended in (``since``, ``at``].

        The result is the end of its call, the call, and the awaited work, before row ``limit``.
        """
        waits = self._host.waits.get(thread)
        if waits is None:
            return None
        last = bisect_right(waits.end, at) - 1
        while last >= 0 and waits.end[last] > since:
            if waits.work[last] < limit:
                return waits.end[last], waits.call[last], waits.work[last]
            last -= 1
        return None
