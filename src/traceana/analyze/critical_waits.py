"""The device's side of the path: what each piece of work waited for before it began."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

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
from traceana.analyze.numbering import take
from traceana.enrich.nesting import NONE, Ints, from_rows, matching

if TYPE_CHECKING:
    from traceana.trace import Trace

UNKNOWN, BY_STREAM, BY_EVENT, BY_LAUNCH = range(4)
"""What a piece of work waited for: nothing that is recorded, the one before it on its stream, one
of another stream by an event, or its launch."""

STREAM: Final = ("device", "context", "stream")


@dataclass(frozen=True, slots=True)
class Device:
    """Device work, ordered by its end; rows are places in that order.

    ``activity`` is the row in ``activities``, ``call`` that of the launching call in ``calls``.
    ``launched`` is when that call began, the work's own start where no call is known; ``returned``
    when it returned, or the work began if that was earlier, and ``thread`` the key of its thread;
    both nothing where no call is known. ``blocking``: the host waits in the call. ``before`` is the
    work that each waited for, always one further in front, and ``why`` what kind of waiting that
    was: the latest of what may have held it up decides, the stream of equal ones.
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
    blocking: npt.NDArray[np.bool_]
    before: Ints
    why: Ints
    streams: pl.DataFrame
    """``device``, ``context``, ``stream`` and their ``key``."""
    contexts: pl.DataFrame
    """``context`` and its ``key``."""
    by_stream: Ended
    by_context: Ended
    by_none: Ended


