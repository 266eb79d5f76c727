"""What happened in a process as a graph: device work and moments of host threads, and what each
waited for.

A node is a piece of device work, or a moment of a thread: a launch, the begin or end of a waiting
call, the begin of activity after that of another thread, a step's marker. An edge leads from what
was waited for to what waited, and has the time that passed in between, its lag. A node happens as
soon as all its edges allow. In the trace this is its recorded time: what no edge explains is part
of the lag of its latest one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec.structs import replace

from traceana.enrich.distinct_values import Texts
from traceana.enrich.nesting import NONE, Flags, Ints, Nesting, take, timeline
from traceana.enrich.ranges import ThreadRanges
from traceana.settings import REPLAYED_ACTIVITIES
from traceana.timeline.critical import cut
from traceana.timeline.critical_path import processes, windows
from traceana.timeline.device_waits import BY_EVENT, BY_LAUNCH, BY_STREAM
from traceana.timeline.event_waits import ANY
from traceana.timeline.host_waits import (
    EVENT_CALL,
    STREAM_CALL,
    WAITING,
    ThreadKeys,
    Waits,
    streams_waited_for,
)
from traceana.timeline.steps import measured_steps, span_of

Floats = npt.NDArray[np.float64]

if TYPE_CHECKING:
    from traceana.trace import Trace

HOST, WAIT, LAUNCH, STREAM, EVENT, SYNC, HANDOVER = range(7)
"""Kinds of edges: time of a thread; a thread that waits, in a call or idle; from a launch to its
work; from work to the next on its stream, or through an event; from work to the end of a call that
waited for it; from one thread to another."""

_MOST_QUEUES: Final = 64
"""Streams of a process; with more, a call that waits for all has the recorded wait alone."""


class Edges(msgspec.Struct, frozen=True):
    """Edges in the order of their targets.

    ``thread`` is -1, or the lag has the time of that thread from ``begin`` to ``until`` (ns).
    """

    source: Ints
    target: Ints
    kind: Ints
    lag: Ints
    thread: Ints
    begin: Ints
    until: Ints


class Graph(msgspec.Struct, frozen=True):
    """The graph of one process. Whatever is waited for has a smaller number than what waits.

    ``at`` is when a node happened: the time of a moment, the start of work; ``duration`` is that of
    work, else 0. ``activity`` is the row of work in ``activities``, ``step`` the row in ``steps``
    of the step that launched it; else -1. ``steps`` are the windows of the process; ``begins`` and
    ``ends`` the moments of their markers, -1 without.
    """

    at: Ints
    duration: Ints
    activity: Ints
    step: Ints
    edges: Edges
    host: HostTime
    steps: pl.DataFrame
    begins: Ints
    ends: Ints


def graphs(trace: Trace, numbers: Collection[int] | None = None) -> Iterator[Graph]:
    """Yield the graph of each process of ``trace`` that marked steps; without steps of each rank.

    With ``numbers`` it is the graph of these steps, which are consecutive, and of all that happened
    from the begin of the first to the end of the last. ``trace`` is taken as a whole, whatever is
    selected of it.
    """
    whole = trace.whole
    own = windows(whole).with_row_index("step_row")
    threads = ThreadKeys.of(whole, own)
    if numbers is not None:
        own = own.filter(pl.col("number").is_in(numbers))
    for steps in processes(own):
        between = None if numbers is None else _between(whole, steps)
        yield _graph(whole, steps, threads, between)


def _between(trace: Trace, steps: pl.DataFrame) -> tuple[int, int]:
    begin = trace.steps["start"].gather(steps["step_row"]).to_numpy()
    return int(begin.min()), int(steps["end"].to_numpy().max())


def _graph(
    trace: Trace, steps: pl.DataFrame, threads: ThreadKeys, between: tuple[int, int] | None
) -> Graph:
    waits = Waits.of(trace, steps, threads, between)
    device = waits.device
    # A copy that blocks can have begun at any time in its call.
    within = device.blocking & (device.returned == device.start)
    launched = np.where(within, device.launched, device.returned)
    known = (device.call != NONE) & (waits.launching != NONE)
    marker, begin, end = _markers(trace, steps, waits)
    marked = marker != NONE
    marks = np.concatenate((marker[marked],) * 2), np.concatenate((begin[marked], end[marked]))
    calling, idle = _Calls.of(trace, waits), _Handovers.of(waits, *marks)
    moments = _Moments.of(
        (waits.launching[known], launched[known]),
        (calling.thread, calling.begin),
        (calling.thread, calling.end),
        (idle.thread, idle.begin),
        (idle.thread, idle.end),
        (idle.other, idle.handed),
        marks,
    )
    count = len(moments.time)
    work = count + np.arange(len(device.start))
    returned, resumed = (moments.find(of.thread, of.end) for of in (calling, idle))
    waited = calling.waited != NONE
    late = calling.end[waited] - device.end[calling.waited[waited]]
    # A thread that waited needs no time of its own, but what its call took to return.
    least = np.full(count, NONE, dtype=np.int64)
    least[resumed[idle.handed > idle.begin]] = 0
    least[returned[waited]] = late
    edges = _Edges()
    edges.along_threads(moments, least)
    launch = moments.find(waits.launching[known], launched[known])
    latency = _lag(device.start - launched, device.why == BY_LAUNCH, known)
    edges.add(launch, work[known], LAUNCH, latency[known])
    awaited = np.where(device.by_event != NONE, device.by_event, device.by_record)
    for before, kind, why in (
        (device.on_stream, STREAM, BY_STREAM),
        (awaited, EVENT, BY_EVENT),
    ):
        has = before != NONE
        gap = _lag(device.start - device.end[before], device.why == why, has)
        edges.add(work[before[has]], work[has], kind, gap[has])
    edges.add(work[calling.waited[waited]], returned[waited], SYNC, late)
    also = returned[calling.also]
    edges.add(work[calling.launched], also, SYNC, np.zeros(len(also), dtype=np.int64))
    handed = moments.find(idle.other, idle.handed)
    # The annotations of the thread that marks the steps name the time before another goes on.
    spent = np.where(np.isin(idle.other, marker), idle.other, idle.thread)
    since = np.maximum(idle.handed, idle.begin)
    edges.add(handed, resumed, HANDOVER, idle.end - since, (spent, since, idle.end))
    at = np.concatenate((moments.time, device.start))
    duration = np.concatenate((np.zeros(count, dtype=np.int64), device.end - device.start))
    # Of equal times a moment comes first: the work that starts then was launched by it.
    order = np.argsort(at, kind="stable")
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    first = np.flatnonzero(np.append(True, moments.thread[1:] != moments.thread[:-1])[:count])
    last = np.append(first[1:], count)[: len(first)] - 1
    of_moments = np.full(count, NONE, dtype=np.int64)
    begins, ends = np.full(len(marker), NONE), np.full(len(marker), NONE)
    for nodes, time in ((begins, begin), (ends, end)):
        nodes[marked] = number[moments.find(marker[marked], time[marked])]
    return Graph(
        at[order],
        duration[order],
        np.concatenate((of_moments, device.activity))[order],
        np.concatenate((of_moments, _step_of(trace, steps, device.activity)))[order],
        edges.placed(number, at[order], (at + duration)[order]),
        HostTime.of(trace, threads, moments.thread[first], moments.time[first], moments.time[last]),
        steps,
        begins,
        ends,
    )


def _lag(passed: Ints, decided: Flags, known: Flags) -> Ints:
    """Return the lag of edges after which ``passed`` nanoseconds passed.

    It is all of it where the edge ``decided``; else what such edges usually take, their median, if
    that is less.
    """
    usual = passed[decided & known]
    most = int(np.median(usual)) if len(usual) else 0
    return np.where(decided, passed, np.minimum(passed, most))


def _step_of(trace: Trace, steps: pl.DataFrame, activity: Ints) -> Ints:
    """Return the row in ``steps`` of the step of each of the activities, or -1."""
    if trace.steps.is_empty():
        return np.zeros(len(activity), dtype=np.int64)
    own = np.full(trace.steps.height + 1, NONE, dtype=np.int64)
    own[steps["step_row"].to_numpy()] = np.arange(steps.height)
    step = trace.activities["step"].cast(pl.Int64).fill_null(trace.steps.height).to_numpy()
    found: Ints = own[step[activity]]
    return found


def _markers(trace: Trace, steps: pl.DataFrame, waits: Waits) -> tuple[Ints, Ints, Ints]:
    """Return the thread, begin and end of the marker of each of ``steps``.

    The thread is -1 where it has no operators and calls, and device work was launched: then the
    step is that of its work.
    """
    if trace.steps.is_empty():
        none = np.full(steps.height, NONE, dtype=np.int64)
        return none, steps["begin"].to_numpy(), steps["end"].to_numpy()
    active = np.isin(waits.markers, list(waits.host.spans))
    if not len(waits.device.start):
        active |= True
    begin = trace.steps["start"].gather(steps["step_row"]).to_numpy()
    return np.where(active, waits.markers, NONE), begin, steps["host_end"].to_numpy()


class _Moments(msgspec.Struct, frozen=True):
    """Distinct moments of threads, by thread and time."""

    thread: Ints
    time: Ints

    @classmethod
    def of(cls, *pairs: tuple[Ints, Ints]) -> _Moments:
        thread, time = (np.concatenate(part).astype(np.int64) for part in zip(*pairs, strict=True))
        order = np.lexsort((time, thread))
        thread, time = thread[order], time[order]
        new = np.append(True, (thread[1:] != thread[:-1]) | (time[1:] != time[:-1]))[: len(thread)]
        return cls(thread[new], time[new])

    def find(self, thread: Ints, time: Ints) -> Ints:
        """Return the number of moments that are among these."""
        own = len(self.thread)
        both = np.concatenate((self.thread, thread)), np.concatenate((self.time, time))
        (place,) = timeline(*both)
        return np.searchsorted(place[:own], place[own:])


class _Calls(msgspec.Struct, frozen=True):
    """Calls that wait for device work: thread, begin and end, and the work ``waited`` for, or -1.

    ``also`` and ``launched`` are pairs of a call and work that had been launched before on a stream
    that it waits for: it would have waited if that had ended later.
    """

    thread: Ints
    begin: Ints
    end: Ints
    waited: Ints
    also: Ints
    launched: Ints

    @classmethod
    def of(cls, trace: Trace, waits: Waits) -> _Calls:
        calls = trace.calls
        found = [
            (call, work)
            for of in waits.host.waits.values()
            for call, work in zip(of.call, of.work, strict=True)
        ]
        recorded = np.array(found, dtype=np.int64).reshape(-1, 2)
        named = Texts.of(calls["name"]).matching(WAITING) & (waits.calls != NONE)
        others = np.setdiff1d(np.flatnonzero(named), recorded[:, 0])
        call = np.concatenate((recorded[:, 0], others))
        waited = np.concatenate((recorded[:, 1], np.full(len(others), NONE, dtype=np.int64)))
        begin = calls["start"].to_numpy()[call]
        end = begin + calls["duration"].to_numpy()[call]
        also, launched = _launched_before(trace, waits, call, begin, end)
        return cls(waits.calls[call], begin, end, waited, also, launched)


def _launched_before(
    trace: Trace, waits: Waits, call: Ints, begin: Ints, end: Ints
) -> tuple[Ints, Ints]:
    """Return pairs of a waiting call and the last work of a stream that it waits for."""
    device = waits.device
    streams = np.unique(device.stream)
    if len(streams) > _MOST_QUEUES:
        streams = streams[:0]
    names = Texts.of(trace.calls["name"].gather(call))
    of_all = ~names.matching(EVENT_CALL)
    if len(streams) > 1:
        of_all &= ~names.matching(STREAM_CALL)
    # Which stream is not always recorded.
    recorded = streams_waited_for(trace, device, call)
    of_all &= recorded == ANY
    pairs: list[tuple[Ints, Ints]] = [(np.zeros(0, dtype=np.int64),) * 2]
    for stream in streams.tolist():
        rows = np.flatnonzero(device.stream == stream)
        rows = rows[np.argsort(device.launched[rows], kind="stable")]
        position = np.searchsorted(device.launched[rows], begin, side="left") - 1
        last = rows[np.maximum(position, 0)]
        waited_for = of_all | (recorded == stream)
        own = np.flatnonzero(waited_for & (position >= 0) & (device.end[last] <= end))
        pairs.append((own, last[own]))
    also, work = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return also, work


class _Handovers(msgspec.Struct, frozen=True):
    """Idle times of a thread, ``begin`` to ``end``, in which activity of another thread ended last:
    that thread, and when (``handed``).

    After an annotation in which it was busy a thread would have waited for activity that had ended
    before: there ``handed`` is before ``begin``.

    The begin and end of a step are activity of the thread that marks it: the threads of TensorFlow
    and XLA compute while it has neither operators nor calls.
    """

    thread: Ints
    begin: Ints
    end: Ints
    other: Ints
    handed: Ints

    @classmethod
    def of(cls, waits: Waits, marking: Ints, marked: Ints) -> _Handovers:
        """Return those of all threads; the threads ``marking`` mark steps at ``marked``."""
        ended = np.array(waits.host.handing_end, dtype=np.int64)
        whose = np.array(waits.host.handing_thread, dtype=np.int64)
        active = {
            thread: (np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64))
            for thread, (begins, ends) in waits.host.spans.items()
        }
        for thread in np.unique(marking).tolist():
            begins, ends = active.get(thread, (np.zeros(0, dtype=np.int64),) * 2)
            times = np.unique(marked[marking == thread])
            before = np.searchsorted(begins, times, side="right") - 1
            idle = (before < 0) | (np.append(ends, [0])[before] < times)
            times = times[idle]
            active[thread] = np.sort(np.append(begins, times)), np.sort(np.append(ends, times))
            ended, whose = np.append(ended, times), np.append(whose, np.full(len(times), thread))
        order = np.argsort(ended, kind="stable")
        ended, whose = ended[order], whose[order]
        parts = [_Handovers(*(np.zeros(0, dtype=np.int64),) * 5)]
        for thread, (resumed, ends) in active.items() if len(ended) else ():
            # Before its first activity a thread waited since ever.
            idle_since = np.append(resumed[:1], ends[:-1])
            others = np.flatnonzero(whose != thread)
            last = np.searchsorted(ended[others], resumed, side="left") - 1
            other = last >= 0
            last = others[last[other]]
            first = np.flatnonzero(other) == 0
            after_busy = np.isin(idle_since[other], waits.host.busy.get(thread, []))
            waited = first | after_busy | (ended[last] > idle_since[other])
            other[other], last = waited, last[waited]
            own = np.full(len(last), thread)
            parts.append(
                _Handovers(own, idle_since[other], resumed[other], whose[last], ended[last])
            )
        return cls(
            *(np.concatenate([getattr(one, name) for one in parts])
              for name in cls.__struct_fields__)
        )  # fmt: skip


class _Edges:
    """Edges as they are collected."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Ints]] = {name: [] for name in Edges.__struct_fields__}

    def add(
        self,
        source: Ints,
        target: Ints,
        kind: int,
        lag: Ints,
        within: tuple[Ints, Ints, Ints] | None = None,
    ) -> None:
        """Add edges; their lag has the time ``within`` a thread, from one time to another."""
        none = np.full(len(source), NONE, dtype=np.int64)
        columns = (source, target, np.full(len(source), kind), lag, *(within or (none,) * 3))
        for part, column in zip(self._parts.values(), columns, strict=True):
            part.append(column)

    def along_threads(self, moments: _Moments, least: Ints) -> None:
        """Add the edges from each moment to the next of its thread.

        Their lag is the time between, or ``least`` where that is not -1.
        """
        same = np.flatnonzero(moments.thread[1:] == moments.thread[:-1])
        rows = same[least[same + 1] == NONE]
        begin, until = moments.time[rows], moments.time[rows + 1]
        self.add(rows, rows + 1, HOST, until - begin, (moments.thread[rows], begin, until))
        rows = same[least[same + 1] != NONE]
        self.add(rows, rows + 1, WAIT, least[rows + 1])

    def placed(self, number: Ints, at: Ints, done: Ints) -> Edges:
        """Return the edges by target, of nodes that are numbered anew.

        ``at`` is when each node happened, ``done`` when it was over. Lags are at most what passed;
        what no edge of a node explains is added to the latest of them.
        """
        columns = {name: np.concatenate(part) for name, part in self._parts.items()}
        columns["source"], columns["target"] = number[columns["source"]], number[columns["target"]]
        passed = at[columns["target"]] - done[columns["source"]]
        kept = (columns["source"] < columns["target"]) & (passed >= 0)
        columns["lag"] = np.minimum(columns["lag"], passed)
        order = np.flatnonzero(kept)
        order = order[np.argsort(columns["target"][order], kind="stable")]
        edges = Edges(**{name: column[order] for name, column in columns.items()})
        if not len(order):
            return edges
        first = np.flatnonzero(np.append(True, edges.target[1:] != edges.target[:-1]))
        reached = done[edges.source] + edges.lag
        latest = np.maximum.reduceat(reached, first)
        missing = at[edges.target[first]] - latest
        group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
        of_latest = np.flatnonzero(reached == latest[group])
        _, one = np.unique(group[of_latest], return_index=True)
        lag = edges.lag.copy()
        lag[of_latest[one]] += missing
        return replace(edges, lag=lag)


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
        times as long as its factor.

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


