"""Host threads: when each was active, what its calls waited for, and who passed work to whom.

A call waits for device work if it synchronizes, copies pageable memory, or finds the launch queue
full. A thread without operators and calls waits for the thread that was active last.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.columns.distinct import Texts, Threads, rows_of
from traceana.columns.intervals import Intervals, times, union
from traceana.columns.nesting import NONE, Flags, Ints, Nesting, from_rows, take, timeline
from traceana.enrich.ranges import ThreadRanges
from traceana.settings import (
    BUSY_ANNOTATION,
    FULL_QUEUE,
    LONG_LAUNCH,
    LONGEST_CLOCK_ERROR_NS,
    LONGEST_DISPATCH_NS,
)
from traceana.timeline.waits import (
    ANY,
    NO_WORK,
    STREAM_WAIT,
    WorkByEnd,
    WorkWaits,
    event_keys,
    keys_of,
    recorded_work,
)
from traceana.vocabulary import host_calls

if TYPE_CHECKING:
    from traceana.trace import Trace

Floats = npt.NDArray[np.float64]

_STREAM_SYNC: Final = "Stream Sync"
_CONTEXT_SYNC: Final = "Context Sync"
"""The names that readers give to CUPTI's records of waits for a whole stream or context."""

_MOST_STREAMS: Final = 64
"""In a process with more streams a call that waits for all of them has its recorded wait alone."""

_NO_TIMES: Final = np.zeros(0, dtype=np.int64)


def active_spans(trace: Trace, op_key: Ints, call_key: Ints) -> dict[int, Intervals]:
    """Return {thread: times in operators and calls}, without the events of thread NONE."""
    op_start, op_end = times(trace.tables.ops)
    call_start, call_end = times(trace.tables.calls)
    start = np.concatenate((op_start, call_start))
    end = np.concatenate((op_end, call_end))
    # Counted from 1, because NONE is -1.
    thread = np.concatenate((op_key, call_key)) + 1
    return {number - 1: union(start[rows], end[rows]) for number, rows in rows_of(thread) if number}


class WaitingCalls(msgspec.Struct, frozen=True):
    """Calls that wait for device work.

    ``call`` is the row in ``calls``; ``waited`` the work that the call waited for (a row of
    :class:`~traceana.timeline.waits.WorkWaits`), NONE if it had ended before the call. The pairs
    ``pending`` (a position in ``call``) and ``pending_work`` are work launched before the call on a
    stream that it waits for: the call would have waited for that work if it had ended later.
    """

    call: Ints
    waited: Ints
    pending: Ints
    pending_work: Ints


