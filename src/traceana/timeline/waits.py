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
from traceana.timeline import operations
from traceana.timeline.copies import blocking_copies
from traceana.trace import per_small_trace
from traceana.trace.schema import DEVICE_WORK, NODES_OF_GRAPH
from traceana.trace.work import labels

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
_COLUMNS: Final = (
    *("rank", "process", *STREAM, "start", "duration", "call", "kind", "name_id", "graph_node"),
)
"""Of the activities, whose table is copied in the order of their ends."""

Whose = tuple[int | None, int | None]
"""A rank and a process of it; no process where the work of all processes of the rank is meant."""


class WorkWaits(msgspec.Struct, frozen=True):
    """Device work in the order of its end, with its waits."""

    activity: Ints
    """The row in ``activities``."""
    call: Ints
    """The row of the launching call in ``calls``; NONE if it is not recorded."""
    stream: Ints
    """The key of the stream."""
    start: Ints
    end: Ints
    launched: Ints
    """The start of the launching call; without one, of the work."""
    returned: Ints
    """The end of the launching call, or the start of the work if that is earlier; undefined without
    a call."""
    blocking: Flags
    """The host waits in the launching call."""
    before: Ints
    """The awaited work, always an earlier row. The latest dependency counts, the stream's where two
    are equal."""
    why: Ints
    """The kind of that wait."""
    on_stream: Ints
    """The work that ended last before it on its stream; NONE without."""
    by_event: Ints
    """The work of another stream that it waited for; NONE without."""
    dependencies: Ints
    """Pairs of rows: a node of a CUDA graph, and one that it depends on in its replay, where the
    dependencies of the graph are recorded; an operation of a training job, and one that it waits
    for."""
    by_record: Ints
    """The last work before a recorded event that its stream waits for, also if that had ended
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
    """Return the owner of the work of a process' steps: the rank unless several processes of it
    marked steps."""
    return _owner(_marking_processes(trace), rank, process)


def _marking_processes(trace: Trace) -> Mapping[int | None, int]:
    """Return how many processes of each rank marked steps."""
    processes = trace.whole.tables.steps.select("rank", "process").unique()
    return Counter(processes["rank"].to_list())


def _owner(marking: Mapping[int | None, int], rank: int | None, process: int | None) -> Whose:
    return rank, process if marking.get(rank, 0) > 1 else None


def of_process(frame: pl.DataFrame, owner: Whose) -> Flags:
    """Return the rows of the rank of ``owner`` and, if given, of its process or without one."""
    rank, process = owner
    owned = pl.col("rank").eq_missing(pl.lit(rank, pl.Int32))
    if process is not None:
        owned &= (pl.col("process") == process).fill_null(value=True)
    return frame.select(owned).to_series().to_numpy()


def within(table: pl.DataFrame, between: tuple[int, int] | None) -> Flags:
    """Return the rows that overlap the time ``between``; all rows if it is None."""
    if between is None:
        return np.ones(table.height, dtype=np.bool_)
    start, end = times(table)
    overlapping: Flags = (start < between[1]) & (end > between[0])
    return overlapping


def all_waits(trace: Trace) -> WorkWaits:
    """Return the waits of the device work of every process of ``trace``, which is whole."""
    marking = _marking_processes(trace)
    processes = distinct(trace.tables.activities.select("rank", "process")).iter_rows()
    owners = dict.fromkeys(_owner(marking, rank, process) for rank, process in processes)
    return work_waits(trace, tuple(owners))


@per_small_trace
def work_waits(
    trace: Trace, owners: tuple[Whose, ...], between: tuple[int, int] | None = None
) -> WorkWaits:
    """Return the waits of the device work of ``owners``, which do not wait for each other's.

    With ``between`` it is the work that ran between two times. ``trace`` is whole.
    """
    records = trace.tables.activities.filter(pl.col("kind") == "sync")
    syncs = _owned(records, owners, between).drop("row")
    activities = _owned(trace.tables.activities.select(_COLUMNS), owners, between)
    is_work = activities["kind"].is_in(DEVICE_WORK)
    work = (
        (activities if is_work.all() else activities.filter(is_work))
        .with_columns((pl.col("start") + pl.col("duration")).alias("end"))
        .sort("end", "start", maintain_order=True)
    )
    owner, start, end = (work[name].to_numpy() for name in ("owner", "start", "end"))
    streams = work.select("owner", *STREAM).unique(maintain_order=True).with_row_index("key")
    contexts = work.select("owner", "context").unique(maintain_order=True).with_row_index("key")
    stream = _keys(work, streams, "owner", *STREAM)

    # The launch of each piece of work, and the work before it on its stream.
    call = from_rows(work["call"])
    has_call = call != NONE
    call_start, call_end = (take(time, call) for time in times(trace.tables.calls))
    launched = np.where(has_call, call_start, start)
    returned = np.minimum(call_end, start)
    blocking = _blocking(trace, work, has_call, end <= call_end)
    # A blocking call waits from its start: work that ends during the call can have delayed it.
    call_waited = np.where(blocking & (start < call_end), call_start, returned)
    launch_ready = np.where(has_call, call_waited, NEVER)
    before = _work_before(stream, start, end)
    stream_ready = np.where(before == NONE, NEVER, take(end, before))
    ready = np.maximum(stream_ready, launch_ready)

    # Events: recorded waits first, then calls without a record, nodes of graphs, collectives.
    waits = wait_records(trace, syncs)
    requested = waits["requested"].to_numpy()
    event_stream = event_keys(waits, streams, "owner", "context", "stream")
    before_event = recorded_work(trace, waits, event_stream, stream, launched)
    # The recorded context can be the event's: then a number that one stream alone has counts.
    waiting = keys_of(waits, streams, "owner", "context", "stream")
    waiting = np.where(waiting == NO_WORK, keys_of(waits, streams, "owner", "stream"), waiting)
    by_record = _awaited_work(waiting, requested, before_event, stream, launched)
    by_event = _if_decisive(by_record, ready, start, end)
    unknown = before_event == ANY
    call_time, call_owner = _unrecorded_waits(trace, owners, between, waits["owner"])
    if unknown.any() or len(call_time):
        last_wait = np.maximum(
            _last_request(requested[unknown], waiting[unknown], stream, launched),
            _last_request(call_time, call_owner, owner, launched),
        )
        # The work launched before it on its stream has already waited.
        order = np.lexsort((launched, stream))
        launch_before = np.full(len(stream), NEVER, dtype=np.int64)
        same_stream = stream[order][1:] == stream[order][:-1]
        launch_before[order[1:]] = np.where(same_stream, launched[order][:-1], NEVER)
        waiting_work = np.flatnonzero(last_wait > launch_before)
        # Any work of the owner launched before the request can be the awaited one.
        awaited = WorkByEnd.of(owner, end, launched).last_launched(
            owner[waiting_work], ready[waiting_work], start[waiting_work], last_wait[waiting_work]
        )
        # Work of zero duration must not wait for itself.
        awaited = np.where(awaited < waiting_work, awaited, NONE)
        by_event[waiting_work] = np.maximum(by_event[waiting_work], awaited)
    by_call = _work_awaited_by_calls(trace, call_time, stream, launched)
    by_record = np.where(by_record == NONE, by_call, by_record)
    in_graph = _node_before(call, work["name_id"].to_numpy(), stream, start, end)
    dependencies = _graph_dependencies(trace, work)
    if trace.tables.operations.height:
        dependencies = np.concatenate((dependencies, _operation_dependencies(trace, work)))
    if len(dependencies):
        # Of the nodes that it depends on the one that ended last counts: the last row.
        in_graph[_of_recorded_graphs(trace, work)] = NONE
        np.maximum.at(in_graph, dependencies[:, 0], dependencies[:, 1])
    by_event = np.where(by_event == NONE, _if_decisive(in_graph, ready, start, end), by_event)
    collective = _awaited_collective(trace, work, ready)
    by_event = np.where((by_event == NONE) & (launch_ready <= stream_ready), collective, by_event)

    why = np.select(
        [by_event != NONE, (before != NONE) & (stream_ready > launch_ready), has_call],
        [BY_EVENT, BY_STREAM, BY_LAUNCH],
        UNKNOWN,
    )
    return WorkWaits(
        activity=work["row"].cast(pl.Int64).to_numpy(),
        call=call,
        stream=stream,
        start=start,
        end=end,
        launched=launched,
        returned=returned,
        blocking=blocking,
        before=np.where(by_event != NONE, by_event, before),
        why=why,
        on_stream=before,
        by_event=by_event,
        dependencies=dependencies,
        by_record=np.where(take(end, by_record) <= start, by_record, NONE),
        streams=streams,
        contexts=contexts,
        context=_keys(work, contexts, "owner", "context"),
        syncs=syncs,
    )


def _owned(
    table: pl.DataFrame, owners: Sequence[Whose], between: tuple[int, int] | None
) -> pl.DataFrame:
    """Return the rows of ``owners`` with their ``row`` in ``table`` and ``owner``, its position."""
    if len(owners) == 1:
        owner = np.where(of_process(table, owners[0]), 0, NONE)
    else:
        position = {whose: number for number, whose in enumerate(owners)}
        processes = table.select("rank", "process")
        (number,) = numbered(processes)
        position_of_process = [
            position.get((rank, process), position.get((rank, None), NONE))
            for rank, process in processes[first_rows(number)].iter_rows()
        ]
        owner = np.array(position_of_process, dtype=np.int64)[number]
    rows = np.flatnonzero((owner != NONE) & within(table, between))
    if len(rows) < table.height:
        table = table[rows, :]
    return table.with_columns(pl.Series("row", rows), pl.Series("owner", owner[rows]))


def _blocking(trace: Trace, work: pl.DataFrame, has_call: Flags, ended_in_call: Flags) -> Flags:
    """Return the ``work`` whose launching call blocked until it, or the work before it, was done.

    Copies between host and device memory block, except asynchronous ones of pinned memory. A copy
    of unknown host memory blocked if it ended in its call. Where every kernel of an owner ended in
    its call, all launches blocked (``CUDA_LAUNCH_BLOCKING``).
    """
    ended_in_call = ended_in_call & has_call
    copy_blocks = blocking_copies(trace.whole).gather(work["row"])
    is_copy = (work["kind"] == "memcpy").to_numpy()
    blocking = copy_blocks.fill_null(value=False).to_numpy() & has_call
    blocking |= is_copy & copy_blocks.is_null().to_numpy() & ended_in_call
    kernels = has_call & work["kind"].is_in(["kernel", "graph"]).to_numpy()
    owner = work["owner"].to_numpy()
    owners = int(owner.max(initial=-1)) + 1
    kernels_of_owner = np.bincount(owner[kernels], minlength=owners)
    ended_of_owner = np.bincount(owner[kernels & ended_in_call], minlength=owners)
    all_blocked = (ended_of_owner == kernels_of_owner) & (kernels_of_owner > 0)
    return np.asarray(blocking | ended_in_call & all_blocked[owner])


def _keys(work: pl.DataFrame, keys: pl.DataFrame, *columns: str) -> Ints:
    """Return the key of the stream or context of each piece of work."""
    with_key = work.select(columns).join(
        keys, on=list(columns), how="left", nulls_equal=True, maintain_order="left"
    )
    return with_key["key"].cast(pl.Int64).to_numpy()


def _work_before(stream: Ints, start: Ints, end: Ints) -> Ints:
    """Return the work before each piece of work on its stream; NONE for the first.

    A stream runs its work in order. With programmatic dependent launch, work begins before the work
    before it has ended; but work that ends later than the next cannot have been awaited by it.
    """
    order = np.lexsort((end, start, stream))
    before = np.full(len(start), NONE, dtype=np.int64)
    same_stream = stream[order][1:] == stream[order][:-1]
    before[order[1:]] = np.where(same_stream, order[:-1], NONE)
    # Rows are in the order of their ends: the awaited work is an earlier row.
    late = np.flatnonzero(before >= np.arange(len(start)))
    if len(late):
        by_end = WorkByEnd.of(stream, end, end)
        position_of = np.empty(len(stream), dtype=np.int64)
        position_of[by_end.order] = np.arange(len(stream))
        last = by_end.last(stream[late], start[late])
        last = np.minimum(last, position_of[late] - 1)
        on_stream = (last >= 0) & (by_end.key[last] == stream[late])
        before[late] = np.where(on_stream, by_end.order[last], NONE)
    return before


_MOST_NODES_BEFORE: Final = 64
"""Nodes of a CUDA graph before each node that are compared with it."""


def _node_before(call: Ints, name: Ints, stream: Ints, start: Ints, end: Ints) -> Ints:
    """Return the node of another stream that each node of a CUDA graph's replay waits for, or NONE.

    The branches of a graph run on streams of their own, whose dependencies are not recorded. A node
    waits for the node that ended last before it in every replay of the same graph.
    """
    node_before = np.full(len(start), NONE, dtype=np.int64)
    order = np.lexsort((start, call))
    order = order[call[order] != NONE]
    _, first, count = np.unique(call[order], return_index=True, return_counts=True)
    replays_of_graph: dict[tuple[int, bytes], list[Ints]] = {}
    for at, nodes in zip(first[count > 1], count[count > 1], strict=True):
        rows = order[at : at + nodes]
        if (stream[rows] != stream[rows[0]]).any():
            replays_of_graph.setdefault((nodes, name[rows].tobytes()), []).append(rows)
    for (nodes, _), replays in replays_of_graph.items():
        rows_of_replay = np.stack(replays)
        begun, ended = start[rows_of_replay], end[rows_of_replay]
        awaited_node = np.full(nodes, NONE, dtype=np.int64)
        latest = np.full(nodes, -np.inf)
        for distance in range(1, min(_MOST_NODES_BEFORE, nodes - 1) + 1):
            slack = begun[:, distance:] - ended[:, : nodes - distance]
            # Of the nodes that had ended in all replays the one that ended last counts.
            closeness = -slack.mean(axis=0)
            closer = (slack >= 0).all(axis=0) & (closeness > latest[distance:])
            latest[distance:] = np.where(closer, closeness, latest[distance:])
            awaited_node[distance:] = np.where(
                closer, np.arange(nodes - distance), awaited_node[distance:]
            )
        awaited = np.where(awaited_node == NONE, NONE, rows_of_replay[:, awaited_node])
        other_stream = stream[awaited] != stream[rows_of_replay]
        waits = (awaited_node != NONE) & other_stream & (awaited < rows_of_replay)
        node_before[rows_of_replay[waits]] = awaited[waits]
    return node_before


def _graph_dependencies(trace: Trace, work: pl.DataFrame) -> Ints:
    """Return rows of ``work``, nodes in replays of CUDA graphs, and of the nodes that each depends
    on, as recorded: an array of pairs."""
    dependencies = trace.tables.graph_dependencies
    if dependencies.is_empty():
        return np.empty((0, 2), dtype=np.int64)
    nodes = work.with_row_index("waiting").select("waiting", "rank", "call", "graph_node")
    pairs = (
        nodes.drop_nulls(["call", "graph_node"])
        .join(dependencies, on=["rank", "graph_node"], nulls_equal=True)
        .join(
            nodes.rename({"graph_node": "after", "waiting": "awaited"}),
            on=["rank", "call", "after"],
            nulls_equal=True,
        )
        .filter(pl.col("awaited") < pl.col("waiting"))
        .sort("waiting", "awaited")
    )
    return pairs.select(pl.col("waiting", "awaited").cast(pl.Int64)).to_numpy()


def _operation_dependencies(trace: Trace, work: pl.DataFrame) -> Ints:
    """Return rows of ``work``, operations of a training job, and of those that each waits for on
    its rank: an array of pairs."""
    rows = work.select("row").with_row_index("position")
    pairs = (
        operations.dependencies(trace)
        .join(rows.rename({"position": "at"}), left_on="waiting", right_on="row")
        .join(rows.rename({"position": "before"}), left_on="awaited", right_on="row")
        .filter(pl.col("before") < pl.col("at"))
        .sort("at", "before")
    )
    return pairs.select(pl.col("at", "before").cast(pl.Int64)).to_numpy()


def _of_recorded_graphs(trace: Trace, work: pl.DataFrame) -> Flags:
    """Return which ``work`` is of CUDA graphs whose dependencies are recorded."""
    graph = (pl.col("graph_node") // NODES_OF_GRAPH).alias("graph")
    recorded = trace.tables.graph_dependencies.select("rank", graph).unique()
    graphs = work.select("rank", graph).join(
        recorded.with_columns(pl.lit(True).alias("recorded")),
        on=["rank", "graph"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    return graphs["recorded"].fill_null(False).to_numpy()


def _unrecorded_waits(
    trace: Trace,
    owners: Sequence[Whose],
    between: tuple[int, int] | None,
    recorded: pl.Series,
) -> tuple[Ints, Ints]:
    """Return the times and owners of the calls of cudaStreamWaitEvent of those ``owners`` that have
    no ``recorded`` waits. Such a call counts for every stream."""
    rows = np.flatnonzero(Texts.of(trace.tables.calls["name"]).matching(WAIT_CALL))
    calls = trace.tables.calls.select("rank", "process", "start", "duration")[rows]
    calls = _owned(calls, owners, between)
    calls = calls.filter(~calls["owner"].is_in(recorded.implode()))
    return calls["start"].to_numpy(), calls["owner"].to_numpy()


_RECORD_CALL: Final = r"EventRecord"
"""Calls that record an event on a stream."""
_MOST_STREAMS: Final = 64


def _work_awaited_by_calls(trace: Trace, requested: Ints, stream: Ints, launched: Ints) -> Ints:
    """Return the work that a call made the stream of each piece of work wait for, or NONE.

    The streams of unrecorded waits are inferred from the order of the calls: a program records an
    event after it launched the awaited work, and makes a stream wait before it launches there. So
    the work launched next after a wait waits, for the last work that was launched on another stream
    before the event's record. ``requested`` are the times of the waiting calls.
    """
    result = np.full(len(stream), NONE, dtype=np.int64)
    streams = np.unique(stream)
    if not len(requested) or not 1 < len(streams) <= _MOST_STREAMS:
        return result
    requested = np.sort(requested)
    is_record = Texts.of(trace.tables.calls["name"]).matching(_RECORD_CALL)
    recorded = np.sort(trace.tables.calls.filter(pl.Series(is_record))["start"].to_numpy())
    last = np.searchsorted(recorded, requested, side="left") - 1
    # Without a recorded call the event was recorded before the wait at the latest.
    recorded_before = np.where(last == NONE, requested, np.append(recorded, NEVER)[last])
    order = np.argsort(launched, kind="stable")
    next_launch = np.searchsorted(launched[order], requested, side="left")
    waiting = np.append(order, NONE)[next_launch]
    recorded_before, waiting = recorded_before[waiting != NONE], waiting[waiting != NONE]
    awaited = np.full(len(waiting), NONE, dtype=np.int64)
    latest = np.full(len(waiting), NEVER)
    for key in streams.tolist():
        rows = order[stream[order] == key]
        position = np.searchsorted(launched[rows], recorded_before, side="left") - 1
        launch = np.where(position >= 0, launched[rows[position]], NEVER)
        later = (stream[waiting] != key) & (launch > latest)
        latest = np.where(later, launch, latest)
        awaited = np.where(later, rows[position], awaited)
    np.maximum.at(result, waiting, np.where(awaited < waiting, awaited, NONE))
    return result


def _last_request(requested: Ints, requested_key: Ints, key: Ints, launched: Ints) -> Ints:
    """Return when the stream or owner ``key`` of each piece of work was last asked to wait before
    its launch, else NEVER; ``requested_key`` is the stream or owner of each request."""
    if not len(requested):
        return np.full(len(key), NEVER, dtype=np.int64)
    order = np.argsort(requested, kind="stable")
    requests = WorkByEnd.of(requested_key[order], requested[order], requested[order])
    position = requests.last(key, launched)
    return np.where(position == NONE, NEVER, take(requests.end, position))


def _if_decisive(awaited: Ints, ready: Ints, start: Ints, end: Ints) -> Ints:
    """Return the ``awaited`` work if it ended last before the start, after all other dependencies
    were ``ready``; else NONE."""
    ended = take(end, awaited)
    earlier = (awaited != NONE) & (awaited < np.arange(len(start)))
    return np.where(earlier & (ended > ready) & (ended <= start), awaited, NONE)


def _awaited_collective(trace: Trace, work: pl.DataFrame, ready: Ints) -> Ints:
    """Return the collective awaited by each piece of work whose wait is not recorded, or NONE.

    It is the collective of the same device that ended last between the other dependencies
    (``ready``) and the start of the work, if it ran for most of that time: work that had been
    launched, on a stream that was free, can only have waited for it. Waits before the capture, and
    those of HIP's streams, are not recorded.
    """
    awaited = np.full(work.height, NONE, dtype=np.int64)
    category = labels(trace.tables, "category")["category"].gather(work["row"])
    is_collective = (category == "collective").fill_null(False).to_numpy()
    collectives = np.flatnonzero(is_collective)
    if not len(collectives):
        return awaited
    start, end = work["start"].to_numpy(), work["end"].to_numpy()
    (device,) = numbered(work.select("owner", "device"))
    by_end = WorkByEnd.of(device[collectives], end[collectives], start[collectives])
    rows = np.flatnonzero(start > ready)
    last = take(collectives[by_end.order], by_end.last(device[rows], start[rows]))
    rows, last = rows[last != NONE], last[last != NONE]
    since = np.maximum(start[last], ready[rows])
    ran_mostly = 2 * (end[last] - since) > start[rows] - ready[rows]
    awaited[rows[ran_mostly]] = np.where(last < rows, last, NONE)[ran_mostly]
    return awaited


def wait_records(trace: Trace, syncs: pl.DataFrame) -> pl.DataFrame:
    """Return the waits of streams for an event among ``syncs``, synchronization records.

    Further column: ``requested``, the start of the requesting call, else of the record (ns).
    """
    names = trace.tables.names.with_row_index("name_id").filter(pl.col("name") == STREAM_WAIT)
    waits = syncs.filter(pl.col("name_id").is_in(names["name_id"].implode()))
    call_start = trace.whole.tables.calls["start"].gather(waits["call"])
    return waits.with_columns(call_start.fill_null(waits["start"]).alias("requested"))


def keys_of(syncs: pl.DataFrame, keys: pl.DataFrame, *columns: str) -> Ints:
    """Return the key of the stream or context of each record.

    :data:`ANY` where it is not recorded or its number is ambiguous, :data:`NO_WORK` where nothing
    ran on it. ``columns`` identify it in ``syncs`` and in ``keys``; a record's device can be wrong.
    """
    unique_key = pl.when(pl.len() > 1).then(ANY).otherwise(pl.col("key").first()).alias("key")
    with_key = syncs.select(columns).join(
        keys.group_by(columns).agg(unique_key),
        on=list(columns),
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    key = pl.col("key").fill_null(NO_WORK)
    recorded = pl.col(columns[-1]).is_not_null()
    key = pl.when(recorded).then(key).otherwise(ANY).cast(pl.Int64)
    return with_key.select(key).to_series().to_numpy()


def event_keys(waits: pl.DataFrame, streams: pl.DataFrame, *columns: str) -> Ints:
    """Return the key of the stream on which the event of each of ``waits`` was recorded."""
    of_events = waits.with_columns(pl.col("event_stream").alias("stream"))
    return keys_of(of_events, streams, *columns)


def recorded_work(
    trace: Trace, waits: pl.DataFrame, event_stream: Ints, stream: Ints, launched: Ints
) -> Ints:
    """Return for each of ``waits`` the work after which its event was recorded.

    ``waits`` are synchronization records with ``requested``; ``event_stream`` is the key of each
    event's stream (:func:`event_keys`); ``stream`` and ``launched`` are the stream of each piece of
    work and the start of its launch.

    It is the last work launched on the event's stream before the call that recorded the event, or,
    if that call is not in the trace, before the waiting call. ``NO_WORK`` if nothing was launched
    there before, ``ANY`` if the stream of the event is unknown.
    """
    if waits.is_empty():
        return np.zeros(0, dtype=np.int64)
    correlations = waits["event_correlation"].drop_nulls().unique()
    calls = trace.whole.tables.calls.select("rank", "process", "correlation", "start")
    records = calls.filter(pl.col("correlation").is_in(correlations.implode()))
    recorded = waits.select(_RECORD).join(
        records.rename({"correlation": "event_correlation"}).unique(_RECORD, keep="first"),
        on=_RECORD, how="left", nulls_equal=True, maintain_order="left",
    )["start"]  # fmt: skip
    order = np.argsort(launched, kind="stable")
    by_launch = WorkByEnd.of(stream[order], launched[order], launched[order])
    # A launching call and a recording call never start at the same time.
    before = recorded.fill_null(waits["requested"]).to_numpy() - 1
    position = by_launch.last(np.maximum(event_stream, 0), before)
    last = take(order, take(by_launch.order, position))
    return np.select([event_stream < 0, last == NONE], [event_stream, NO_WORK], last)


def _awaited_work(
    waiting: Ints, requested: Ints, before_event: Ints, stream: Ints, launched: Ints
) -> Ints:
    """Return the work that the stream of each piece of work waited for since the work before it.

    ``waiting`` is the stream of each wait, ``requested`` its time, and ``before_event`` the awaited
    work (:func:`recorded_work`). Of several waits the work that ended last counts; NONE without a
    wait.
    """
    awaited = np.full(len(stream), NONE, dtype=np.int64)
    if not len(waiting):
        return awaited
    order = np.lexsort((launched, stream))
    distinct_times, rank = np.unique(np.concatenate((launched, requested)), return_inverse=True)
    launch_rank, request_rank = np.split(rank, [len(stream)])
    launches = (stream * len(distinct_times) + launch_rank)[order]
    next_launch = np.searchsorted(
        launches, waiting * len(distinct_times) + request_rank, side="left"
    )
    usable = (next_launch < len(order)) & (waiting >= 0) & (before_event >= 0)
    next_work = order[next_launch[usable]]
    same_stream = stream[next_work] == waiting[usable]
    # Work is numbered in the order of its end.
    np.maximum.at(awaited, next_work[same_stream], before_event[usable][same_stream])
    return awaited


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
        leaves = len(self._tree) // 2
        node = self._after(key, until) + leaves
        subtree = np.zeros(len(node), dtype=np.int64)
        # Upwards to the last subtree before the node that has a launch before ``before``.
        while (node > 1).any():
            # Before a right child come its left sibling, and the nodes before their parent.
            sibling = np.where(node & 1, node - 1, 0)
            hit = (sibling > 0) & (self._tree[sibling] < before)
            subtree = np.where(hit, sibling, subtree)
            node = np.where(hit, 0, node >> 1)
        # Downwards to its last leaf of that kind.
        while (inner := (subtree > 0) & (subtree < leaves)).any():
            right = np.where(inner, 2 * subtree + 1, 1)
            child = np.where(self._tree[right] < before, right, right - 1)
            subtree = np.where(inner, child, subtree)
        position = np.maximum(subtree - leaves, 0)
        in_time = (subtree > 0) & (position >= self._after(key, after))
        return np.where(in_time, self.order[position], NONE)

    def _after(self, key: Ints, until: Ints) -> Ints:
        """Return the position after all smaller keys and the work of ``key`` ended by ``until``."""
        rank = np.searchsorted(self._rank, until, side="right")
        return np.searchsorted(self._merged, key * (len(self._rank) + 1) + rank, side="left")