def device_work(
    trace: Trace, activities: pl.DataFrame, syncs: pl.DataFrame, call_key: Ints
) -> Device:
    """Return ``activities`` (with ``row``, their own) and what each of them waited for.

    ``syncs`` are the synchronization records beside them; ``call_key`` numbers the threads of the
    trace's calls, NONE for those of another process.
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
    began = take(calls["start"].to_numpy(), call)
    launched = np.where(known, began, start)
    ended = began + take(calls["duration"].to_numpy(), call)
    returned = np.minimum(ended, start)
    blocking = _blocking(trace, work, known, end <= ended)
    by_stream = Ended.of(key, end, launched)
    by_none = Ended.of(np.zeros_like(end), end, launched)
    before = _on_stream(by_stream, key, start)
    of_stream = _of_work(end, before)
    # A call that blocks waits from its begin on: what ends while it waits may hold its work up.
    of_launch = np.where(known, np.where(blocking & (start < ended), began, returned), NEVER)
    waits = wait_records(trace, syncs)
    on = event_keys(waits, streams, "context", "stream")
    recorded = recorded_work(trace, waits, on, key, launched)
    asked = _asked(trace, waits, recorded == ANY, streams, key, launched, call_key != NONE)
    floor = np.maximum(of_stream, of_launch)
    told = keys_of(waits, streams, "context", "stream")
    by_record = awaited(told, waits["requested"].to_numpy(), recorded, key, launched)
    by_event = np.maximum(
        _by_event(by_none, asked, floor, start), _in_time(by_record, floor, start, end)
    )
    why = np.select(
        [by_event != NONE, (before != NONE) & (of_stream >= of_launch), known],
        [BY_EVENT, BY_STREAM, BY_LAUNCH],
        UNKNOWN,
    )
    return Device(
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
        streams,
        contexts,
        by_stream,
        Ended.of(_key(work, contexts, "context"), end, launched),
        by_none,
    )


def _blocking(
    trace: Trace,
    work: pl.DataFrame,
    known: npt.NDArray[np.bool_],
    inside: npt.NDArray[np.bool_],
) -> npt.NDArray[np.bool_]:
    """Return which of ``work`` the host waited for, or for what is before it on its stream, in the
    call that asked for it. That is ``known``, and had not returned when what is ``inside`` ended.

    Those are copies between the host's memory and a device's, but for asynchronous ones of pinned
    memory. A copy of memory of unknown kind is one if it ended in its call. Where every kernel
    ended in its call, all launches blocked (``CUDA_LAUNCH_BLOCKING``).
    """
    whole = trace.whole.activities
    waits = pl.Series([None], dtype=pl.Boolean).extend_constant(None, whole.height)[1:]
    rows = (whole["kind"] == "memcpy").arg_true()
    waits = waits.scatter(rows, copies(trace.whole)["waits"] != ASYNCHRONOUS)
    of_copy = waits.gather(work["row"])
    inside = inside & known
    is_copy = (work["kind"] == "memcpy").to_numpy()
    blocking = of_copy.fill_null(value=False).to_numpy() & known
    blocking |= is_copy & of_copy.is_null().to_numpy() & inside
    kernels = known & work["kind"].is_in(["kernel", "graph"]).to_numpy()
    return blocking | inside if kernels.any() and inside[kernels].all() else blocking


def _key(work: pl.DataFrame, keys: pl.DataFrame, *told: str) -> Ints:
    found = work.select(told).join(
        keys, on=list(told), how="left", nulls_equal=True, maintain_order="left"
    )
    return found["key"].cast(pl.Int64).to_numpy()


def _on_stream(by_stream: Ended, key: Ints, start: Ints) -> Ints:
    """Return the work of the same stream that ended last before each began."""
    place = by_stream.last(key, start)
    own = np.empty(len(key), dtype=np.int64)
    own[by_stream.order] = np.arange(len(key))
    # What lasts no time ended by its own start: the one in front of it is meant.
    place = np.minimum(place, own - 1)
    same = (place >= 0) & (by_stream.key[place] == key)
    return np.where(same, by_stream.order[place], NONE)


def _asked(
    trace: Trace,
    waits: pl.DataFrame,
    unknown: npt.NDArray[np.bool_],
    streams: pl.DataFrame,
    key: Ints,
    launched: Ints,
    own: npt.NDArray[np.bool_],
) -> Ints:
    """Return when the stream of each piece of work was last told to wait for an event, before it
    was launched and after what was launched before it on the stream; NEVER for most.

    Of ``waits`` (CUPTI's records, which tell the stream) those whose event is ``unknown`` count.
    Where the recording has none a call of cudaStreamWaitEvent is taken to be for any stream.
    """
    if waits.height:
        when = waits["requested"].to_numpy()[unknown]
        told, of = keys_of(waits, streams, "context", "stream")[unknown], key
    else:
        calls = trace.whole.calls
        when = calls["start"].to_numpy()[matching(calls["name"], WAIT_CALL) & own]
        told, of = np.zeros(len(when), dtype=np.int64), np.zeros(len(key), dtype=np.int64)
    order = np.lexsort((launched, key))
    last = np.full(len(key), NEVER, dtype=np.int64)
    same = key[order][1:] == key[order][:-1]
    last[order[1:]] = np.where(same, launched[order][:-1], NEVER)
    index = np.argsort(when, kind="stable")
    waiting_calls = Ended.of(told[index], when[index], when[index])
    place = waiting_calls.last(of, launched)
    asked = take(waiting_calls.end, place)
    return np.where((place != NONE) & (asked > last), asked, NEVER)


def _by_event(by_none: Ended, asked: Ints, floor: Ints, start: Ints) -> Ints:
    """Return for each piece of work that was told to wait what it waited for.

    Which event is not known: of all that was launched before the wait was asked for, on any stream,
    it is what ended last before the work began, if that is later than all else that held it up.
    """
    result = np.full(len(start), NONE, dtype=np.int64)
    waiting = np.flatnonzero(asked != NEVER)
    found = by_none.last_launched(
        np.zeros(len(waiting), dtype=np.int64), floor[waiting], start[waiting], asked[waiting]
    )
    # What lasts no time could else come to wait for itself.
    result[waiting] = np.where(found < waiting, found, NONE)
    return result


def _in_time(by_record: Ints, floor: Ints, start: Ints, end: Ints) -> Ints:
    """Return what of ``by_record`` ended before the work began, after all else that held it up."""
    ended = take(end, by_record)
    known = (by_record != NONE) & (by_record < np.arange(len(start)))
    return np.where(known & (ended > floor) & (ended <= start), by_record, NONE)


def _of_work(end: Ints, rows: Ints) -> Ints:
    return np.where(rows == NONE, NEVER, end[rows]) if len(end) else rows


_STREAM_CALL: Final = r"StreamSynchronize"
_EVENT_CALL: Final = r"EventSynchronize"
_FREE: Final = r"^(?:cuda|hip)(?:Free(?:Host|Array)?|HostFree)$|^cuMemFree(?:Host)?(?:_v2)?$"
WAITING: Final = rf"Synchronize|{_FREE}"
"""Calls in which the host waits for work of the device; launches and copies may as well.

``cudaMalloc`` is none: it returns while work that was launched before it goes on."""

STREAM_SYNC: Final = "Stream Sync"
CONTEXT_SYNC: Final = "Context Sync"
"""What readers call CUPTI's records of waits for all that a stream, or a context, has to do."""

_NO_TIMES: Final = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Waits:
    """Calls of one thread that returned after work of the device had ended, by their end."""

    end: list[int]
    call: list[int]
    work: list[int]
    """What ended last while the call was waiting: a row of :class:`Device`."""


@dataclass(frozen=True, slots=True)
class Host:
    """The threads of a process.

    ``spans`` are, by thread, the times in which a call or an operator ran on it, disjoint and in
    order. ``handing`` are the ends of the spans, and whose they are, of all threads that the work
    of the model goes through: those that launch, and those that compute a backward pass.
    """

    spans: dict[int, tuple[list[int], list[int]]]
    waits: dict[int, Waits]
    handing_end: list[int]
    handing_thread: list[int]


def host(
    trace: Trace, device: Device, syncs: pl.DataFrame, op_key: Ints, call_key: Ints, main: Ints
) -> Host:
    """Return the threads of one process.

    ``op_key`` and ``call_key`` number the threads of the trace's operators and calls, NONE for
    those of another process; ``main`` are the keys of the threads that marked the steps.
    """
    ops, calls = trace.whole.ops, trace.whole.calls
    key = np.concatenate((op_key, call_key))
    start = np.concatenate((ops["start"].to_numpy(), calls["start"].to_numpy()))
    length = np.concatenate((ops["duration"].to_numpy(), calls["duration"].to_numpy()))
    order = np.argsort(key, kind="stable")
    keys = np.unique(key[key != NONE])
    first = np.searchsorted(key[order], keys, side="left")
    behind = np.searchsorted(key[order], keys, side="right")
    spans = {}
    for thread, low, high in zip(keys.tolist(), first, behind, strict=True):
        rows = order[low:high]
        spans[thread] = union(start[rows], start[rows] + length[rows])
    backward = (ops["direction"] == "backward").fill_null(value=False).to_numpy()
    at_work = ops["layer"].is_not_null().to_numpy() if not len(device.end) else backward
    partners = np.unique(np.concatenate((device.thread, op_key[at_work], main)))
    parts = [(thread, spans[thread][1]) for thread in partners.tolist() if thread in spans]
    end = np.concatenate([part for _, part in parts]) if parts else _NO_TIMES
    whose = [np.full(len(part), thread) for thread, part in parts]
    thread = np.concatenate(whose) if parts else _NO_TIMES
    by_end = np.argsort(end, kind="stable")
    return Host(
        {thread: (begins.tolist(), ends.tolist()) for thread, (begins, ends) in spans.items()},
        _waits(trace, device, syncs, call_key),
        end[by_end].tolist(),
        thread[by_end].tolist(),
    )


def _waits(trace: Trace, device: Device, syncs: pl.DataFrame, call_key: Ints) -> dict[int, Waits]:
    calls = trace.whole.calls
    by_name = np.flatnonzero(matching(calls["name"], WAITING) & (call_key != NONE))
    told = _told(trace, syncs)
    by_record = from_rows(told["call"])
    # A record says more than the name: which stream, which context.
    by_name_alone = np.setdiff1d(by_name, by_record)
    rows = np.concatenate((by_name_alone, by_record))
    begin = calls["start"].to_numpy()[rows]
    end = begin + calls["duration"].to_numpy()[rows]
    work = device.by_none.last_launched(np.zeros_like(rows), begin, end, begin)
    names = calls["name"].gather(rows)
    of_event, of_stream = matching(names, _EVENT_CALL), matching(names, _STREAM_CALL)
    # Streams by device: contexts of several may have one number, or none.
    places = device.streams.select(pl.struct("device", "context").rank("dense"))
    of_device = places.to_series().cast(pl.Int64).to_numpy()[device.stream]
    for queues, meant in ((device.stream, of_stream), (of_device, ~of_event & ~of_stream)):
        some = np.flatnonzero(meant)
        work[some] = _drained(device, queues, begin[some], end[some])
    kind = trace.names["name"].gather(told["name_id"])
    for what, ended, keys in (
        (STREAM_SYNC, device.by_stream, keys_of(told, device.streams, "context", "stream")),
        (CONTEXT_SYNC, device.by_context, keys_of(told, device.contexts, "context")),
    ):
        of = np.full(len(rows), ANY, dtype=np.int64)
        of[len(by_name_alone) :] = np.where((kind == what).to_numpy(), keys, ANY)
        narrower = ended.last_launched(np.maximum(of, 0), begin, end, begin)
        work = np.select([of == ANY, of == NO_WORK], [work, NONE], narrower)
    event = np.full(len(rows), ANY, dtype=np.int64)
    on = event_keys(told, device.streams, "context", "stream")
    event[len(by_name_alone) :] = recorded_work(trace, told, on, device.stream, device.launched)
    behind = take(device.end, np.maximum(event, NONE))
    in_time = (event >= 0) & (behind > begin) & (behind <= end)
    work = np.select([event == ANY, in_time], [work, event], NONE)
    awaited, launching = _launches(trace, device)
    rows, work = np.concatenate((rows, launching)), np.concatenate((work, awaited))
    known = (work != NONE) & (call_key[rows] != NONE) if len(rows) else np.zeros(0, dtype=bool)
    rows, work = rows[known], work[known]
    end = calls["start"].to_numpy()[rows] + calls["duration"].to_numpy()[rows]
    thread = call_key[rows]
    found = {}
    for key in np.unique(thread).tolist():
        here = np.flatnonzero(thread == key)
        here = here[np.argsort(end[here], kind="stable")]
        found[key] = Waits(end[here].tolist(), rows[here].tolist(), work[here].tolist())
    return found


def _told(trace: Trace, syncs: pl.DataFrame) -> pl.DataFrame:
    """Return the records of the host's waits, one a call, with ``asked``, when that began."""
    names = trace.names["name"].gather(syncs["name_id"])
    told = syncs.filter((names != STREAM_WAIT) & syncs["call"].is_not_null()).unique(
        "call", keep="first", maintain_order=True
    )
    return told.with_columns(trace.whole.calls["start"].gather(told["call"]).alias("requested"))


def _launches(trace: Trace, device: Device) -> tuple[Ints, Ints]:
    """Return what calls that launch waited for, and the call.

    That is the work that they asked for, if it ended in the call, or else what that waited for: a
    copy of pageable memory may go on when its call has returned.
    """
    whole = trace.whole.calls
    work = np.flatnonzero(device.blocking)
    call = device.call[work]
    begin = whole["start"].to_numpy()[call]
    end = begin + whole["duration"].to_numpy()[call]
    before = device.before[work]
    ended = take(device.end, before)
    held = (device.start[work] < end) & (ended > begin) & (before != NONE)
    found = np.where(device.end[work] <= end, work, np.where(held, before, NONE))
    return found[found != NONE], call[found != NONE]


def _drained(device: Device, key: Ints, begin: Ints, end: Ints) -> Ints:
    """Return the work that emptied a queue (``key`` of each piece) between ``begin`` and ``end``.

    That is the last to end of all that was launched there before ``begin``. Of several queues the
    last one counts; NONE where each was empty before, or still is not.
    """
    found = np.full(len(begin), NONE, dtype=np.int64)
    order = np.lexsort((device.launched, key))
    edges = np.searchsorted(key[order], np.append(np.unique(key), key.max(initial=0) + 1))
    for low, high in itertools.pairwise(edges.tolist()):
        rows = order[low:high]
        place = np.searchsorted(device.launched[rows], begin, side="left") - 1
        # Rows are in the order of their ends: the greatest so far ends last.
        last = take(np.maximum.accumulate(rows), np.maximum(place, NONE))
        ended = take(device.end, last)
        empty = (last != NONE) & (ended > begin) & (ended <= end)
        found = np.where(empty, np.maximum(found, last), found)
    return found