def waiting_calls(trace: Trace, device: WorkWaits, call_key: Ints) -> WaitingCalls:
    """Return the calls that wait for ``device``, of the threads ``call_key`` (NONE: left out)."""
    names, (start, end) = Texts.of(trace.tables.calls["name"]), times(trace.tables.calls)
    record_name = trace.tables.names["name"].gather(device.syncs["name_id"])
    records = device.syncs.filter(
        (record_name != STREAM_WAIT) & device.syncs["call"].is_not_null()
    ).unique("call", keep="first", maintain_order=True)
    recorded = from_rows(records["call"])
    records = records.with_columns(pl.Series("requested", start[recorded]))
    # A record has the stream and the context, besides the name of the call.
    by_name = np.flatnonzero(names.matching(host_calls.WAITS) & (call_key != NONE))
    unrecorded = np.setdiff1d(by_name, recorded)
    calls = np.concatenate((unrecorded, recorded))
    begin = start[calls]
    for_event, for_stream, frees = (
        names.matching(name)[calls]
        for name in (host_calls.EVENT, host_calls.STREAM, host_calls.FREES)
    )

    record_name = trace.tables.names["name"].gather(records["name_id"])
    any_key = np.full(len(unrecorded), ANY, dtype=np.int64)

    def recorded_key(name: str, keys: pl.DataFrame, *columns: str) -> Ints:
        """Return the key of the stream or context in each call's record of that ``name``."""
        named = (record_name == name).to_numpy()
        return np.append(any_key, np.where(named, keys_of(records, keys, *columns), ANY))

    stream = recorded_key(_STREAM_SYNC, device.streams, "context", "stream")
    context = recorded_key(_CONTEXT_SYNC, device.contexts, "context")

    # A call that frees memory does not always wait, so it does not show the error of the clocks.
    for_all = (stream == ANY) & ~(for_event | for_stream | frees)
    until = end[calls] + _clock_error(device, begin, end[calls], stream, for_all)
    all_work = WorkByEnd.of(np.zeros_like(device.end), device.end, device.launched)
    waited = all_work.last_launched(np.zeros_like(calls), begin, until, begin)
    # Streams by device: contexts of several devices can have equal numbers, or null.
    devices = device.streams.select(pl.struct("device", "context").rank("dense")).to_series()
    device_of_work = devices.cast(pl.Int64).to_numpy()[device.stream]
    for queue, rows in (
        (device.stream, np.flatnonzero(for_stream)),
        (device_of_work, np.flatnonzero(~for_event & ~for_stream)),
    ):
        waited[rows] = _work_that_emptied(device, queue, begin[rows], until[rows])
    for key_of_work, key in ((device.stream, stream), (device.context, context)):
        work_by_key = WorkByEnd.of(key_of_work, device.end, device.launched)
        last_of_key = work_by_key.last_launched(np.maximum(key, 0), begin, until, begin)
        waited = np.select([key == ANY, key == NO_WORK], [waited, NONE], last_of_key)
    event_stream = event_keys(records, device.streams, "context", "stream")
    before_event = recorded_work(trace, records, event_stream, device.stream, device.launched)
    before_event = np.append(any_key, before_event)
    ended = take(device.end, np.maximum(before_event, NONE))
    in_call = (before_event >= 0) & (ended > begin) & (ended <= until)
    waited = np.select([before_event == ANY, in_call], [waited, before_event], NONE)

    for launches, work in (_blocking_copies(trace, device), _full_queue(trace, device)):
        calls, waited = np.append(calls, launches), np.append(waited, work)
        stream = np.append(stream, np.full(len(launches), NO_WORK))
    on_thread = call_key[calls] != NONE
    calls, waited, stream = calls[on_thread], waited[on_thread], stream[on_thread]
    return WaitingCalls(calls, waited, *_pending_work(trace, device, calls, stream))


_RECORDED: Final = ("runtime", "annotation")
"""Kinds of ranges within which a thread does something: others are around all that it does."""
_RETURN: Final = 4
"""A wait is at least so many times as long as what follows it on the silent thread."""


class SilentWaits(msgspec.Struct, frozen=True):
    """Waits for device work that no call records: of a ``thread``, from ``begin`` to ``end``, for
    ``work`` (a row of :class:`~traceana.timeline.waits.WorkWaits`)."""

    thread: Ints
    begin: Ints
    end: Ints
    work: Ints


def records_waits(trace: Trace, device: WorkWaits) -> bool:
    """Return whether the trace has calls that only wait for the device, or records of them."""
    calls = Texts.of(trace.tables.calls["name"]).matching(host_calls.WAITS)
    return bool(calls.any()) or device.syncs["call"].is_not_null().any()


