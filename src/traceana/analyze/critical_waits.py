"""The waits of device work and of host threads.

Device work waits for the work before it on its stream, for an event, or for its launch. The host
waits for the device in blocking calls. ``critical_path.py`` follows these dependencies.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from traceana.analyze.busy_annotations import busy_annotations
from traceana.analyze.classes import category_of
from traceana.analyze.copies import ASYNCHRONOUS, copies
from traceana.analyze.event_waits import (
    ANY,
    NEVER,
    NO_WORK,
    STREAM_WAIT,
    WAIT_CALL,
    Ended,
    awaited,
    event_keys,
    keys_of,
    recorded_work,
    wait_records,
)
from traceana.analyze.intervals import union
from traceana.enrich.distinct_values import Texts
from traceana.enrich.nesting import NONE, Flags, Ints, from_rows, take

if TYPE_CHECKING:
    from traceana.trace import Trace

UNKNOWN, BY_STREAM, BY_EVENT, BY_LAUNCH = range(4)
"""Kinds of waits of device work: unknown; for the work before it on its stream; for an event of
another stream; for its launch."""

STREAM: Final = ("device", "context", "stream")

STREAM_CALL: Final = r"StreamSynchronize"
EVENT_CALL: Final = r"EventSynchronize"
_FREE: Final = r"^(?:cuda|hip)(?:Free(?:Host|Array)?|HostFree)$|^cuMemFree(?:Host)?(?:_v2)?$"
WAITING: Final = rf"Synchronize|{_FREE}"
"""Calls that block until device work is done; launches and copies can block too.

``cudaMalloc`` does not block: it returns while earlier work is running."""

STREAM_SYNC: Final = "Stream Sync"
CONTEXT_SYNC: Final = "Context Sync"
"""The names that readers give to CUPTI's records of waits for a whole stream or context."""

_NO_TIMES: Final = np.zeros(0, dtype=np.int64)


class WorkWaits(msgspec.Struct, frozen=True):
    """Device work in the order of its end, with its waits.

    ``activity`` is the row in ``activities``, ``call`` that of the launching call in ``calls``.
    ``launched`` is the start of that call, or of the work where no call is recorded. ``returned``
    is the end of the call, or the start of the work if that is earlier; ``thread`` is the key of
    its thread; both are undefined where no call is recorded. ``blocking``: the host waits in the
    call. ``before`` is the awaited work, always an earlier row, and ``why`` the kind of wait: the
    latest dependency counts, the stream's where two are equal.
    """

    activity: Ints
    call: Ints
    stream: Ints
    """The key of the stream."""
    start: Ints
    end: Ints
    launched: Ints
    returned: Ints
    thread: Ints
    blocking: Flags
    before: Ints
    why: Ints
    on_stream: Ints
    """The work that ended last before it on its stream; NONE without."""
    by_event: Ints
    """The work of another stream that it waited for; NONE without."""
    by_record: Ints
    """The last work before a recorded event that its stream waits for, also where that had ended
    before; NONE without."""
    streams: pl.DataFrame
    """``device``, ``context``, ``stream`` and their ``key``."""
    contexts: pl.DataFrame
    """``context`` and its ``key``."""
    by_stream: Ended
    by_context: Ended
    by_none: Ended


