"""Host threads: when each was active, what its calls waited for, and who passed work to whom.

A call waits for device work where it synchronizes, copies pageable memory, or finds the launch
queue full. A thread without operators and calls waits for the thread that was active last.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.columns.distinct import Texts, Threads
from traceana.columns.intervals import Intervals, times, union
from traceana.columns.nesting import NONE, Flags, Ints, Nesting, from_rows, take, timeline
from traceana.enrich.ranges import ThreadRanges
from traceana.settings import BUSY_ANNOTATION, FULL_QUEUE, LONG_LAUNCH, LONGEST_CLOCK_ERROR_NS
from traceana.timeline.waits import (
    ANY,
    NO_WORK,
    STREAM_WAIT,
    Ended,
    WorkWaits,
    event_keys,
    keys_of,
    recorded_work,
)

if TYPE_CHECKING:
    from traceana.trace import Trace

Floats = npt.NDArray[np.float64]

STREAM_CALL: Final = r"StreamSynchronize"
EVENT_CALL: Final = r"EventSynchronize"
_FREE: Final = r"^(?:cuda|hip)(?:Free(?:Host|Array)?|HostFree)$|^cuMemFree(?:Host)?(?:_v2)?$"
WAITING: Final = rf"Synchronize|{_FREE}"
"""Calls that block until device work is done; launches and copies can block too.

``cudaMalloc`` does not block: it returns while earlier work is running."""

_STREAM_SYNC: Final = "Stream Sync"
_CONTEXT_SYNC: Final = "Context Sync"
"""The names that readers give to CUPTI's records of waits for a whole stream or context."""

_MOST_QUEUES: Final = 64
"""Streams of a process; with more, a call that waits for all has the recorded wait alone."""

_NO_TIMES: Final = np.zeros(0, dtype=np.int64)


def active_spans(trace: Trace, op_key: Ints, call_key: Ints) -> dict[int, Intervals]:
    """Return by thread when it was in an operator or a call; NONE: not on a thread."""
    key = np.concatenate((op_key, call_key))
    start, end = (
        np.concatenate(both)
        for both in zip(times(trace.tables.ops), times(trace.tables.calls), strict=True)
    )
    order = np.argsort(key, kind="stable")
    keys = np.unique(key[key != NONE])
    first = np.searchsorted(key[order], keys, side="left")
    after = np.searchsorted(key[order], keys, side="right")
    spans = {}
    for thread, low, high in zip(keys.tolist(), first, after, strict=True):
        rows = order[low:high]
        spans[thread] = union(start[rows], end[rows])
    return spans


class WaitingCalls(msgspec.Struct, frozen=True):
    """Calls that wait for device work: the row of each in ``calls``, and the work ``waited`` for (a
    row of :class:`~traceana.timeline.waits.WorkWaits`), NONE where that had ended before.

    ``also`` and ``launched`` are pairs of a position in ``call`` and work that had been launched
    before on a stream that it waits for: it would have waited if that had ended later.
    """

    call: Ints
    waited: Ints
    also: Ints
    launched: Ints