def silent_waits(
    trace: Trace,
    device: WorkWaits,
    keys: Threads,
    spans: Mapping[int, Intervals],
    marker: Ints,
    mark_begin: Ints,
    mark_end: Ints,
) -> SilentWaits:
    """Return the waits of the threads that mark steps, where nothing is recorded on them.

    XLA's host waits in no call. A thread of a step waits if it records nothing while the work ends
    that it has launched, and goes on soon after the last of it.
    """
    ranges = trace.tables.ranges
    range_start, range_end = times(ranges)
    is_recorded = ranges["kind"].is_in(_RECORDED).to_numpy()
    waits: list[tuple[Ints, Ints, Ints]] = []
    for thread in np.unique(marker[marker != NONE]).tolist():
        of_thread = is_recorded & (keys.ranges == thread)
        active_start, active_end = spans.get(thread, (range_start[:0], range_end[:0]))
        starts, ends = union(
            np.concatenate((active_start, range_start[of_thread])),
            np.concatenate((active_end, range_end[of_thread])),
        )
        steps = np.flatnonzero(marker == thread)
        steps = steps[np.argsort(mark_begin[steps], kind="stable")]
        step = np.searchsorted(mark_begin[steps], ends, side="right") - 1
        silent = (step >= 0) & (ends < mark_end[steps[step]])
        begin = ends[silent]
        until = np.append(starts[1:], np.iinfo(np.int64).max)[silent]
        waits.append(
            (np.full(len(begin), thread), begin, np.minimum(until, mark_end[steps[step[silent]]]))
        )
    if not waits:
        return SilentWaits(*(np.zeros(0, dtype=np.int64) for _ in range(4)))
    thread, begin, end = (np.concatenate(column) for column in zip(*waits, strict=True))
    work = _work_that_emptied(device, np.zeros_like(device.end), begin, end)
    ended = take(device.end, work)
    # A shorter silence is that between two launches.
    long = end - begin > LONGEST_DISPATCH_NS
    waited = (work != NONE) & long & (_RETURN * (end - ended) <= ended - begin)
    return SilentWaits(thread[waited], begin[waited], end[waited], work[waited])


def _clock_error(device: WorkWaits, begin: Ints, end: Ints, stream: Ints, for_all: Flags) -> int:
    """Return by how much a wait seems to end before the work that it waits for (ns).

    The host and the device have clocks of their own. Calls that wait ``for_all`` work, or for a
    recorded ``stream``, cannot return before its last work has ended.
    """
    order = np.argsort(device.launched, kind="stable")
    waits = [(np.flatnonzero(for_all), order)]
    waits += [
        (np.flatnonzero(stream == key), order[device.stream[order] == key])
        for key in np.unique(stream[stream >= 0]).tolist()
    ]
    error = 0
    for calls, work in waits:
        if not len(work):
            continue
        latest_end = np.maximum.accumulate(device.end[work])
        last = np.searchsorted(device.launched[work], begin[calls], side="left") - 1
        late = np.where(last >= 0, latest_end[last] - end[calls], 0)
        late = late[(late > 0) & (late <= LONGEST_CLOCK_ERROR_NS)]
        error = max(error, int(late.max(initial=0)))
    return error


def _work_that_emptied(device: WorkWaits, queue: Ints, begin: Ints, end: Ints) -> Ints:
    """Return the work that emptied a queue (``queue`` of each work) from ``begin`` to ``end``.

    It is the last to end of the work launched there before ``begin``. Of several queues the last
    one counts; NONE if all queues still had work.
    """
    emptied_by = np.full(len(begin), NONE, dtype=np.int64)
    order = np.lexsort((device.launched, queue))
    bounds = np.searchsorted(queue[order], np.append(np.unique(queue), queue.max(initial=0) + 1))
    for low, high in itertools.pairwise(bounds.tolist()):
        work = order[low:high]
        position = np.searchsorted(device.launched[work], begin, side="left") - 1
        # Rows are in the order of their ends: the greatest so far ends last.
        last = take(np.maximum.accumulate(work), np.maximum(position, NONE))
        ended = take(device.end, last)
        empty = (last != NONE) & (ended > begin) & (ended <= end)
        emptied_by = np.where(empty, np.maximum(emptied_by, last), emptied_by)
    return emptied_by