def work_waits(
    trace: Trace, activities: pl.DataFrame, syncs: pl.DataFrame, call_key: Ints
) -> WorkWaits:
    """Return the waits of ``activities`` (with their ``row``).

    ``syncs`` are the synchronization records of the same process; ``call_key`` numbers the threads
    of the trace's calls, NONE for those of another process.
    """
    work = activities.with_columns((pl.col("start") + pl.col("duration")).alias("end")).sort(
        "end", "start", maintain_order=True
    )
    streams = work.select(STREAM).unique(maintain_order=True).with_row_index("key")
    contexts = work.select("context").unique(maintain_order=True).with_row_index("key")
    key = _key(work, streams, *STREAM)
    start, end = work["start"].to_numpy(), work["end"].to_numpy()
    call = from_rows(work["call"])
    known = call != NONE
    calls = trace.whole.calls
    called = take(calls["start"].to_numpy(), call)
    launched = np.where(known, called, start)
    ended = called + take(calls["duration"].to_numpy(), call)
    returned = np.minimum(ended, start)
    blocking = _blocking(trace, work, known, end <= ended)
    by_stream = Ended.of(key, end, launched)
    by_none = Ended.of(np.zeros_like(end), end, launched)
    before = _on_stream(by_stream, key, start)
    of_stream = _of_work(end, before)
    # A blocking call waits from its start: work that ends during the call can have delayed it.
    of_launch = np.where(known, np.where(blocking & (start < ended), called, returned), NEVER)
    waits = wait_records(trace, syncs)
    on = event_keys(waits, streams, "context", "stream")
    recorded = recorded_work(trace, waits, on, key, launched)
    requested = _requested(trace, waits, recorded == ANY, streams, key, launched, call_key != NONE)
    floor = np.maximum(of_stream, of_launch)
    waiting = keys_of(waits, streams, "context", "stream")
    by_record = awaited(waiting, waits["requested"].to_numpy(), recorded, key, launched)
    by_event = np.maximum(
        _by_event(by_none, requested, floor, start), _in_time(by_record, floor, start, end)
    )
    floor = np.maximum(floor, of_stream)
    of_collective = _by_collective(trace, work, floor, start, end)
    by_event = np.where((by_event == NONE) & (of_launch <= of_stream), of_collective, by_event)
    why = np.select(
        [by_event != NONE, (before != NONE) & (of_stream >= of_launch), known],
        [BY_EVENT, BY_STREAM, BY_LAUNCH],
        UNKNOWN,
    )
    return WorkWaits(
        work["row"].cast(pl.Int64).to_numpy(),
        call,
        key,
        start,
        end,
        launched,
        returned,
        take(call_key, call),
        blocking,
        np.where(by_event != NONE, by_event, before),
        why,
        before,
        by_event,
        np.where(take(end, by_record) <= start, by_record, NONE),
        streams,
        contexts,
        by_stream,
        Ended.of(_key(work, contexts, "context"), end, launched),
        by_none,
    )


def _blocking(
    trace: Trace,
    work: pl.DataFrame,
    known: Flags,
    inside: Flags,
) -> Flags:
    """Return the ``work`` whose launching call blocked until it, or the work before it, was done.

    ``known``: the call is recorded; ``inside``: the work ended in its call. Copies between host and
    device memory block, except asynchronous ones of pinned memory. A copy of unknown host memory
    blocked if it ended in its call. Where every kernel ended in its call, all launches blocked
    (``CUDA_LAUNCH_BLOCKING``).
    """
    whole = trace.whole.activities
    waits = pl.Series([None], dtype=pl.Boolean).extend_constant(None, whole.height)[1:]
    rows = (whole["kind"] == "memcpy").arg_true()
    waits = waits.scatter(rows, copies(trace.whole)["blocking"] != ASYNCHRONOUS)
    of_copy = waits.gather(work["row"])
    inside = inside & known
    is_copy = (work["kind"] == "memcpy").to_numpy()
    blocking = of_copy.fill_null(value=False).to_numpy() & known
    blocking |= is_copy & of_copy.is_null().to_numpy() & inside
    kernels = known & work["kind"].is_in(["kernel", "graph"]).to_numpy()
    return blocking | inside if kernels.any() and inside[kernels].all() else blocking


def _key(work: pl.DataFrame, keys: pl.DataFrame, *columns: str) -> Ints:
    found = work.select(columns).join(
        keys, on=list(columns), how="left", nulls_equal=True, maintain_order="left"
    )
    return found["key"].cast(pl.Int64).to_numpy()


def _on_stream(by_stream: Ended, key: Ints, start: Ints) -> Ints:
    """Return the work of the same stream that ended last before each started."""
    position = by_stream.last(key, start)
    own = np.empty(len(key), dtype=np.int64)
    own[by_stream.order] = np.arange(len(key))
    # Work of zero duration ended at its own start: take the row before it.
    position = np.minimum(position, own - 1)
    same = (position >= 0) & (by_stream.key[position] == key)
    return np.where(same, by_stream.order[position], NONE)


