"""What each piece of device work waited for: the work before it on its stream, an event, a
collective, or its launch.

The graph (``graph.py``) and the causes of idle time use these waits. Where CUPTI recorded a wait
for an event, the awaited work is known; else it is inferred from the order of the work. ``ANY`` is
an unknown stream, ``NO_WORK`` a stream without work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from traceana.columns.distinct import Texts, distinct, first_rows, numbered
from traceana.columns.intervals import times
from traceana.columns.nesting import NONE, Flags, Ints, from_rows, take
from traceana.enrich.keys import SOURCE, category_of
from traceana.timeline.copies import blocking_copies
from traceana.trace import per_small_trace
from traceana.trace.schema import DEVICE_WORK

if TYPE_CHECKING:
    from traceana.trace import Trace

UNKNOWN, BY_STREAM, BY_EVENT, BY_LAUNCH = range(4)
"""Kinds of waits of device work: unknown; for the work before it on its stream; for work of another
stream; for its launch."""

STREAM: Final = ("device", "context", "stream")
STREAM_WAIT: Final = "Stream Wait Event"
"""The readers' name of CUPTI's record of a stream's wait for an event."""

WAIT_CALL: Final = r"^(?:cuda|cu|hip)StreamWaitEvent"
"""Calls that make a stream wait for an event."""

ANY, NO_WORK = -1, -2
NEVER: Final = np.iinfo(np.int64).min

_RECORD: Final = ["rank", "process", "event_correlation"]
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
    each = trace.whole.tables.steps.select("rank", "process").unique()
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
    start, end = times(table)
    found: Flags = (start < between[1]) & (end > between[0])
    return found


def all_waits(trace: Trace) -> WorkWaits:
    """Return the waits of the device work of every process of ``trace``, which is whole."""
    marked = _marked(trace)
    each = distinct(trace.tables.activities.select("rank", "process")).iter_rows()
    return work_waits(trace, tuple(dict.fromkeys(_owner(marked, *one) for one in each)))


