"""What each piece of device work waited for: the work before it on its stream, an event, a
collective, or its launch.

The critical path, the causes of idle time and ``whatif`` all use these waits. Those of host threads
are in ``host_waits.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from traceana.enrich.classes import SOURCE, category_of
from traceana.enrich.distinct_values import Texts, distinct, first_rows, numbered
from traceana.enrich.nesting import NONE, Flags, Ints, from_rows, take
from traceana.timeline.copies import ASYNCHRONOUS, copies
from traceana.timeline.event_waits import (
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
from traceana.trace.per_trace import per_small_trace
from traceana.trace.schema import DEVICE_WORK

if TYPE_CHECKING:
    from traceana.trace import Trace

UNKNOWN, BY_STREAM, BY_EVENT, BY_LAUNCH = range(4)
"""Kinds of waits of device work: unknown; for the work before it on its stream; for an event of
another stream; for its launch."""

STREAM: Final = ("device", "context", "stream")

_COLUMNS: Final = ("rank", "process", *STREAM, "start", "duration", "call", *SOURCE)
"""Of the activities, whose table is copied in the order of their ends."""

Whose = tuple[int | None, int | None]
"""A rank and a process of it; no process where the work of all processes of the rank is meant."""


class WorkWaits(msgspec.Struct, frozen=True):
    """Device work in the order of its end, with its waits.

    ``activity`` is the row in ``activities``, ``call`` that of the launching call in ``calls``.
    ``launched`` is the start of that call, or of the work where no call is recorded. ``returned``
    is the end of the call, or the start of the work if that is earlier, undefined where no call is
    recorded. ``blocking``: the host waits in the call. ``before`` is the awaited work, always an
    earlier row, and ``why`` the kind of wait: the latest dependency counts, the stream's where two
    are equal.
    """

    activity: Ints
    call: Ints
    stream: Ints
    """The key of the stream."""
    start: Ints
    end: Ints
    launched: Ints
    returned: Ints
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
    """``owner`` (its position), ``device``, ``context``, ``stream`` and their ``key``."""
    contexts: pl.DataFrame
    """``owner``, ``context`` and their ``key``."""
    context: Ints
    """The key of the context."""
    syncs: pl.DataFrame
    """The records of synchronization, of streams and of the host."""


def whose(trace: Trace, rank: int | None, process: int | None) -> Whose:
    """Return whose work the steps of ``process`` are about: the rank's if no other marked any."""
    return _owner(_marked(trace), rank, process)


def _marked(trace: Trace) -> dict[int | None, int]:
    """Return how many processes of each rank marked steps."""
    each = trace.whole.steps.select("rank", "process").unique()
    return Counter(each["rank"].to_list())


def _owner(marked: Mapping[int | None, int], rank: int | None, process: int | None) -> Whose:
    return rank, process if marked.get(rank, 0) > 1 else None


def of_process(frame: pl.DataFrame, owner: Whose) -> Flags:
    """Return the rows of the rank of ``owner`` and, if given, of its process or without one."""
    rank, process = owner
    here = pl.col("rank").eq_missing(pl.lit(rank, pl.Int32))
    if process is not None:
        here &= (pl.col("process") == process).fill_null(value=True)
    return frame.select(here).to_series().to_numpy()


def within(table: pl.DataFrame, between: tuple[int, int] | None) -> Flags:
    """Return the rows that overlap the time ``between``, all without it."""
    if between is None:
        return np.ones(table.height, dtype=np.bool_)
    start = table["start"].to_numpy()
    found: Flags = (start < between[1]) & (start + table["duration"].to_numpy() > between[0])
    return found


def awaited_work(trace: Trace) -> Ints:
    """Return for each of ``activities`` the one that it waited for through an event, else NONE.

    That is the work of another stream or device, or a collective, whose end was the last thing
    that the work waited for. ``trace`` is whole.
    """
    found = np.full(trace.activities.height, NONE, dtype=np.int64)
    if _any_events(trace):
        marked = _marked(trace)
        each = distinct(trace.activities.select("rank", "process")).iter_rows()
        device = work_waits(trace, tuple(dict.fromkeys(_owner(marked, *one) for one in each)))
        rows = np.flatnonzero(device.by_event != NONE)
        found[device.activity[rows]] = device.activity[device.by_event[rows]]
    return found


def _any_events(trace: Trace) -> bool:
    """Return whether any work of ``trace`` can have waited for an event or a collective."""
    return (
        (trace.names["name"] == STREAM_WAIT).any()
        or any((table["category"] == "collective").any() for table in (trace.names, trace.classes))
        or bool(Texts.of(trace.calls["name"]).matching(WAIT_CALL).any())
    )