def _requested(
    trace: Trace,
    waits: pl.DataFrame,
    unknown: Flags,
    streams: pl.DataFrame,
    key: Ints,
    launched: Ints,
    own: Flags,
) -> Ints:
    """Return the time of the last event wait requested for the stream of each work, else NEVER.

    The request is after the launch of the work before it on the stream and before its own launch.
    Of ``waits`` (CUPTI's records, which have the stream) those with an ``unknown`` event count. In
    a capture without such records a call of cudaStreamWaitEvent counts for every stream.
    """
    if waits.height:
        when = waits["requested"].to_numpy()[unknown]
        waiting, of = keys_of(waits, streams, "context", "stream")[unknown], key
    else:
        calls = trace.whole.calls
        when = calls["start"].to_numpy()[Texts.of(calls["name"]).matching(WAIT_CALL) & own]
        waiting, of = np.zeros(len(when), dtype=np.int64), np.zeros(len(key), dtype=np.int64)
    if not len(when):
        return np.full(len(key), NEVER, dtype=np.int64)
    order = np.lexsort((launched, key))
    last = np.full(len(key), NEVER, dtype=np.int64)
    same = key[order][1:] == key[order][:-1]
    last[order[1:]] = np.where(same, launched[order][:-1], NEVER)
    index = np.argsort(when, kind="stable")
    waiting_calls = Ended.of(waiting[index], when[index], when[index])
    position = waiting_calls.last(of, launched)
    requested = take(waiting_calls.end, position)
    return np.where((position != NONE) & (requested > last), requested, NEVER)


def _by_event(by_none: Ended, requested: Ints, floor: Ints, start: Ints) -> Ints:
    """Return the work awaited by each work through an unrecorded event, or NONE.

    It is the work that ended last before the waiting work started, of all work launched before the
    wait was requested, on any stream, if that is after the other dependencies (``floor``).
    """
    result = np.full(len(start), NONE, dtype=np.int64)
    waiting = np.flatnonzero(requested != NEVER)
    found = by_none.last_launched(
        np.zeros(len(waiting), dtype=np.int64), floor[waiting], start[waiting], requested[waiting]
    )
    # Work of zero duration must not wait for itself.
    result[waiting] = np.where(found < waiting, found, NONE)
    return result


def _in_time(by_record: Ints, floor: Ints, start: Ints, end: Ints) -> Ints:
    """Return ``by_record`` where it ended before the work started, after ``floor``; else NONE."""
    ended = take(end, by_record)
    known = (by_record != NONE) & (by_record < np.arange(len(start)))
    return np.where(known & (ended > floor) & (ended <= start), by_record, NONE)


def _by_collective(trace: Trace, work: pl.DataFrame, floor: Ints, start: Ints, end: Ints) -> Ints:
    """Return the collective awaited by each work whose wait is not recorded, or NONE.

    It is the collective of the same device that ended last between the other dependencies
    (``floor``) and the start of the work, if it ran for most of that time: work that had been
    launched, on a stream that was free, can only have waited for it. Waits before the capture, and
    those of HIP's streams, are not recorded.
    """
    found = np.full(len(start), NONE, dtype=np.int64)
    each = np.flatnonzero((category_of(work, trace) == "collective").fill_null(False).to_numpy())
    device = work["device"].fill_null(NONE).to_numpy()
    for one in np.unique(device[each]).tolist():
        own = each[device[each] == one]
        rows = np.flatnonzero((device == one) & (start > floor))
        last = np.searchsorted(end[own], start[rows], side="right") - 1
        rows, last = rows[last >= 0], own[last[last >= 0]]
        since = np.maximum(start[last], floor[rows])
        covers = 2 * (end[last] - since) > start[rows] - floor[rows]
        found[rows[covers]] = np.where(last < rows, last, NONE)[covers]
    return found


def _of_work(end: Ints, rows: Ints) -> Ints:
    """Return the end of the work of ``rows``, NEVER where the row is NONE."""
    return np.where(rows == NONE, NEVER, end[rows]) if len(end) else rows


class ThreadWaits(msgspec.Struct, frozen=True):
    """Calls of one thread that returned after device work had ended, by their end."""

    end: list[int]
    call: list[int]
    work: list[int]
    """The work that ended last while the call waited: a row of :class:`WorkWaits`."""


class HostWaits(msgspec.Struct, frozen=True):
    """The threads of a process.

    ``spans`` are, by thread, the intervals with a call or an operator, disjoint and in order; of
    threads that marked the steps also the annotations in which they were busy, whose ends are
    ``busy``.
    ``handing_end`` are the ends of the spans of all threads that can pass work to another thread
    (launching threads, and those of the backward pass), in order; ``handing_thread`` their threads,
    ``handing_before`` the last one before of another thread, -1 without.
    """

    spans: dict[int, tuple[list[int], list[int]]]
    busy: dict[int, list[int]]
    waits: dict[int, ThreadWaits]
    handing_end: list[int]
    handing_thread: list[int]
    handing_before: list[int]