@per_small_trace
def work_waits(
    trace: Trace, owners: tuple[Whose, ...], between: tuple[int, int] | None = None
) -> WorkWaits:
    """Return the waits of the device work of ``owners``, which do not wait for each other's.

    With ``between`` it is the work that ran between two times. ``trace`` is whole.
    """
    records = trace.tables.activities.filter(pl.col("kind") == "sync")
    syncs = _owned(records, owners, between).drop("row")
    work = _ordered(trace, owners, between)
    owner = work["owner"].to_numpy()
    streams = work.select("owner", *STREAM).unique(maintain_order=True).with_row_index("key")
    contexts = work.select("owner", "context").unique(maintain_order=True).with_row_index("key")
    key = _key(work, streams, "owner", *STREAM)
    start, end = work["start"].to_numpy(), work["end"].to_numpy()
    call = from_rows(work["call"])
    known = call != NONE
    called, ended = (take(time, call) for time in times(trace.tables.calls))
    launched = np.where(known, called, start)
    returned = np.minimum(ended, start)
    blocking = _blocking(trace, work, known, end <= ended, owner)
    before = _on_stream(key, start, end)
    of_stream = np.where(before == NONE, NEVER, take(end, before))
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
        every = WorkByEnd.of(owner, end, launched)
        by_event = np.maximum(by_event, _by_event(every, owner, requested, floor, start))
    by_call = _requested_work(trace, calling[0], key, launched)
    by_record = np.where(by_record == NONE, by_call, by_record)
    in_graph = _within_graphs(call, work["name_id"].to_numpy(), key, start, end)
    by_event = np.where(by_event == NONE, _in_time(in_graph, floor, start, end), by_event)
    of_collective = _by_collective(trace, work, floor)
    by_event = np.where((by_event == NONE) & (of_launch <= of_stream), of_collective, by_event)
    why = np.select(
        [by_event != NONE, (before != NONE) & (of_stream > of_launch), known],
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
    own = _owned(trace.tables.activities.select(_COLUMNS), owners, between)
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
    of_copy = blocking_copies(trace.whole).gather(work["row"])
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


def _on_stream(stream: Ints, start: Ints, end: Ints) -> Ints:
    """Return the work of the same stream before each; NONE for the first.

    A stream runs its work in order. With programmatic dependent launch, work begins before the work
    before it has ended; but work that ends later than the next cannot have been awaited by it.
    """
    order = np.lexsort((end, start, stream))
    found = np.full(len(start), NONE, dtype=np.int64)
    same = stream[order][1:] == stream[order][:-1]
    found[order[1:]] = np.where(same, order[:-1], NONE)
    # Rows are in the order of their ends: what is awaited is an earlier row.
    late = np.flatnonzero(found >= np.arange(len(start)))
    if len(late):
        ended = WorkByEnd.of(stream, end, end)
        position = ended.last(stream[late], start[late])
        own = np.empty(len(stream), dtype=np.int64)
        own[ended.order] = np.arange(len(stream))
        position = np.minimum(position, own[late] - 1)
        known = (position >= 0) & (ended.key[position] == stream[late])
        found[late] = np.where(known, ended.order[position], NONE)
    return found


_MOST_BESIDE: Final = 64
"""Nodes of a CUDA graph that are looked at before each for the one that it waits for."""


def _within_graphs(call: Ints, name: Ints, stream: Ints, start: Ints, end: Ints) -> Ints:
    """Return the node of another stream that each node of a CUDA graph's replay waits for, or NONE.

    The branches of a graph run on streams of their own, whose dependencies are not recorded. A node
    waits for the node that ended last before it in every replay of the same graph.
    """
    found = np.full(len(start), NONE, dtype=np.int64)
    order = np.lexsort((start, call))
    order = order[call[order] != NONE]
    _, first, count = np.unique(call[order], return_index=True, return_counts=True)
    replays: dict[tuple[int, bytes], list[Ints]] = {}
    for at, nodes in zip(first[count > 1], count[count > 1], strict=True):
        rows = order[at : at + nodes]
        if (stream[rows] != stream[rows[0]]).any():
            replays.setdefault((nodes, name[rows].tobytes()), []).append(rows)
    for (nodes, _), same in replays.items():
        each = np.stack(same)
        begun, ended = start[each], end[each]
        best = np.full(nodes, NONE, dtype=np.int64)
        latest = np.full(nodes, -np.inf)
        for back in range(1, min(_MOST_BESIDE, nodes - 1) + 1):
            before = np.arange(nodes - back)
            slack = begun[:, back:] - ended[:, : nodes - back]
            # Of the nodes that had ended in all replays the one that ended last counts.
            closest = -slack.mean(axis=0)
            better = (slack >= 0).all(axis=0) & (closest > latest[back:])
            latest[back:] = np.where(better, closest, latest[back:])
            best[back:] = np.where(better, before, best[back:])
        awaited = np.where(best == NONE, NONE, each[:, best])
        other = (best != NONE) & (stream[awaited] != stream[each]) & (awaited < each)
        found[each[other]] = awaited[other]
    return found


def _unrecorded_waits(
    trace: Trace,
    owners: Sequence[Whose],
    between: tuple[int, int] | None,
    recorded: pl.Series,
) -> tuple[Ints, Ints]:
    """Return the times and owners of the calls of cudaStreamWaitEvent of those ``owners`` that have
    no ``recorded`` waits. Such a call counts for every stream."""
    rows = np.flatnonzero(Texts.of(trace.tables.calls["name"]).matching(WAIT_CALL))
    calls = _owned(
        trace.tables.calls.select("rank", "process", "start", "duration")[rows], owners, between
    )
    calls = calls.filter(~calls["owner"].is_in(recorded.implode()))
    return calls["start"].to_numpy(), calls["owner"].to_numpy()


_RECORD_CALL: Final = r"EventRecord"
"""Calls that record an event on a stream."""
_MOST_STREAMS: Final = 64


def _requested_work(trace: Trace, requested: Ints, stream: Ints, launched: Ints) -> Ints:
    """Return for each work the one that a call made its stream wait for, or NONE.

    The streams of unrecorded waits are inferred from the order of the calls: a program records an
    event after it launched what is awaited, and makes a stream wait before it launches there. So
    the work launched next after a wait is awaiting, and the last work that was launched on another
    stream before the event's record is awaited. ``requested`` are the times of the waiting calls.
    """
    found = np.full(len(stream), NONE, dtype=np.int64)
    streams = np.unique(stream)
    if not len(requested) or not 1 < len(streams) <= _MOST_STREAMS:
        return found
    requested = np.sort(requested)
    records = trace.tables.calls.filter(
        pl.Series(Texts.of(trace.tables.calls["name"]).matching(_RECORD_CALL))
    )
    recorded = np.append(np.sort(records["start"].to_numpy()), NEVER)
    last = np.searchsorted(recorded[:-1], requested, side="left") - 1
    # Without a recorded call the event was recorded before the wait at the latest.
    when = np.where(last == NONE, requested, recorded[last])
    order = np.argsort(launched, kind="stable")
    following = np.searchsorted(launched[order], requested, side="left")
    requested_work = np.append(order, NONE)[following]
    known = requested_work != NONE
    when, waiting = when[known], requested_work[known]
    awaited, latest = np.full(len(when), NONE, dtype=np.int64), np.full(len(when), NEVER)
    for one in streams.tolist():
        rows = order[stream[order] == one]
        position = np.searchsorted(launched[rows], when, side="left") - 1
        at = np.where(position >= 0, launched[rows[position]], NEVER)
        better = (stream[waiting] != one) & (at > latest)
        latest = np.where(better, at, latest)
        awaited = np.where(better, rows[position], awaited)
    np.maximum.at(found, waiting, np.where(awaited < waiting, awaited, NONE))
    return found


def _last(when: Ints, of: Ints, key: Ints, launched: Ints) -> Ints:
    """Return the last time of ``when`` (of the keys ``of``) until the launch of each work, else
    NEVER."""
    if not len(when):
        return np.full(len(key), NEVER, dtype=np.int64)
    index = np.argsort(when, kind="stable")
    found = WorkByEnd.of(of[index], when[index], when[index])
    position = found.last(key, launched)
    return np.where(position == NONE, NEVER, take(found.end, position))


def _launched_before(key: Ints, launched: Ints) -> Ints:
    """Return the launch of the work before each on its stream, NEVER without."""
    order = np.lexsort((launched, key))
    last = np.full(len(key), NEVER, dtype=np.int64)
    same = key[order][1:] == key[order][:-1]
    last[order[1:]] = np.where(same, launched[order][:-1], NEVER)
    return last


def _by_event(by_none: WorkByEnd, owner: Ints, requested: Ints, floor: Ints, start: Ints) -> Ints:
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
    collectives = WorkByEnd.of(device[each], end[each], start[each])
    rows = np.flatnonzero(start > floor)
    last = take(each[collectives.order], collectives.last(device[rows], start[rows]))
    rows, last = rows[last != NONE], last[last != NONE]
    since = np.maximum(start[last], floor[rows])
    covers = 2 * (end[last] - since) > start[rows] - floor[rows]
    found[rows[covers]] = np.where(last < rows, last, NONE)[covers]
    return found


def wait_records(trace: Trace, syncs: pl.DataFrame) -> pl.DataFrame:
    """Return the waits of streams for an event among ``syncs``, synchronization records.

    Further column: ``requested``, the start of the requesting call, else of the record (ns).
    """
    names = trace.tables.names.select(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("name_id"), "name"
    )
    wanted = names.filter(pl.col("name") == STREAM_WAIT)["name_id"]
    waits = syncs.filter(pl.col("name_id").is_in(wanted.implode()))
    called = trace.whole.tables.calls["start"].gather(waits["call"])
    return waits.with_columns(called.fill_null(waits["start"]).alias("requested"))


def keys_of(syncs: pl.DataFrame, keys: pl.DataFrame, *columns: str) -> Ints:
    """Return the key of the stream or context of each record.

    :data:`ANY` where it is not recorded or its number is ambiguous, :data:`NO_WORK` where nothing
    ran on it. ``columns`` identify it in ``syncs`` and in ``keys``; a record's device can be wrong.
    """
    several = pl.len() > 1
    known = keys.group_by(columns).agg(pl.when(several).then(ANY).otherwise(pl.col("key").first()))
    found = syncs.select(columns).join(
        known, on=list(columns), how="left", nulls_equal=True, maintain_order="left"
    )
    return (
        found.select(
            pl.when(pl.col(columns[-1]).is_null())
            .then(ANY)
            .otherwise(pl.col(known.columns[-1]).fill_null(NO_WORK))
            .cast(pl.Int64)
        )
        .to_series()
        .to_numpy()
    )


def event_keys(waits: pl.DataFrame, streams: pl.DataFrame, *columns: str) -> Ints:
    """Return the key of the stream on which the event of each of ``waits`` was recorded."""
    of_events = waits.with_columns(pl.col("event_stream").alias("stream"))
    return keys_of(of_events, streams, *columns)


def recorded_work(trace: Trace, waits: pl.DataFrame, on: Ints, key: Ints, launched: Ints) -> Ints:
    """Return for each of ``waits`` the work after which its event was recorded.

    ``waits`` are synchronization records with ``requested``; ``on`` is the key of each event's
    stream (:func:`event_keys`); ``key`` and ``launched`` are the stream of each piece of work and
    the start of its launch.

    It is the last work launched on the event's stream before the call that recorded the event, or,
    where that call is not in the trace, before the waiting call. ``NO_WORK`` where nothing was
    launched there before, ``ANY`` where the stream of the event is unknown.
    """
    if waits.is_empty():
        return np.zeros(0, dtype=np.int64)
    wanted = waits["event_correlation"].drop_nulls().unique()
    calls = trace.whole.tables.calls.select("rank", "process", "correlation", "start")
    records = calls.filter(pl.col("correlation").is_in(wanted.implode()))
    recorded = waits.select(_RECORD).join(
        records.rename({"correlation": "event_correlation"}).unique(_RECORD, keep="first"),
        on=_RECORD, how="left", nulls_equal=True, maintain_order="left",
    )["start"]  # fmt: skip
    index = np.argsort(launched, kind="stable")
    order = WorkByEnd.of(key[index], launched[index], launched[index])
    # A launching call and a recording call never start at the same time.
    position = order.last(np.maximum(on, 0), recorded.fill_null(waits["requested"]).to_numpy() - 1)
    found = take(index, take(order.order, position))
    return np.select([on < 0, found == NONE], [on, NO_WORK], found)


def awaited(waiting: Ints, when: Ints, work: Ints, key: Ints, launched: Ints) -> Ints:
    """Return for each work the one that its stream waited for since the work before it.

    ``waiting`` is the key of the waiting stream, ``when`` the time of the request, and ``work`` of
    :func:`recorded_work`. Of several waits the work that ended last counts; NONE without a wait.
    The awaited work is numbered in the order of its end; ``key`` and ``launched`` are of the
    possibly waiting work.
    """
    result = np.full(len(key), NONE, dtype=np.int64)
    if not len(waiting):
        return result
    order = np.lexsort((launched, key))
    times, rank = np.unique(np.concatenate((launched, when)), return_inverse=True)
    merged = (key * len(times) + rank[: len(key)])[order]
    at = np.searchsorted(merged, waiting * len(times) + rank[len(key) :], side="left")
    known = (at < len(order)) & (waiting >= 0) & (work >= 0)
    first = order[at[known]]
    same = key[first] == waiting[known]
    np.maximum.at(result, first[same], work[known][same])
    return result


class WorkByEnd(msgspec.Struct, frozen=True):
    """An index of work by key (a stream, a device) and end. Lookups of columns, O(log n) each."""

    order: Ints
    """Rows, by key and end."""
    key: Ints
    end: Ints
    _merged: Ints
    _rank: Ints
    _tree: Ints
    """The earliest launch below each node of a balanced tree over ``order``."""

    @classmethod
    def of(cls, key: Ints, end: Ints, launched: Ints) -> WorkByEnd:
        """Return the index of rows given as columns in the order of their end; ``key`` >= 0."""
        order = np.argsort(key, kind="stable")
        first = np.append(True, end[1:] != end[:-1])[: len(end)]
        rank = end[first]
        merged = key[order] * (len(rank) + 1) + (np.cumsum(first) - 1)[order]
        size = 1 << len(order).bit_length()
        tree = np.full(2 * size, np.iinfo(np.int64).max, dtype=np.int64)
        tree[size : size + len(order)] = launched[order]
        level = size
        while level > 1:
            half = level // 2
            tree[half:level] = np.minimum(
                tree[level : 2 * level : 2], tree[level + 1 : 2 * level : 2]
            )
            level = half
        return cls(order, key[order], end[order], merged, rank, tree)

    def last(self, key: Ints, until: Ints) -> Ints:
        """Return the position in ``order`` of the last of ``key`` that ended by ``until``."""
        if not len(self.order):
            return np.full(len(key), NONE, dtype=np.int64)
        position = self._after(key, until) - 1
        return np.where((position >= 0) & (self.key[position] == key), position, NONE)

    def last_launched(self, key: Ints, after: Ints, until: Ints, before: Ints) -> Ints:
        """Return the row of the last work that ended in (``after``, ``until``].

        Only work launched before ``before`` counts; NONE without such work.
        """
        if not len(self.order):
            return np.full(len(key), NONE, dtype=np.int64)
        size = len(self._tree) // 2
        node = self._after(key, until) + size
        found = np.zeros(len(node), dtype=np.int64)
        while (node > 1).any():
            # Before a right child come its left sibling, and the nodes before their parent.
            sibling = np.where(node & 1, node - 1, 0)
            hit = (sibling > 0) & (self._tree[sibling] < before)
            found = np.where(hit, sibling, found)
            node = np.where(hit, 0, node >> 1)
        while ((found > 0) & (found < size)).any():
            below = (found > 0) & (found < size)
            right = np.where(below, 2 * found + 1, 1)
            found = np.where(below, np.where(self._tree[right] < before, right, right - 1), found)
        position = np.maximum(found - size, 0)
        known = (found > 0) & (position >= self._after(key, after))
        return np.where(known, self.order[position], NONE)

    def _after(self, key: Ints, until: Ints) -> Ints:
        """Return the position after all smaller keys and the work of ``key`` ended by ``until``."""
        rank = np.searchsorted(self._rank, until, side="right")
        return np.searchsorted(self._merged, key * (len(self._rank) + 1) + rank, side="left")