def waiting_calls(trace: Trace, device: WorkWaits, call_key: Ints) -> WaitingCalls:
    """Return the calls of the threads ``call_key`` (NONE: not these) that wait for ``device``."""
    names, (start, end) = Texts.of(trace.tables.calls["name"]), times(trace.tables.calls)
    named = np.flatnonzero(names.matching(WAITING) & (call_key != NONE))
    records = _wait_records(trace, device)
    recorded = from_rows(records["call"])
    # A record has the stream and the context, besides the name of the call.
    named = np.setdiff1d(named, recorded)
    rows = np.concatenate((named, recorded))
    begin = start[rows]
    # A call that frees memory does not always wait, so that it tells nothing about the clocks.
    of_event, of_stream, free = (
        names.matching(name)[rows] for name in (EVENT_CALL, STREAM_CALL, _FREE)
    )
    of = np.full(len(rows), ANY, dtype=np.int64)
    kind = trace.tables.names["name"].gather(records["name_id"])
    on_stream = (kind == _STREAM_SYNC).to_numpy()
    stream_keys = keys_of(records, device.streams, "context", "stream")
    of[len(named) :][on_stream] = stream_keys[on_stream]
    until = end[rows] + _clock_error(device, begin, end[rows], of, of_event | of_stream | free)
    every = Ended.of(np.zeros_like(device.end), device.end, device.launched)
    work = every.last_launched(np.zeros_like(rows), begin, until, begin)
    # Streams by device: contexts of several devices can have equal numbers, or null.
    devices = device.streams.select(pl.struct("device", "context").rank("dense"))
    of_device = devices.to_series().cast(pl.Int64).to_numpy()[device.stream]
    for queues, meant in ((device.stream, of_stream), (of_device, ~of_event & ~of_stream)):
        some = np.flatnonzero(meant)
        work[some] = _emptied(device, queues, begin[some], until[some])
    by_stream, by_context = (
        Ended.of(keys, device.end, device.launched) for keys in (device.stream, device.context)
    )
    on_context = np.full(len(rows), ANY, dtype=np.int64)
    in_context = (kind == _CONTEXT_SYNC).to_numpy()
    context_keys = keys_of(records, device.contexts, "context")
    on_context[len(named) :][in_context] = context_keys[in_context]
    for index, keys in ((by_stream, of), (by_context, on_context)):
        narrower = index.last_launched(np.maximum(keys, 0), begin, until, begin)
        work = np.select([keys == ANY, keys == NO_WORK], [work, NONE], narrower)
    event = np.full(len(rows), ANY, dtype=np.int64)
    on = event_keys(records, device.streams, "context", "stream")
    event[len(named) :] = recorded_work(trace, records, on, device.stream, device.launched)
    ended = take(device.end, np.maximum(event, NONE))
    in_time = (event >= 0) & (ended > begin) & (ended <= until)
    work = np.select([event == ANY, in_time], [work, event], NONE)
    for launching, awaited in (_blocking_copies(trace, device), _full_queue(trace, device)):
        rows, work = np.concatenate((rows, launching)), np.concatenate((work, awaited))
        of = np.concatenate((of, np.full(len(launching), NO_WORK)))
    known = call_key[rows] != NONE if len(rows) else np.zeros(0, dtype=np.bool_)
    rows, work, of = rows[known], work[known], of[known]
    return WaitingCalls(rows, work, *_launched_before(trace, device, rows, of))


def _clock_error(device: WorkWaits, begin: Ints, end: Ints, of: Ints, narrower: Flags) -> int:
    """Return by how much a wait seems to end before the work that it waits for (ns).

    The host and the device have clocks of their own. Calls that wait for all work, or for a known
    stream, cannot return before its last work has ended.
    """
    order = np.argsort(device.launched, kind="stable")
    error = 0
    asked = [(np.flatnonzero(~narrower & (of == ANY)), order)]
    asked += [
        (np.flatnonzero(of == stream), order[device.stream[order] == stream])
        for stream in np.unique(of[of >= 0]).tolist()
    ]
    for calls, work in asked:
        if not len(work):
            continue
        latest = np.maximum.accumulate(device.end[work])
        last = np.searchsorted(device.launched[work], begin[calls], side="left") - 1
        late = np.where(last >= 0, latest[last] - end[calls], 0)
        late = late[(late > 0) & (late <= LONGEST_CLOCK_ERROR_NS)]
        error = max(error, int(late.max(initial=0)))
    return error


def _wait_records(trace: Trace, device: WorkWaits) -> pl.DataFrame:
    """Return the records of the host's waits, one per call, with ``requested``, its start."""
    syncs = device.syncs
    names = trace.tables.names["name"].gather(syncs["name_id"])
    records = syncs.filter((names != STREAM_WAIT) & syncs["call"].is_not_null()).unique(
        "call", keep="first", maintain_order=True
    )
    return records.with_columns(
        trace.tables.calls["start"].gather(records["call"]).alias("requested")
    )


def _emptied(device: WorkWaits, key: Ints, begin: Ints, end: Ints) -> Ints:
    """Return the work that emptied a queue (``key`` of each piece) between ``begin`` and ``end``.

    It is the last to end of the work launched there before ``begin``. Of several queues the last
    one counts; NONE where all queues still had work.
    """
    found = np.full(len(begin), NONE, dtype=np.int64)
    order = np.lexsort((device.launched, key))
    edges = np.searchsorted(key[order], np.append(np.unique(key), key.max(initial=0) + 1))
    for low, high in itertools.pairwise(edges.tolist()):
        rows = order[low:high]
        position = np.searchsorted(device.launched[rows], begin, side="left") - 1
        # Rows are in the order of their ends: the greatest so far ends last.
        last = take(np.maximum.accumulate(rows), np.maximum(position, NONE))
        ended = take(device.end, last)
        empty = (last != NONE) & (ended > begin) & (ended <= end)
        found = np.where(empty, np.maximum(found, last), found)
    return found