def _blocking_copies(trace: Trace, device: WorkWaits) -> tuple[Ints, Ints]:
    """Return the calls that wait for the work that they launch, and the work that they wait for.

    A call waits for its own work if that ended in the call. A call that copies pageable memory
    returns when the last part of it is staged: the copy runs for most of its time in the call, and
    ends shortly after it. Else the call waited for the work before.
    """
    work = np.flatnonzero(device.blocking)
    call = device.call[work]
    begin, end = (time[call] for time in times(trace.tables.calls))
    work_start, work_end = device.start[work], device.end[work]
    mostly_inside = 2 * (np.minimum(work_end, end) - work_start) > work_end - work_start
    before = device.before[work]
    before_end = take(device.end, before)
    for_before = (before != NONE) & (before_end > begin) & (before_end <= end) & (work_start < end)
    waited = np.where((work_end <= end) | mostly_inside, work, np.where(for_before, before, NONE))
    call, waited = call[waited != NONE], waited[waited != NONE]
    # The call waits for the last part of a copy.
    order = np.lexsort((device.end[waited], call))
    last = np.append(np.diff(call[order]) != 0, True)[: len(call)]
    return call[order][last], waited[order][last]


def _full_queue(trace: Trace, device: WorkWaits) -> tuple[Ints, Ints]:
    """Return the launching calls that waited for room in the launch queue, and the work that ended
    last before they returned.

    The driver queues about 1,024 launches of a stream; further calls block. Such a call takes much
    longer than others of its name, while many launches have no work yet.
    """
    launched_work = np.flatnonzero((device.call != NONE) & ~device.blocking)
    call, first = np.unique(device.call[launched_work], return_index=True)
    stream = device.stream[launched_work[first]]
    begin, end = (time[call] for time in times(trace.tables.calls))
    queued = np.zeros(len(call), dtype=np.int64)
    last_work = np.full(len(call), NONE, dtype=np.int64)
    for key in np.unique(stream).tolist():
        work = np.flatnonzero(device.stream == key)
        if len(work) <= FULL_QUEUE:
            continue
        calls = np.flatnonzero(stream == key)
        launched, ended = np.sort(device.launched[work]), device.end[work]
        launches_before = np.searchsorted(launched, begin[calls])
        queued[calls] = launches_before - np.searchsorted(ended, begin[calls])
        last = np.searchsorted(ended, end[calls], side="right") - 1
        last_work[calls] = np.where(last >= 0, work[last], NONE)
    full = queued > FULL_QUEUE
    if not full.any():
        return _NO_TIMES, _NO_TIMES
    durations = pl.DataFrame({"name": trace.tables.calls["name"].gather(call), "ns": end - begin})
    usual = durations.select(pl.col("ns").median().over("name")).to_series().to_numpy()
    blocked = full & (end - begin > LONG_LAUNCH * usual) & (take(device.end, last_work) > begin)
    return call[blocked], last_work[blocked]


def _pending_work(trace: Trace, device: WorkWaits, call: Ints, stream: Ints) -> tuple[Ints, Ints]:
    """Return pairs of a position in ``call`` and the last work of a stream that it waits for.

    ``stream`` is the one that a call waits for, ANY if no record names it.
    """
    begin, end = (time[call] for time in times(trace.tables.calls))
    keys = np.unique(device.stream)
    if len(keys) > _MOST_STREAMS:
        keys = keys[:0]
    names = Texts.of(trace.tables.calls["name"].gather(call))
    for_all = names.matching(host_calls.WAITS) & ~names.matching(host_calls.EVENT) & (stream == ANY)
    if len(keys) > 1:
        for_all &= ~names.matching(host_calls.STREAM)
    positions, works = [_NO_TIMES], [_NO_TIMES]
    for key in keys.tolist():
        work = np.flatnonzero(device.stream == key)
        work = work[np.argsort(device.launched[work], kind="stable")]
        last = np.searchsorted(device.launched[work], begin, side="left") - 1
        last_work = work[np.maximum(last, 0)]
        ended = (last >= 0) & (device.end[last_work] <= end)
        waiting = np.flatnonzero((for_all | (stream == key)) & ended)
        positions.append(waiting)
        works.append(last_work[waiting])
    return np.concatenate(positions), np.concatenate(works)