@per_small_trace
def work_waits(
    trace: Trace, owners: tuple[Whose, ...], between: tuple[int, int] | None = None
) -> WorkWaits:
    """Return the waits of the device work of ``owners``, which do not wait for each other's.

    With ``between`` it is the work that ran between two times. ``trace`` is whole.
    """
    records = trace.activities.filter(pl.col("kind") == "sync")
    syncs = _owned(records, owners, between).drop("row")
    work = _ordered(trace, owners, between)
    owner = work["owner"].to_numpy()
    streams = work.select("owner", *STREAM).unique(maintain_order=True).with_row_index("key")
    contexts = work.select("owner", "context").unique(maintain_order=True).with_row_index("key")
    key = _key(work, streams, "owner", *STREAM)
    start, end = work["start"].to_numpy(), work["end"].to_numpy()
    call = from_rows(work["call"])
    known = call != NONE
    calls = trace.calls
    called = take(calls["start"].to_numpy(), call)
    launched = np.where(known, called, start)
    ended = called + take(calls["duration"].to_numpy(), call)
    returned = np.minimum(ended, start)
    blocking = _blocking(trace, work, known, end <= ended, owner)
    before = _on_stream(Ended.of(key, end, launched), key, start)
    of_stream = _of_work(end, before)
    # A blocking call waits from its start: work that ends during the call can have delayed it.
    of_launch = np.where(known, np.where(blocking & (start < ended), called, returned), NEVER)
    waits = wait_records(trace, syncs)
    on = event_keys(waits, streams, "owner", "context", "stream")
    recorded = recorded_work(trace, waits, on, key, launched)
    # The recorded context can be the event's: then a number that one stream alone has counts.
    waiting = keys_of(waits, streams, "owner", "context", "stream")
    waiting = np.where(waiting == NO_WORK, keys_of(waits, streams, "owner", "stream"), waiting)
    unknown = waits.filter(recorded == ANY)["requested"].to_numpy(), waiting[recorded == ANY]
    calling = _unrecorded_waits(trace, owners, between, waits["owner"])
    floor = np.maximum(of_stream, of_launch)
    by_record = awaited(waiting, waits["requested"].to_numpy(), recorded, key, launched)
    by_event = _in_time(by_record, floor, start, end)
    if len(unknown[0]) or len(calling[0]):
        requested = np.maximum(_last(*unknown, key, launched), _last(*calling, owner, launched))
        requested = np.where(requested > _launched_before(key, launched), requested, NEVER)
        every = Ended.of(owner, end, launched)
        by_event = np.maximum(by_event, _by_event(every, owner, requested, floor, start))
    of_collective = _by_collective(trace, work, floor)
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
        blocking,
        np.where(by_event != NONE, by_event, before),
        why,
        before,
        by_event,
        np.where(take(end, by_record) <= start, by_record, NONE),
        streams,
        contexts,
        _key(work, contexts, "owner", "context"),
        syncs,
    )


def _ordered(
    trace: Trace, owners: Sequence[Whose], between: tuple[int, int] | None
) -> pl.DataFrame:
    """Return the device work of ``owners`` with its ``row``, ``owner`` and ``end``, by its end."""
    end = (pl.col("start") + pl.col("duration")).alias("end")
    own = _owned(trace.activities.select(_COLUMNS), owners, between)
    kept = own["kind"].is_in(DEVICE_WORK)
    return (
        (own if kept.all() else own.filter(kept))
        .with_columns(end)
        .sort("end", "start", maintain_order=True)
    )


def _owned(
    table: pl.DataFrame, owners: Sequence[Whose], between: tuple[int, int] | None
) -> pl.DataFrame:
    """Return the rows of ``owners`` with their ``row`` in ``table`` and ``owner``, its position."""
    if len(owners) == 1:
        owner = np.where(of_process(table, owners[0]), 0, NONE)
    else:
        position = {one: number for number, one in enumerate(owners)}
        (numbers,) = numbered(table.select("rank", "process"))
        pairs = table.select("rank", "process")[first_rows(numbers)].iter_rows()
        found = [position.get(one, position.get((one[0], None), NONE)) for one in pairs]
        owner = np.array(found, dtype=np.int64)[numbers]
    rows = np.flatnonzero((owner != NONE) & within(table, between))
    if len(rows) < table.height:
        table = table[rows, :]
    return table.with_columns(pl.Series("row", rows), pl.Series("owner", owner[rows]))