def host_waits(
    trace: Trace,
    device: WorkWaits,
    syncs: pl.DataFrame,
    op_key: Ints,
    call_key: Ints,
    range_key: Ints,
    main: Ints,
) -> HostWaits:
    """Return the threads of one process and their waits for the device.

    ``op_key``, ``call_key`` and ``range_key`` number the threads of the trace's operators, calls
    and ranges, NONE for operators and calls of another process; ``main`` are the keys of the
    threads that marked the steps.
    """
    ops, calls = trace.whole.ops, trace.whole.calls
    key = np.concatenate((op_key, call_key))
    start = np.concatenate((ops["start"].to_numpy(), calls["start"].to_numpy()))
    length = np.concatenate((ops["duration"].to_numpy(), calls["duration"].to_numpy()))
    order = np.argsort(key, kind="stable")
    keys = np.unique(key[key != NONE])
    first = np.searchsorted(key[order], keys, side="left")
    after = np.searchsorted(key[order], keys, side="right")
    spans = {}
    for thread, low, high in zip(keys.tolist(), first, after, strict=True):
        rows = order[low:high]
        spans[thread] = union(start[rows], start[rows] + length[rows])
    computing = _passed_on(trace, on_device=len(device.end) > 0)
    partners = np.unique(np.concatenate((device.thread, op_key[computing], main))).tolist()
    parts = [(thread, spans[thread][1]) for thread in partners if thread in spans]
    busy = {}
    # Beside a device, calls record the waits.
    for thread in np.unique(main).tolist() if not len(device.end) else ():
        others = [ended for one, ended in parts if one != thread]
        ended = np.sort(np.concatenate(others)) if others else _NO_TIMES
        own = spans.get(thread, (_NO_TIMES, _NO_TIMES))
        begins, ends = busy_annotations(trace, range_key, thread, own, ended)
        if len(ends):
            both = np.append(own[0], begins), np.append(own[1], ends)
            busy[thread], spans[thread] = ends.tolist(), union(*both)
    end = np.concatenate([part for _, part in parts]) if parts else _NO_TIMES
    whose = [np.full(len(part), thread) for thread, part in parts]
    thread = np.concatenate(whose) if parts else _NO_TIMES
    by_end = np.argsort(end, kind="stable")
    thread = thread[by_end]
    first_of_run = np.append(True, thread[1:] != thread[:-1])[: len(thread)]
    run = np.maximum.accumulate(np.where(first_of_run, np.arange(len(thread)), 0))
    return HostWaits(
        {thread: (begins.tolist(), ends.tolist()) for thread, (begins, ends) in spans.items()},
        busy,
        _waits(trace, device, syncs, call_key),
        end[by_end].tolist(),
        thread.tolist(),
        (run - 1).tolist(),
    )


def _passed_on(trace: Trace, *, on_device: bool) -> Flags:
    """Return the operators of threads that other threads wait for.

    They are those of backward passes, which autograd runs on its own thread; on a CPU those of
    layers, or where none has one, all that compute.
    """
    ops = trace.whole.ops
    if on_device:
        return (ops["direction"] == "backward").fill_null(value=False).to_numpy()
    of_layers = ops["layer"].is_not_null().to_numpy()
    if of_layers.any():
        return of_layers
    computing = np.zeros(ops.height, dtype=np.bool_)
    computing[trace.whole.activities["op"].drop_nulls().to_numpy()] = True
    return computing


