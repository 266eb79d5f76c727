"""The host's side of the path: when each thread was at something, and where it waited."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.critical.device import Device
from traceana.analyze.events.keys import ANY, NO_WORK, event_keys, keys_of, take
from traceana.analyze.events.recorded import recorded_work
from traceana.analyze.events.records import STREAM_WAIT
from traceana.analyze.intervals import union
from traceana.enrich.nesting import NONE, Ints, from_rows, matching

if TYPE_CHECKING:
    from traceana.trace import Trace

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
    work = device.by_none.last_asked(np.zeros_like(rows), begin, end, begin)
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
        narrower = ended.last_asked(np.maximum(of, 0), begin, end, begin)
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
    return told.with_columns(trace.whole.calls["start"].gather(told["call"]).alias("asked"))


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
