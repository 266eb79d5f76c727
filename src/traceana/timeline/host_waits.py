"""What each host thread waited for: device work, in calls that block, and other threads.

Those of device work are in ``device_waits.py``.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from traceana.enrich.distinct_values import Texts, thread_numbers
from traceana.enrich.nesting import NONE, Flags, Ints, from_rows, take
from traceana.timeline.busy_annotations import busy_annotations
from traceana.timeline.device_waits import WorkWaits, of_process, whose, within, work_waits
from traceana.timeline.event_waits import (
    ANY,
    NO_WORK,
    STREAM_WAIT,
    Ended,
    event_keys,
    keys_of,
    recorded_work,
)
from traceana.timeline.intervals import union

if TYPE_CHECKING:
    from traceana.trace import Trace

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
    launching: Ints,
    op_key: Ints,
    call_key: Ints,
    range_key: Ints,
    main: Ints,
) -> HostWaits:
    """Return the threads of one process and their waits for the device.

    ``launching`` are the keys of the threads that launched the work. ``op_key``, ``call_key`` and
    ``range_key`` number the threads of the trace's operators, calls and ranges, NONE for operators
    and calls of another process; ``main`` are the keys of the threads that marked the steps.
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
    partners = np.unique(np.concatenate((launching, op_key[computing], main))).tolist()
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
        _waits(trace, device, call_key),
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


def _waits(trace: Trace, device: WorkWaits, call_key: Ints) -> dict[int, ThreadWaits]:
    """Return the waits of each thread for the device."""
    calls = trace.whole.calls
    by_name = np.flatnonzero(Texts.of(calls["name"]).matching(WAITING) & (call_key != NONE))
    records = _wait_records(trace, device)
    by_record = from_rows(records["call"])
    # A record has the stream and the context, besides the name of the call.
    by_name_alone = np.setdiff1d(by_name, by_record)
    rows = np.concatenate((by_name_alone, by_record))
    begin = calls["start"].to_numpy()[rows]
    end = begin + calls["duration"].to_numpy()[rows]
    every = Ended.of(np.zeros_like(device.end), device.end, device.launched)
    work = every.last_launched(np.zeros_like(rows), begin, end, begin)
    names = Texts.of(calls["name"].gather(rows))
    of_event, of_stream = names.matching(EVENT_CALL), names.matching(STREAM_CALL)
    # Streams by device: contexts of several devices can have equal numbers, or null.
    devices = device.streams.select(pl.struct("device", "context").rank("dense"))
    of_device = devices.to_series().cast(pl.Int64).to_numpy()[device.stream]
    for queues, meant in ((device.stream, of_stream), (of_device, ~of_event & ~of_stream)):
        some = np.flatnonzero(meant)
        work[some] = _emptied(device, queues, begin[some], end[some])
    kind = trace.names["name"].gather(records["name_id"])
    by_stream, by_context = (
        Ended.of(keys, device.end, device.launched) for keys in (device.stream, device.context)
    )
    for what, index, keys in (
        (STREAM_SYNC, by_stream, keys_of(records, device.streams, "context", "stream")),
        (CONTEXT_SYNC, by_context, keys_of(records, device.contexts, "context")),
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


def _wait_records(trace: Trace, device: WorkWaits) -> pl.DataFrame:
    """Return the records of the host's waits, one per call, with ``requested``, its start."""
    syncs = device.syncs
    names = trace.names["name"].gather(syncs["name_id"])
    records = syncs.filter((names != STREAM_WAIT) & syncs["call"].is_not_null()).unique(
        "call", keep="first", maintain_order=True
    )
    return records.with_columns(
        trace.whole.calls["start"].gather(records["call"]).alias("requested")
    )


def streams_waited_for(trace: Trace, device: WorkWaits, calls: Ints) -> Ints:
    """Return the key of the one stream that each of ``calls`` waits for, by CUPTI's records.

    :data:`ANY` where no record names it, :data:`NO_WORK` where nothing ran on it.
    """
    records = _wait_records(trace, device)
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


class ThreadKeys(msgspec.Struct, frozen=True):
    """The key of the thread of each operator, call, range and window, distinct between ranks.

    A window without a thread has a key of its own.
    """

    ops: Ints
    calls: Ints
    ranges: Ints
    windows: Ints
    numbers: pl.DataFrame
    """``key`` and ``thread``, its number in the trace."""

    @classmethod
    def of(cls, trace: Trace, windows: pl.DataFrame) -> ThreadKeys:
        """Return the keys for ``trace``; ``windows`` have ``rank``, ``process``, ``thread``."""
        frames = [trace.ops, trace.calls, trace.ranges, windows]
        ops, calls, ranges, own = thread_numbers(*frames)
        threads = pl.concat([frame["thread"].cast(pl.Int64) for frame in frames])
        every = np.concatenate((ops, calls, ranges, own))
        numbers = pl.DataFrame({"key": every, "thread": threads}).unique("key")
        return cls(ops, calls, ranges, own, numbers)


class Waits(msgspec.Struct, frozen=True):
    """The waits of the device work and of the threads of one process.

    ``launching`` is the key of the thread that launched each piece of work, undefined where no call
    is recorded; ``calls`` and ``markers`` are those of the trace's calls, NONE for other processes,
    and of the steps' markers.
    """

    device: WorkWaits
    host: HostWaits
    launching: Ints
    calls: Ints
    markers: Ints

    @classmethod
    def of(
        cls,
        trace: Trace,
        steps: pl.DataFrame,
        threads: ThreadKeys,
        between: tuple[int, int] | None = None,
    ) -> Waits:
        """Return those of the process with the windows ``steps``, of :func:`windows`, which have
        ``step_row``; of what happened ``between`` two times, where given."""
        whole = trace.whole
        owner = whose(whole, steps["rank"][0], steps["process"][0])
        of_ops, of_calls = (
            np.where(of_process(table, owner) & within(table, between), keys, NONE)
            for table, keys in ((whole.ops, threads.ops), (whole.calls, threads.calls))
        )
        markers = threads.windows[steps["step_row"].to_numpy()]
        device = work_waits(whole, (owner,), between)
        launching = take(of_calls, device.call)
        host = host_waits(whole, device, launching, of_ops, of_calls, threads.ranges, markers)
        return cls(device, host, launching, of_calls, markers)