def _waits(
    trace: Trace, device: WorkWaits, syncs: pl.DataFrame, call_key: Ints
) -> dict[int, ThreadWaits]:
    """Return the waits of each thread for the device."""
    calls = trace.whole.calls
    by_name = np.flatnonzero(Texts.of(calls["name"]).matching(WAITING) & (call_key != NONE))
    records = _wait_records(trace, syncs)
    by_record = from_rows(records["call"])
    # A record has the stream and the context, besides the name of the call.
    by_name_alone = np.setdiff1d(by_name, by_record)
    rows = np.concatenate((by_name_alone, by_record))
    begin = calls["start"].to_numpy()[rows]
    end = begin + calls["duration"].to_numpy()[rows]
    work = device.by_none.last_launched(np.zeros_like(rows), begin, end, begin)
    names = Texts.of(calls["name"].gather(rows))
    of_event, of_stream = names.matching(EVENT_CALL), names.matching(STREAM_CALL)
    # Streams by device: contexts of several devices can have equal numbers, or null.
    devices = device.streams.select(pl.struct("device", "context").rank("dense"))
    of_device = devices.to_series().cast(pl.Int64).to_numpy()[device.stream]
    for queues, meant in ((device.stream, of_stream), (of_device, ~of_event & ~of_stream)):
        some = np.flatnonzero(meant)
        work[some] = _emptied(device, queues, begin[some], end[some])
    kind = trace.names["name"].gather(records["name_id"])
    for what, index, keys in (
        (STREAM_SYNC, device.by_stream, keys_of(records, device.streams, "context", "stream")),
        (CONTEXT_SYNC, device.by_context, keys_of(records, device.contexts, "context")),
    ):
        of = np.full(len(rows), ANY, dtype=np.int64)
        of[len(by_name_alone) :] = np.where((kind == what).to_numpy(), keys, ANY)
        narrower = index.last_launched(np.maximum(of, 0), begin, end, begin)
        work = np.select([of == ANY, of == NO_WORK], [work, NONE], narrower)
    event = np.full(len(rows), ANY, dtype=np.int64)
    on = event_keys(records, device.streams, "context", "stream")
    event[len(by_name_alone) :] = recorded_work(trace, records, on, device.stream, device.launched)
    ended = take(device.end, np.maximum(event, NONE))
    in_time = (event >= 0) & (ended > begin) & (ended <= end)
    work = np.select([event == ANY, in_time], [work, event], NONE)
    by_launch, launching = _blocking_launches(trace, device)
    rows, work = np.concatenate((rows, launching)), np.concatenate((work, by_launch))
    known = (work != NONE) & (call_key[rows] != NONE) if len(rows) else np.zeros(0, dtype=bool)
    rows, work = rows[known], work[known]
    end = calls["start"].to_numpy()[rows] + calls["duration"].to_numpy()[rows]
    thread = call_key[rows]
    found = {}
    for key in np.unique(thread).tolist():
        here = np.flatnonzero(thread == key)
        here = here[np.argsort(end[here], kind="stable")]
        found[key] = ThreadWaits(end[here].tolist(), rows[here].tolist(), work[here].tolist())
    return found


def _wait_records(trace: Trace, syncs: pl.DataFrame) -> pl.DataFrame:
    """Return the records of the host's waits, one per call, with ``requested``, its start."""
    names = trace.names["name"].gather(syncs["name_id"])
    records = syncs.filter((names != STREAM_WAIT) & syncs["call"].is_not_null()).unique(
        "call", keep="first", maintain_order=True
    )
    return records.with_columns(
        trace.whole.calls["start"].gather(records["call"]).alias("requested")
    )


def streams_waited_for(trace: Trace, device: WorkWaits, syncs: pl.DataFrame, calls: Ints) -> Ints:
    """Return the key of the one stream that each of ``calls`` waits for, by the records ``syncs``.

    :data:`ANY` where no record names it, :data:`NO_WORK` where nothing ran on it.
    """
    records = _wait_records(trace, syncs)
    records = records.filter(trace.names["name"].gather(records["name_id"]) == STREAM_SYNC)
    of = np.full(trace.whole.calls.height, ANY, dtype=np.int64)
    of[records["call"].to_numpy()] = keys_of(records, device.streams, "context", "stream")
    return of[calls]


def _blocking_launches(trace: Trace, device: WorkWaits) -> tuple[Ints, Ints]:
    """Return the work that launching calls waited for, and the calls.

    It is the work that the call launched, if that ended in the call, else the work awaited by that:
    a copy of pageable memory can continue after its call has returned.
    """
    whole = trace.whole.calls
    work = np.flatnonzero(device.blocking)
    call = device.call[work]
    begin = whole["start"].to_numpy()[call]
    end = begin + whole["duration"].to_numpy()[call]
    before = device.before[work]
    ended = take(device.end, before)
    waited = (device.start[work] < end) & (ended > begin) & (before != NONE)
    found = np.where(device.end[work] <= end, work, np.where(waited, before, NONE))
    return found[found != NONE], call[found != NONE]


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
