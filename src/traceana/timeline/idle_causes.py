"""The cause of each gap, by the rules of docs/idle.md.

If the next work was launched before the GPU went idle, the cause is the wait of that work: an
event, the queue, the launch itself. Else the host is the cause: the time until the launch is
divided by the activity of the launching thread (``idle_host.py``), and the largest part is the
cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.enrich.classes import SOURCE, category_of
from traceana.enrich.distinct_values import rows_of
from traceana.enrich.nesting import NONE, Flags, Ints, from_rows, take, to_rows
from traceana.settings import LONGEST_DISPATCH_NS, LONGEST_EVENT_LATENCY_NS
from traceana.timeline.copies import ASYNCHRONOUS, copies
from traceana.timeline.idle_gaps import (
    ALLOCATION,
    BEFORE_FIRST,
    COLLECTIVE,
    COPY,
    DRIVER,
    EVENT,
    HOST,
    LAUNCH_LATENCY,
    NOT_RECORDED,
    OPERATOR,
    QUEUED,
    SAME_LAUNCH,
    SYNCHRONIZATION,
    Cause,
)
from traceana.timeline.idle_host import HostNesting, HostTime, Threads, host_times
from traceana.timeline.intervals import Intervals, union, until
from traceana.timeline.waits import BY_EVENT, BY_STREAM, all_waits

if TYPE_CHECKING:
    from traceana.trace import Trace

Causes = npt.NDArray[np.int8]

_WHOLE_GAP: Final = DRIVER
"""Causes up to this one also count while the launching call runs."""

_LATEST: Final = np.iinfo(np.int64).max


class CauseFinder:
    """Finds the cause of each gap of a trace, device by device."""

    def __init__(self, trace: Trace) -> None:
        """Prepare the lookups; ``trace`` is whole."""
        self._trace = trace
        threads = Threads.of(trace)
        self._launches = launches = Launches.of(trace, threads.calls)
        waits = all_waits(trace)
        self._why, self._awaited = (np.full(trace.activities.height + 1, NONE) for _ in range(2))
        self._why[waits.activity] = waits.why
        by_event = np.flatnonzero(waits.by_event != NONE)
        self._awaited[waits.activity[by_event]] = waits.activity[waits.by_event[by_event]]
        launching = threads.among(threads.calls[launches.launching])
        self._nesting = HostNesting.of(trace, threads, launching)
        self._host = host_times(trace, threads, launching)
        blocks = (copies(trace)["blocking"] != ASYNCHRONOUS).fill_null(value=False).to_numpy()
        self._copies: Flags = trace.activities["kind"].is_in(["memcpy", "memset"]).to_numpy()
        self._blocking: Flags = np.zeros(trace.activities.height, dtype=np.bool_)
        self._blocking[trace.activities["kind"].eq("memcpy").to_numpy()] = blocks

    def added_to(self, gaps: pl.DataFrame) -> pl.DataFrame:
        """Return ``gaps``, of :func:`traceana.timeline.idle_gaps.gaps`, each with its ``cause``.

        Further columns: ``explained``, the part of the gap that the cause explains (ns); ``call``,
        ``range``, ``op``, the host's rows during the gap, or at the launch where the work was
        launched before the GPU went idle.
        """
        start, end = gaps["start"].to_numpy(), gaps["end"].to_numpy()
        around = _GapLaunches(self._launches, gaps)
        otherwise = self._without_host(around, gaps)
        until_launch = np.where(otherwise == HOST, np.minimum(around.launch_start, end), start)
        key = self._thread(around, start, otherwise == HOST)

        cause, explained = otherwise.copy(), end - start
        middle, row = (start + until_launch) // 2, np.full(len(start), NONE, dtype=np.int64)
        by_thread = np.flatnonzero((key != NONE) & np.isin(otherwise, (HOST, LAUNCH_LATENCY)))
        for number, some in rows_of(key[by_thread]):
            here = by_thread[some]
            of_host = largest_causes(
                self._host[number], start[here], end[here], until_launch[here], otherwise[here]
            )
            cause[here], explained[here] = of_host.cause, of_host.explained
            middle[here], row[here] = of_host.middle, of_host.row

        in_launch = self._long_launch(around, start, end, otherwise == HOST)
        longest = in_launch > explained
        cause[longest], explained[longest], row[longest] = DRIVER, in_launch[longest], NONE
        cause[(cause == LAUNCH_LATENCY) & self._blocks_in(around.after)] = COPY
        by_host = (cause <= HOST) & (otherwise == HOST)
        in_call = np.isin(cause, (ALLOCATION, SYNCHRONIZATION, COPY)) & by_host & (row != NONE)
        in_range = ((cause <= DRIVER) | by_host) & ~in_call & (row != NONE)
        launched = ~by_host & (otherwise < BEFORE_FIRST)
        after = around.after[launched]
        call, annotation, op = (np.full(len(start), NONE, dtype=np.int64) for _ in range(3))
        in_operator = np.where(cause == HOST, NONE, key)[by_host]
        op[by_host] = self._nesting.operator(in_operator, middle[by_host])
        annotation[by_host] = self._nesting.annotation(key[by_host], middle[by_host])
        for column, found in (("op", op), ("range", annotation)):
            found[launched] = from_rows(self._trace.activities[column].gather(after))
        call[launched] = around.call[launched]
        call[in_call], annotation[in_range] = row[in_call], row[in_range]
        call[longest] = around.call[longest]
        return gaps.with_columns(
            pl.Series("cause", cause.astype(np.uint8)).cat.to(Cause),
            pl.Series("explained", explained),
            to_rows(call).alias("call"),
            to_rows(annotation).alias("range"),
            to_rows(op).alias("op"),
        )

    def _long_launch(self, around: _GapLaunches, start: Ints, end: Ints, by_host: Flags) -> Ints:
        """Return the part of each gap in a call that launched a kernel and took unusually long, 0
        without: it loaded code or initialized the device. Copies are staged in their calls."""
        call = around.call
        until = np.minimum(take(self._launches.call_end, call), end)
        part = np.where(by_host, until - np.maximum(around.launch_start, start), 0)
        copied = (around.after != NONE) & self._copies[around.after]
        part[copied | (call == NONE)] = 0
        return np.where(part > LONGEST_DISPATCH_NS, part, 0)

    def _blocks_in(self, activities: Ints) -> Flags:
        """Return whether each of ``activities`` is a copy whose call blocks; False for NONE.

        The driver stages pageable memory inside such a call, before the copy starts.
        """
        found: Flags = self._blocking[activities] & (activities != NONE)
        return found

    def _without_host(self, around: _GapLaunches, gaps: pl.DataFrame) -> Causes:
        """Return the cause of each gap by what the work after it waited for: the latest edge of the
        graph; ``HOST`` where that is its launch, and the call came after the begin of the gap."""
        start, end = gaps["start"].to_numpy(), gaps["end"].to_numpy()
        why = self._why[around.after]
        cause = np.select(
            [around.launch_start >= start, why == BY_STREAM], [HOST, QUEUED], LAUNCH_LATENCY
        ).astype(np.int8)
        cause[around.call == NONE] = NOT_RECORDED
        # Launched, and not started long after: no latency of a launch is as long.
        launched = take(self._launches.call_end, around.call)
        late = (around.call != NONE) & (end - launched > LONGEST_DISPATCH_NS)
        cause[late & (end - launched > np.maximum(around.launch_start - start, 0))] = QUEUED
        cause[around.same_call] = SAME_LAUNCH
        known = from_rows(gaps["cause"].to_physical())
        cause[known != NONE] = known[known != NONE]
        asked = (around.launch_start < start) | (cause == QUEUED)
        rows = np.flatnonzero((why == BY_EVENT) & asked & (known == NONE))
        awaited = self._awaited[around.after[rows]]
        ended = take(self._launches.end, awaited)
        # An event that was over before the gap, or long before its end, does not explain it.
        recent = (ended >= start[rows]) & (end[rows] - ended <= LONGEST_EVENT_LATENCY_NS)
        cause[rows[recent]] = self._cause_of_wait(awaited[recent])
        return cause

    def _cause_of_wait(self, activities: Ints) -> Causes:
        """Return the cause of a wait for each of ``activities``."""
        source = self._trace.activities.select(SOURCE)[activities]
        category = category_of(source, self._trace)
        cause = np.full(len(activities), EVENT, dtype=np.int8)
        for name, number in (("memcpy", COPY), ("collective", COLLECTIVE)):
            cause[category.eq(name).to_numpy()] = number
        return cause

    def _thread(self, around: _GapLaunches, start: Ints, by_host: Flags) -> Ints:
        """Return the thread that launches next, or the one that launched last if that is idle.

        A thread without a call, operator or range when the GPU went idle had not started, such as
        autograd's before the backward pass.
        """
        other = (around.thread != around.thread_before) & (around.thread_before != NONE) & by_host
        rows = np.flatnonzero(other)
        key, when = around.thread[rows], start[rows]
        busy = (self._nesting.operator(key, when) != NONE) | (
            self._nesting.annotation(key, when) != NONE
        )
        for number, here in rows_of(key):
            for one in self._host[number].values():
                at = one.first(when[here])
                inside = at < len(one.start)
                started = one.start[np.minimum(at, len(one.start) - 1)] <= when[here]
                busy[here] |= inside & started
        found = around.thread.copy()
        found[rows[~busy]] = around.thread_before[rows[~busy]]
        return found


class Launches(msgspec.Struct, frozen=True):
    """Start, end and launching call of each activity; start, end and thread of each call.

    ``call`` are rows, NONE for null; ``launching``: whether a call launched anything.
    """

    start: Ints
    end: Ints
    call: Ints
    call_start: Ints
    call_end: Ints
    call_thread: Ints
    launching: Flags

    @classmethod
    def of(cls, trace: Trace, call_thread: Ints) -> Launches:
        """Return the columns of ``trace``; ``call_thread`` numbers the thread of each call."""
        call = trace.activities["call"]
        activities, calls = trace.activities, trace.calls
        start, called = activities["start"].to_numpy(), calls["start"].to_numpy()
        launching = np.zeros(len(called), dtype=np.bool_)
        launching[call.drop_nulls().to_numpy()] = True
        return cls(
            start,
            start + activities["duration"].to_numpy(),
            from_rows(call),
            called,
            called + calls["duration"].to_numpy(),
            call_thread,
            launching,
        )


class _GapLaunches:
    """The calls that launched the work before and after each gap, and their threads."""

    def __init__(self, launches: Launches, gaps: pl.DataFrame) -> None:
        self.before, self.after = (from_rows(gaps[column]) for column in ("before", "after"))
        self.call, before = (take(launches.call, rows) for rows in (self.after, self.before))
        self.same_call = (self.call == before) & (before != NONE)
        threads = launches.call_thread
        self.thread, self.thread_before = (take(threads, rows) for rows in (self.call, before))
        self.launch_start = take(launches.call_start, self.call)


class LargestCauses(msgspec.Struct, frozen=True):
    """The cause of each gap, the time that it explains, and its interval on the thread.

    ``row`` is the first interval of the cause in the gap (a row of calls or ranges), ``middle`` the
    middle of its part in the gap, or of the gap up to the launch.
    """

    cause: npt.NDArray[np.int8]
    explained: Ints
    middle: Ints
    row: Ints


def largest_causes(
    host: Mapping[int, HostTime],
    start: Ints,
    end: Ints,
    launch: Ints,
    otherwise: Causes,
) -> LargestCauses:
    """Return the cause with the largest part of each gap, from ``start`` (in order) to ``end``.

    ``host`` has the time of the launching thread by cause; ``launch``, between start and end, is
    the start of the launch. ``otherwise`` is the cause of the rest: ``HOST`` for the unexplained
    time until the launch, any other for the whole gap except overhead.
    """
    gaps = _Gaps(start, end, launch)
    in_gaps = (_InGaps.of(gaps, number, host[number]) for number in sorted(host))
    found = [one for one in in_gaps if len(one.gaps)]
    parts, rest, overhead = _parts(gaps, found)
    _credit_blocking(found, parts, rest, start)
    explained = np.where(otherwise == HOST, rest, end - start - overhead)
    cause = otherwise.copy()
    # Of equal parts the first counts, which is the more specific cause.
    best = np.zeros_like(explained)
    for one in found:
        part = parts[one.number]
        here = one.gaps
        here = here[(part[here] > best[here]) & (part[here] >= explained[here])]
        best[here], cause[here] = part[here], one.number
    explained = np.maximum(best, explained)
    middle = (start + launch) // 2
    row = np.full(len(start), NONE, dtype=np.int64)
    for one in found:
        _locate(one, gaps, cause, middle, row)
    return LargestCauses(cause, explained, middle, row)


class _Gaps(msgspec.Struct, frozen=True):
    """Gaps by their start, and the start of the launch."""

    start: Ints
    end: Ints
    launch: Ints

    def stop(self, number: int) -> Ints:
        """Return the time up to which a cause counts in each gap."""
        return self.end if number <= _WHOLE_GAP else self.launch

    def only(self, rows: Ints) -> _Gaps:
        return _Gaps(self.start[rows], self.end[rows], self.launch[rows])


class _InGaps(msgspec.Struct, frozen=True):
    """The rows of ``gaps`` in which a cause occurs; ``at`` is its first interval in each."""

    number: int
    host: HostTime
    gaps: Ints
    at: Ints

    @classmethod
    def of(cls, gaps: _Gaps, number: int, host: HostTime) -> _InGaps:
        stop = gaps.stop(number)
        at = host.first(gaps.start)
        begins = np.append(host.start, _LATEST)[at]
        rows = np.flatnonzero((begins < stop) & (stop > gaps.start))
        return cls(number, host, rows, at[rows])

    def near(self, gaps: _Gaps) -> Intervals:
        """Return the intervals that overlap any of ``gaps``."""
        reach = np.maximum.accumulate(gaps.end)
        at = np.searchsorted(reach, self.host.start, side="right")
        kept = np.append(gaps.start, _LATEST)[at] < self.host.end
        return self.host.start[kept], self.host.end[kept]


def _parts(gaps: _Gaps, found: Sequence[_InGaps]) -> tuple[dict[int, Ints], Ints, Ints]:
    """Return the time by cause, counted once; the rest until the launch; the overhead.

    Where several causes overlap, the more specific one has the time.
    """
    count = np.zeros(len(gaps.start), dtype=np.int8)
    for one in found:
        count[one.gaps] += 1
    known = _Parts(
        {one.number: np.zeros_like(gaps.start) for one in found},
        np.zeros_like(gaps.start),
        np.zeros_like(gaps.start),
    )
    for one in found:
        known.divide(gaps, one.gaps[count[one.gaps] == 1], [one])
    known.divide(gaps, np.flatnonzero(count > 1), found)
    return known.by_cause, gaps.launch - gaps.start - known.until_launch, known.overhead


class _Parts(msgspec.Struct, frozen=True):
    """The time of each gap by cause, of all causes until the launch, and of overhead."""

    by_cause: dict[int, Ints]
    until_launch: Ints
    overhead: Ints

    def divide(self, gaps: _Gaps, rows: Ints, causes: Sequence[_InGaps]) -> None:
        """Set the time of ``rows``, in which exactly ``causes`` (by their number) occur."""
        if not len(rows):
            return
        part = gaps.only(rows)
        starts = ends = np.zeros(0, dtype=np.int64)
        before_launch, overhead = np.zeros_like(rows), np.zeros_like(rows)
        for one in causes:
            more = one.near(part)
            together = union(
                *(np.concatenate(pair) for pair in zip((starts, ends), more, strict=True))
            )
            starts, ends = together
            from_start = until(together, part.start)
            to_launch = until(together, part.launch) - from_start
            if one.number <= _WHOLE_GAP:
                whole = until(together, part.end) - from_start
                self.by_cause[one.number][rows] = whole - overhead
                overhead = whole
            else:
                self.by_cause[one.number][rows] = to_launch - before_launch
            before_launch = to_launch
        self.until_launch[rows], self.overhead[rows] = before_launch, overhead


def _credit_blocking(
    found: Sequence[_InGaps], parts: dict[int, Ints], rest: Ints, start: Ints
) -> None:
    """Charge a call that blocked the thread when the GPU went idle with the delay it caused.

    Without the wait the thread would have launched earlier by the time it waited: this much of its
    other time before the launch counts as the call's. ``parts`` and ``rest`` are changed in-place.
    """
    operators = parts.get(OPERATOR, np.zeros_like(rest))
    for one in found:
        if one.number not in (SYNCHRONIZATION, COPY):
            continue
        starts, ends = union(one.host.start, one.host.end)
        if not len(starts):
            continue
        at = np.searchsorted(starts, start[one.gaps], side="right") - 1
        blocked = (at != NONE) & (ends[at] > start[one.gaps])
        rows, at = one.gaps[blocked], at[blocked]
        waited = np.minimum(start[rows] - starts[at], rest[rows] + operators[rows])
        from_rest = np.minimum(waited, rest[rows])
        rest[rows] -= from_rest
        operators[rows] -= waited - from_rest
        parts[one.number][rows] += waited


def _locate(one: _InGaps, gaps: _Gaps, cause: Causes, middle: Ints, row: Ints) -> None:
    """Set ``middle`` and ``row`` of the gaps whose cause is ``one``."""
    host = one.host
    mine = cause[one.gaps] == one.number
    here, at = one.gaps[mine], one.at[mine]
    if one.number == OPERATOR:
        at_middle = host.first(middle[here])
        begins = np.append(host.start, _LATEST)[at_middle]
        outside = begins > middle[here]
        here, at = here[outside], at[outside]
    stop = gaps.stop(one.number)[here]
    middle[here] = (
        np.maximum(host.start[at], gaps.start[here]) + np.minimum(host.end[at], stop)
    ) // 2
    row[here] = host.row[at]