def _blocking(
    trace: Trace,
    work: pl.DataFrame,
    known: Flags,
    inside: Flags,
    owner: Ints,
) -> Flags:
    """Return the ``work`` whose launching call blocked until it, or the work before it, was done.

    ``known``: the call is recorded; ``inside``: the work ended in its call. Copies between host and
    device memory block, except asynchronous ones of pinned memory. A copy of unknown host memory
    blocked if it ended in its call. Where every kernel of an owner ended in its call, all launches
    blocked (``CUDA_LAUNCH_BLOCKING``).
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
    count = int(owner.max(initial=-1)) + 1
    of_owner = np.bincount(owner[kernels], minlength=count)
    blocked = (np.bincount(owner[kernels & inside], minlength=count) == of_owner) & (of_owner > 0)
    return np.asarray(blocking | inside & blocked[owner])


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


def _unrecorded_waits(
    trace: Trace,
    owners: Sequence[Whose],
    between: tuple[int, int] | None,
    recorded: pl.Series,
) -> tuple[Ints, Ints]:
    """Return the times and owners of the calls of cudaStreamWaitEvent of those ``owners`` that have
    no ``recorded`` waits. Such a call counts for every stream."""
    rows = np.flatnonzero(Texts.of(trace.calls["name"]).matching(WAIT_CALL))
    calls = _owned(
        trace.calls.select("rank", "process", "start", "duration")[rows], owners, between
    )
    calls = calls.filter(~calls["owner"].is_in(recorded.implode()))
    return calls["start"].to_numpy(), calls["owner"].to_numpy()


def _last(when: Ints, of: Ints, key: Ints, launched: Ints) -> Ints:
    """Return the last time of ``when`` (of the keys ``of``) until the launch of each work, else
    NEVER."""
    if not len(when):
        return np.full(len(key), NEVER, dtype=np.int64)
    index = np.argsort(when, kind="stable")
    found = Ended.of(of[index], when[index], when[index])
    position = found.last(key, launched)
    return np.where(position == NONE, NEVER, take(found.end, position))


def _launched_before(key: Ints, launched: Ints) -> Ints:
    """Return the launch of the work before each on its stream, NEVER without."""
    order = np.lexsort((launched, key))
    last = np.full(len(key), NEVER, dtype=np.int64)
    same = key[order][1:] == key[order][:-1]
    last[order[1:]] = np.where(same, launched[order][:-1], NEVER)
    return last


def _by_event(by_none: Ended, owner: Ints, requested: Ints, floor: Ints, start: Ints) -> Ints:
    """Return the work awaited by each work through an unrecorded event, or NONE.

    It is the work that ended last before the waiting work started, of all work launched before the
    wait was requested, on any stream of the owner, if that is after the other dependencies
    (``floor``).
    """
    result = np.full(len(start), NONE, dtype=np.int64)
    waiting = np.flatnonzero(requested != NEVER)
    found = by_none.last_launched(
        owner[waiting], floor[waiting], start[waiting], requested[waiting]
    )
    # Work of zero duration must not wait for itself.
    result[waiting] = np.where(found < waiting, found, NONE)
    return result


def _in_time(by_record: Ints, floor: Ints, start: Ints, end: Ints) -> Ints:
    """Return ``by_record`` where it ended before the work started, after ``floor``; else NONE."""
    ended = take(end, by_record)
    known = (by_record != NONE) & (by_record < np.arange(len(start)))
    return np.where(known & (ended > floor) & (ended <= start), by_record, NONE)


def _by_collective(trace: Trace, work: pl.DataFrame, floor: Ints) -> Ints:
    """Return the collective awaited by each work whose wait is not recorded, or NONE.

    It is the collective of the same device that ended last between the other dependencies
    (``floor``) and the start of the work, if it ran for most of that time: work that had been
    launched, on a stream that was free, can only have waited for it. Waits before the capture, and
    those of HIP's streams, are not recorded.
    """
    found = np.full(work.height, NONE, dtype=np.int64)
    each = np.flatnonzero((category_of(work, trace) == "collective").fill_null(False).to_numpy())
    if not len(each):
        return found
    start, end = work["start"].to_numpy(), work["end"].to_numpy()
    (device,) = numbered(work.select("owner", "device"))
    collectives = Ended.of(device[each], end[each], start[each])
    rows = np.flatnonzero(start > floor)
    last = take(each[collectives.order], collectives.last(device[rows], start[rows]))
    rows, last = rows[last != NONE], last[last != NONE]
    since = np.maximum(start[last], floor[rows])
    covers = 2 * (end[last] - since) > start[rows] - floor[rows]
    found[rows[covers]] = np.where(last < rows, last, NONE)[covers]
    return found


def _of_work(end: Ints, rows: Ints) -> Ints:
    """Return the end of the work of ``rows``, NEVER where the row is NONE."""
    return np.where(rows == NONE, NEVER, end[rows]) if len(end) else rows