def _blocking_copies(trace: Trace, device: WorkWaits) -> tuple[Ints, Ints]:
    """Return the calls that wait for the work that they launch, and the work that they wait for.

    It is that work itself, if it ended in the call. A call that copies pageable memory returns when
    the last part of it is staged: the copy runs for most of its time in the call, and ends shortly
    after it. Else the call waited for the work before.
    """
    work = np.flatnonzero(device.blocking)
    call = device.call[work]
    begin, end = (time[call] for time in times(trace.tables.calls))
    paced = 2 * (np.minimum(device.end[work], end) - device.start[work]) > (
        device.end[work] - device.start[work]
    )
    before = device.before[work]
    ended = take(device.end, before)
    waited = (device.start[work] < end) & (ended > begin) & (ended <= end) & (before != NONE)
    found = np.where((device.end[work] <= end) | paced, work, np.where(waited, before, NONE))
    call, found = call[found != NONE], found[found != NONE]
    # Of a copy in parts the call waits for the last.
    order = np.lexsort((device.end[found], call))
    last = np.append(np.diff(call[order]) != 0, True)[: len(call)]
    return call[order][last], found[order][last]


def _full_queue(trace: Trace, device: WorkWaits) -> tuple[Ints, Ints]:
    """Return the launching calls that waited for room in the launch queue, and the work that ended
    last before they returned.

    The driver queues about 1,024 launches of a stream; further calls block. Such a call takes much
    longer than others of its name, while many launches have no work yet.
    """
    rows = np.flatnonzero((device.call != NONE) & ~device.blocking)
    call, first = np.unique(device.call[rows], return_index=True)
    stream = device.stream[rows[first]]
    begin, end = (time[call] for time in times(trace.tables.calls))
    queued = np.zeros(len(call), dtype=np.int64)
    awaited = np.full(len(call), NONE, dtype=np.int64)
    for one in np.unique(stream).tolist():
        here = np.flatnonzero(stream == one)
        own = np.flatnonzero(device.stream == one)
        if len(own) <= FULL_QUEUE:
            continue
        launched, ended = np.sort(device.launched[own]), device.end[own]
        queued[here] = np.searchsorted(launched, begin[here]) - np.searchsorted(ended, begin[here])
        last = np.searchsorted(ended, end[here], side="right") - 1
        awaited[here] = np.where(last >= 0, own[last], NONE)
    if not (queued > FULL_QUEUE).any():
        return _NO_TIMES, _NO_TIMES
    took = pl.DataFrame({"name": trace.tables.calls["name"].gather(call), "ns": end - begin})
    usual = took.select(pl.col("ns").median().over("name")).to_series().to_numpy()
    blocked = (queued > FULL_QUEUE) & (end - begin > LONG_LAUNCH * usual)
    blocked &= take(device.end, awaited) > begin
    return call[blocked], awaited[blocked]


def _launched_before(trace: Trace, device: WorkWaits, call: Ints, of: Ints) -> tuple[Ints, Ints]:
    """Return pairs of a position in ``call`` and the last work of a stream that it waits for.

    ``of`` is the stream that a call waits for, ANY where no record names it.
    """
    begin, end = (time[call] for time in times(trace.tables.calls))
    streams = np.unique(device.stream)
    if len(streams) > _MOST_QUEUES:
        streams = streams[:0]
    names = Texts.of(trace.tables.calls["name"].gather(call))
    of_all = names.matching(WAITING) & ~names.matching(EVENT_CALL) & (of == ANY)
    if len(streams) > 1:
        of_all &= ~names.matching(STREAM_CALL)
    pairs: list[tuple[Ints, Ints]] = [(_NO_TIMES, _NO_TIMES)]
    for stream in streams.tolist():
        rows = np.flatnonzero(device.stream == stream)
        rows = rows[np.argsort(device.launched[rows], kind="stable")]
        position = np.searchsorted(device.launched[rows], begin, side="left") - 1
        last = rows[np.maximum(position, 0)]
        own = np.flatnonzero(
            (of_all | (of == stream)) & (position >= 0) & (device.end[last] <= end)
        )
        pairs.append((own, last[own]))
    also, work = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return also, work


class Handovers(msgspec.Struct, frozen=True):
    """Idle times of a thread, ``begin`` to ``end``, in which activity of another thread ended last:
    that thread, and when (``handed``).

    After a CPU-bound range a thread would have waited for activity that had ended before: there
    ``handed`` is before ``begin``.
    """

    thread: Ints
    begin: Ints
    end: Ints
    other: Ints
    handed: Ints