class Part(msgspec.Struct, frozen=True):
    """The numbers of the steps to replay, in order, None for the whole trace, and how many
    activities that are."""

    numbers: list[int] | None
    activities: int

    @property
    def note(self) -> str | None:
        """The note on a part of a trace."""
        if self.numbers is None:
            return None
        steps = "step" if len(self.numbers) == 1 else "steps"
        most = f"{REPLAYED_ACTIVITIES:,} activities"
        return f"replayed: {steps} {span_of(self.numbers)}, around the middle (at most {most})"


def part_of(trace: Trace) -> Part:
    """Return the part of ``trace`` to replay.

    It has consecutive steps around the middle of the measured ones with at most
    ``REPLAYED_ACTIVITIES``, after the one before them, with which the replay begins; the middle
    step alone where it has more. A trace without steps is replayed as a whole.
    """
    whole = trace.whole
    if trace.steps.is_empty() or whole.activities.height <= REPLAYED_ACTIVITIES:
        return Part(None, whole.activities.height)
    numbers = whole.steps.group_by("number").agg(pl.col("start").min()).sort("start")["number"]
    counts = _activities(whole, numbers)
    (measured,) = np.nonzero(numbers.is_in(measured_steps(trace).numbers).to_numpy())
    first = last = middle = int(measured[len(measured) // 2])
    lowest, highest = max(int(measured[0]) - 1, 0), int(measured[-1])
    left = REPLAYED_ACTIVITIES - counts[middle]
    while first > lowest or last < highest:
        # In turn, so that the first that is added is the one before.
        before = last == highest or (first > lowest and middle - first <= last - middle)
        left -= counts[first - 1 if before else last + 1]
        if left < 0:
            break
        first, last = (first - 1, last) if before else (first, last + 1)
    return Part(numbers[first : last + 1].to_list(), sum(counts[first : last + 1]))


def _activities(trace: Trace, numbers: pl.Series) -> list[int]:
    """Return how many activities each of the steps ``numbers`` launched, of all processes."""
    own = trace.steps["number"].gather(trace.activities["step"].drop_nulls())
    counted = own.value_counts(name="count")
    of = dict(zip(counted["number"], counted["count"], strict=True))
    return [of.get(number, 0) for number in numbers]