class Handovers(msgspec.Struct, frozen=True):
    """Waits of idle threads for other threads.

    ``thread`` was idle from ``begin`` to ``end``; meanwhile the activity of thread ``other`` ended
    last, at ``handed``. After a CPU-bound range a thread would have waited for activity that had
    ended before: there ``handed`` is before ``begin``.
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
    """Return the waits between the threads of ``spans``, {thread: times in operators and calls}.

    Work is passed on by the threads ``partners``, and at a step's begin and end (``marked``) by the
    thread that marks it (``marking``): the threads of TensorFlow and XLA compute while that thread
    has neither operators nor calls. ``range_key`` are the threads of the trace's ranges; if it is
    empty, CPU-bound ranges are not searched.
    """
    ended_by = [(thread, spans[thread][1]) for thread in partners.tolist() if thread in spans]
    partner_ends = dict(ended_by)
    active, cpu_bound_ends = dict(spans), {}
    steps = trace.tables.steps.select("start", "duration")
    for thread in np.unique(marking).tolist():
        begins, ends = active.get(thread, (_NO_TIMES, _NO_TIMES))
        if len(range_key):
            ends_of_others = [ended for other, ended in partner_ends.items() if other != thread]
            bound = cpu_bound_ranges(
                trace.tables.ranges[np.flatnonzero(range_key == thread)],
                steps,
                pl.DataFrame({"work_end": np.sort(np.concatenate([_NO_TIMES, *ends_of_others]))}),
                pl.DataFrame({"call_start": begins, "call_end": ends}),
            )
            bound_begins, bound_ends = bound["start"].to_numpy(), bound["end"].to_numpy()
            begins, ends = union(np.append(begins, bound_begins), np.append(ends, bound_ends))
            cpu_bound_ends[thread] = bound_ends
        # A marker counts as activity of no duration, unless its thread is active then.
        marks = np.unique(marked[marking == thread])
        before = np.searchsorted(begins, marks, side="right") - 1
        marks = marks[(before < 0) | (np.append(ends, [0])[before] < marks)]
        active[thread] = np.sort(np.append(begins, marks)), np.sort(np.append(ends, marks))
        ended_by.append((thread, marks))

    ended = np.concatenate([_NO_TIMES, *(ends for _, ends in ended_by)])
    ended_thread = np.repeat(
        np.array([thread for thread, _ in ended_by], dtype=np.int64),
        [len(ends) for _, ends in ended_by],
    )
    order = np.argsort(ended, kind="stable")
    ended, ended_thread = ended[order], ended_thread[order]
    waits = [Handovers(*(_NO_TIMES,) * 5)]
    for thread, (begins, ends) in active.items() if len(ended) else ():
        # Before its first activity a thread is idle without a begin.
        idle_since = np.append(begins[:1], ends[:-1])
        others = np.flatnonzero(ended_thread != thread)
        last = np.searchsorted(ended[others], begins, side="left") - 1
        rows = np.flatnonzero(last >= 0)
        last = others[last[rows]]
        after_cpu_bound = np.isin(idle_since[rows], cpu_bound_ends.get(thread, _NO_TIMES))
        waited = (rows == 0) | after_cpu_bound | (ended[last] > idle_since[rows])
        rows, last = rows[waited], last[waited]
        waits.append(
            Handovers(
                np.full(len(rows), thread),
                idle_since[rows],
                begins[rows],
                ended_thread[last],
                ended[last],
            )
        )
    fields = Handovers.__struct_fields__
    return Handovers(
        *(np.concatenate([getattr(wait, field) for wait in waits]) for field in fields)
    )


_FEWEST_RANGES: Final = 3
"""Recordings of one range from which its durations have a spread."""


def cpu_bound_ranges(
    ranges: pl.DataFrame, steps: pl.DataFrame, work_ends: pl.DataFrame, calls: pl.DataFrame
) -> pl.DataFrame:
    """Return ``start`` and ``end`` of one thread's CPU-bound ranges, sorted by start.

    In such a range the thread works in code that no profiler records; in others it waits until
    another thread ends its work. Repetition tells them apart: work takes the same time each time, a
    wait ends a constant time after the other thread's work.

    ``ranges``: text, kind, start, duration of the thread's annotations.
    ``steps``: start, duration; their markers are around all that a thread does and do not count.
    ``work_ends``: work_end, sorted: when other threads ended their work.
    ``calls``: call_start, call_end of the thread's operators and calls, disjoint and sorted.
    """
    if ranges.is_empty():
        return ranges.select("start", end="start")
    duration = pl.col("end") - pl.col("start")
    lag = pl.col("end") - pl.col("work_end")

    def spread(value: pl.Expr) -> pl.Expr:
        return (value - value.median()).abs().median().over("text")

    waits = (
        ranges.select("text", "start", end=pl.col("start") + pl.col("duration"))
        .with_row_index("row")
        .join(
            steps.select("start", end=pl.col("start") + pl.col("duration")),
            on=["start", "end"],
            how="anti",
        )
        .sort("end")
        .join_asof(
            work_ends,
            left_on="end",
            right_on="work_end",
            allow_exact_matches=False,
            coalesce=False,
        )
        .join_asof(calls, left_on="end", right_on="call_start", allow_exact_matches=False)
        # Another thread ended inside the range, and this one did nothing recorded since.
        .filter(pl.col("work_end") > pl.max_horizontal("start", "call_end"))
    )
    thread = np.zeros(ranges.height, dtype=np.int64)
    innermost = ThreadRanges.of(ranges, thread).innermost(
        thread[: waits.height], waits["work_end"].to_numpy()
    )
    return (
        waits.filter(pl.col("row") == pl.Series(innermost))
        .filter(
            pl.len().over("text") >= _FEWEST_RANGES,
            spread(duration) * BUSY_ANNOTATION < spread(lag),
        )
        .sort("start", "row")
        .select("start", "end")
    )


def cut(
    key: Ints, begin: Ints, end: Ints, whole: Flags, nests: Sequence[Nesting]
) -> tuple[Ints, Ints, Ints]:
    """Return the pieces of intervals of threads: the interval of each piece, its begin and end.

    An interval is cut wherever an interval of ``nests`` begins or ends on its thread (``key``),
    unless it stays ``whole``. The pieces of an interval are in order, without gaps.
    """
    threads = np.unique(key)
    bound_keys, bound_times = [], []
    for nesting in nests:
        rows = np.isin(nesting.key, threads)
        bound_keys.append(np.repeat(nesting.key[rows], 2))
        bound_times.append(np.stack((nesting.start[rows], nesting.end[rows]), axis=1).ravel())
    bound_time = np.concatenate(bound_times)
    # Times are replaced by their ranks, so that threads can be concatenated.
    ranked = _distinct(np.sort(np.concatenate((bound_time, begin, end))))
    bound_rank, begin_rank, end_rank = (
        np.searchsorted(ranked, part) for part in (bound_time, begin, end)
    )
    width = len(ranked)
    bounds = _distinct(np.sort(np.concatenate(bound_keys) * width + bound_rank))
    first = np.searchsorted(bounds, key * width + begin_rank, side="right")
    after = np.searchsorted(bounds, key * width + end_rank, side="left")
    bounds_inside = np.where(whole, 0, np.maximum(after - first, 0))

    pieces = bounds_inside + 1
    interval = np.repeat(np.arange(len(key)), pieces)
    piece = np.arange(len(interval)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    next_bound = first[interval] + piece
    time = np.append(ranked[bounds % width], 0) if len(bounds) else np.zeros(1, dtype=np.int64)
    at_bound, to_bound = piece > 0, piece < bounds_inside[interval]
    return (
        interval,
        np.where(at_bound, time[np.where(at_bound, next_bound - 1, 0)], begin[interval]),
        np.where(to_bound, time[np.where(to_bound, next_bound, 0)], end[interval]),
    )


def _distinct(ordered: Ints) -> Ints:
    """Return the distinct values of a sorted array; much faster than hashing them."""
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


class HostTime(msgspec.Struct, frozen=True):
    """Pieces of intervals of threads, in order, without gaps.

    ``interval`` is the number of the interval; ``call``, ``op`` and ``range`` are the rows of the
    innermost one around the piece, or NONE.
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

        Intervals of ``whole`` are not cut. O(n log n) of the events between the first begin and the
        last end.
        """
        first, last = (int(begin.min()), int(end.max())) if len(key) else (0, 0)

        def overlapping(table: pl.DataFrame) -> Ints:
            start, end = times(table)
            return np.flatnonzero((start <= last) & (end >= first))

        def nested(table: pl.DataFrame, rows: Ints, thread: Ints) -> Nesting:
            start, duration = (table[name].to_numpy()[rows] for name in ("start", "duration"))
            return Nesting.of(thread[rows], start, duration)

        tables = trace.tables
        op_rows, call_rows = overlapping(tables.ops), overlapping(tables.calls)
        range_rows = overlapping(tables.ranges)
        ops = nested(tables.ops, op_rows, threads.ops)
        calls = nested(tables.calls, call_rows, threads.calls)
        ranges = ThreadRanges.of(tables.ranges[range_rows], threads.ranges[range_rows])
        if whole is None:
            whole = np.zeros(len(key), dtype=np.bool_)
        interval, since, until = cut(key, begin, end, whole, [ops, calls, ranges.nesting])
        thread = key[interval]
        return cls(
            interval,
            thread,
            since,
            until,
            take(call_rows, calls.innermost(thread, since)),
            take(op_rows, ops.innermost(thread, since)),
            take(range_rows, ranges.innermost(thread, since)),
        )

    def lengths(self, thread: Ints, begin: Ints, end: Ints, factors: Floats) -> Ints:
        """Return how long each thread takes from ``begin`` to ``end`` if the durations of its
        pieces are multiplied by ``factors``.

        Time outside the pieces stays; with factors of 1 the result is ``end - begin`` exactly.
        """
        if not len(thread) or not (factors != 1).any():
            return end - begin
        saved = self.saved(np.append(thread, thread), np.append(begin, end), factors)
        return end - begin - whole_ns(saved[len(thread) :] - saved[: len(thread)])

    def saved(self, thread: Ints, time: Ints, factors: Floats) -> Floats:
        """Return how much earlier (ns) each thread is at ``time`` if the durations of its pieces
        until then are multiplied by ``factors``.
        """
        if not (factors != 1).any():
            return np.zeros(len(thread))
        (position,) = timeline(np.append(self.thread, thread), np.append(self.begin, time))
        piece_position, query_position = np.split(position, [len(self.thread)])
        piece = np.searchsorted(piece_position, query_position, side="right") - 1
        # A moment before the pieces of its thread follows the pieces of another thread.
        inside = (piece != NONE) & (self.thread[piece] == thread)
        saved_in_piece = (self.end - self.begin) * (1 - factors)
        saved_before = np.cumsum(saved_in_piece) - saved_in_piece
        elapsed = np.minimum(time, self.end[piece]) - self.begin[piece]
        begins_thread = np.append(True, self.thread[1:] != self.thread[:-1])
        first = np.maximum.accumulate(np.where(begins_thread, np.arange(len(self.thread)), 0))
        before_thread = saved_before[first[piece]]
        saved = saved_before[piece] + elapsed * (1 - factors[piece]) - before_thread
        return np.where(inside, saved, 0.0)


def whole_ns(time: Floats) -> Ints:
    """Return ``time`` (ns) rounded to the nanosecond."""
    return np.rint(time).astype(np.int64)