def handovers(
    trace: Trace,
    spans: dict[int, Intervals],
    partners: Ints,
    range_key: Ints,
    marking: Ints,
    marked: Ints,
) -> Handovers:
    """Return the handovers between the threads of ``spans``.

    Work is passed on by the threads ``partners``, and at a step's begin and end (``marked``) by the
    thread that marks it (``marking``): the threads of TensorFlow and XLA compute while that has
    neither operators nor calls. ``range_key`` are the threads of the trace's ranges; where it is
    empty, ranges do not matter.
    """
    parts = [(thread, spans[thread][1]) for thread in partners.tolist() if thread in spans]
    active, busy = dict(spans), {}
    for thread in np.unique(marking).tolist():
        if len(range_key):
            others = [ends for one, ends in parts if one != thread]
            passed_on = np.sort(np.concatenate([_NO_TIMES, *others]))
            own = active.get(thread, (_NO_TIMES, _NO_TIMES))
            begins, ends = cpu_bound_ranges(trace, range_key, thread, own, passed_on)
            busy[thread] = ends
            both = np.append(own[0], begins), np.append(own[1], ends)
            active[thread] = union(*both)
    for thread in np.unique(marking).tolist():
        begins, ends = active.get(thread, (_NO_TIMES, _NO_TIMES))
        times = np.unique(marked[marking == thread])
        before = np.searchsorted(begins, times, side="right") - 1
        idle = (before < 0) | (np.append(ends, [0])[before] < times)
        times = times[idle]
        active[thread] = np.sort(np.append(begins, times)), np.sort(np.append(ends, times))
        parts.append((thread, times))
    ended = np.concatenate([_NO_TIMES, *(ends for _, ends in parts)])
    whose = np.concatenate([_NO_TIMES, *(np.full(len(ends), one) for one, ends in parts)])
    order = np.argsort(ended, kind="stable")
    ended, whose = ended[order], whose[order]
    found = [Handovers(*(_NO_TIMES,) * 5)]
    for thread, (resumed, ends) in active.items() if len(ended) else ():
        # Before its first activity a thread waited since ever.
        idle_since = np.append(resumed[:1], ends[:-1])
        of_others = np.flatnonzero(whose != thread)
        last = np.searchsorted(ended[of_others], resumed, side="left") - 1
        other = last >= 0
        last = of_others[last[other]]
        first = np.flatnonzero(other) == 0
        after_busy = np.isin(idle_since[other], busy.get(thread, _NO_TIMES))
        waited = first | after_busy | (ended[last] > idle_since[other])
        other[other], last = waited, last[waited]
        whom = np.full(len(last), thread)
        found.append(Handovers(whom, idle_since[other], resumed[other], whose[last], ended[last]))
    return Handovers(
        *(np.concatenate([getattr(one, name) for one in found])
          for name in Handovers.__struct_fields__)
    )  # fmt: skip


_FEWEST_RANGES: Final = 3
"""Recordings of one range from which its durations have a spread."""


def cpu_bound_ranges(
    trace: Trace, key: Ints, thread: int, active: Intervals, others: Ints
) -> Intervals:
    """Return start and end of the CPU-bound ranges of ``thread``, by their start.

    In such a range the thread works in code that no profiler records; in others it waits until
    another thread ends its work (``others``, in order). Repetition tells them apart: own work takes
    the same time each time, a wait ends a constant time after the other thread's work. ``key`` are
    the threads of the annotations, ``active`` the operators and calls of ``thread``. Markers of
    steps are around all that a thread does and do not count.
    """
    own = np.flatnonzero(key == thread)
    if not len(own) or not len(others):
        return _NO_TIMES, _NO_TIMES
    ranges = trace.tables.ranges[own].select("text", "kind", "start", "duration")
    start, end = times(ranges)
    handed = others[np.searchsorted(others, end, side="left") - 1]
    last = np.searchsorted(active[0], end, side="left") - 1
    active_until = np.where(last < 0, np.iinfo(np.int64).min, np.append(active[1], 0)[last])
    steps = trace.tables.steps.select(
        "start", "duration", pl.lit(value=True).alias("marks")
    ).unique()
    marks = ranges.join(steps, on=["start", "duration"], how="left", maintain_order="left")["marks"]
    # Another thread ended inside the range, and this one did nothing recorded since.
    idle = (handed > start) & (handed < end) & (handed > active_until) & marks.is_null().to_numpy()
    rows = np.flatnonzero(idle)
    of_thread = np.zeros(len(own), dtype=np.int64)
    inner = ThreadRanges.of(ranges, of_thread).innermost(of_thread[rows], handed[rows]) == rows
    rows = rows[inner]

    def spread(column: str) -> pl.Expr:
        return (pl.col(column) - pl.col(column).median()).abs().median().over("text")

    bound = (
        pl.DataFrame(
            {
                "row": rows,
                "text": ranges["text"].gather(rows),
                "duration": (end - start)[rows],
                "lag": (end - handed)[rows],
            }
        )
        .filter(
            pl.len().over("text") >= _FEWEST_RANGES,
            spread("duration") * BUSY_ANNOTATION < spread("lag"),
        )["row"]
        .to_numpy()
    )
    bound = bound[np.argsort(start[bound], kind="stable")]
    return start[bound], end[bound]


def cut(
    key: Ints, begin: Ints, end: Ints, whole: Flags, nests: Sequence[Nesting]
) -> tuple[Ints, Ints, Ints]:
    """Return the pieces of intervals of threads: the interval of each, its begin and end.

    An interval is cut wherever an interval of ``nests`` begins or ends on its thread (``key``),
    unless it stays ``whole``. The pieces of an interval are in order, without gaps.
    """
    of = np.unique(key)
    here = [np.isin(nest.key, of) for nest in nests]
    mark_key = np.concatenate([np.repeat(n.key[h], 2) for n, h in zip(nests, here, strict=True)])
    mark = np.concatenate(
        [np.stack((n.start[h], n.end[h]), axis=1).ravel() for n, h in zip(nests, here, strict=True)]
    )
    # Times are replaced by their ranks, so that threads can be concatenated.
    times = _distinct(np.sort(np.concatenate((mark, begin, end))))
    of_mark, of_begin, of_end = (np.searchsorted(times, part) for part in (mark, begin, end))
    width = len(times)
    marks = _distinct(np.sort(mark_key * width + of_mark))
    first = np.searchsorted(marks, key * width + of_begin, side="right")
    after = np.searchsorted(marks, key * width + of_end, side="left")
    inside = np.where(whole, 0, np.maximum(after - first, 0))
    interval = np.repeat(np.arange(len(key)), inside + 1)
    piece = np.arange(len(interval)) - np.repeat(np.cumsum(inside + 1) - inside - 1, inside + 1)
    at = first[interval] + piece
    mark_time = np.append(times[marks % width], 0) if len(marks) else np.zeros(1, dtype=np.int64)
    from_mark, to_mark = piece > 0, piece < inside[interval]
    return (
        interval,
        np.where(from_mark, mark_time[np.where(from_mark, at - 1, 0)], begin[interval]),
        np.where(to_mark, mark_time[np.where(to_mark, at, 0)], end[interval]),
    )


def _distinct(ordered: Ints) -> Ints:
    """Return the distinct values of a sorted array; much faster than hashing them."""
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


class HostTime(msgspec.Struct, frozen=True):
    """Pieces of intervals of threads, in order, without gaps.

    ``interval`` is the number of the interval of each piece; ``call``, ``op`` and ``range`` are the
    rows of the innermost one around it, or -1.
    """

    interval: Ints
    thread: Ints
    begin: Ints
    end: Ints
    call: Ints
    op: Ints
    range: Ints

    @classmethod
    def of(
        cls,
        trace: Trace,
        threads: Threads,
        key: Ints,
        begin: Ints,
        end: Ints,
        whole: Flags | None = None,
    ) -> HostTime:
        """Return the pieces of the threads ``key``, each from ``begin`` to ``end``.

        Those of ``whole`` intervals are not cut. O(n log n) of what is between the first begin and
        the last end.
        """
        near = (int(begin.min()), int(end.max())) if len(key) else (0, 0)
        frames = ((trace.tables.ops, threads.ops), (trace.tables.calls, threads.calls))
        (op_rows, ops), (call_rows, calls) = (_nested(*frame, near) for frame in frames)
        range_rows = _rows(trace.tables.ranges, near)
        ranges = ThreadRanges.of(trace.tables.ranges[range_rows], threads.ranges[range_rows])
        if whole is None:
            whole = np.zeros(len(key), dtype=np.bool_)
        of, since, until = cut(key, begin, end, whole, [ops, calls, ranges.nesting])
        thread = key[of]
        return cls(
            of,
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
    start, end = times(frame)
    return np.flatnonzero((start <= near[1]) & (end >= near[0]))
