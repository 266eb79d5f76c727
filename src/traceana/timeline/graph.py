"""What happened in a process as a graph: device work and moments of host threads, and what each
waited for.

A node is a piece of device work, or a moment of a thread: a launch, the begin or end of a waiting
call, the begin of activity after that of another thread, a step's marker. An edge leads from what
was waited for to what waited, and has the time that passed in between, its lag. A node happens as
soon as all its edges allow. In the trace this is its recorded time: what no edge explains is part
of the lag of its latest one. The critical path is a walk along the latest edges, a prediction a
replay with other lags and durations. Causes of idle gaps come from the same waits (``waits.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from traceana.columns.distinct import Threads
from traceana.columns.intervals import Intervals, times
from traceana.columns.nesting import NONE, Flags, Ints, from_rows, take, timeline
from traceana.enrich.steps import OPTIMIZER_STEP
from traceana.settings import LONGEST_LATENCY_NS
from traceana.timeline.idle_gaps import capture
from traceana.timeline.steps import step_windows
from traceana.timeline.threads import (
    HostTime,
    active_spans,
    handovers,
    records_waits,
    silent_waits,
    waiting_calls,
)
from traceana.timeline.waits import (
    BY_EVENT,
    BY_LAUNCH,
    BY_STREAM,
    UNKNOWN,
    WorkWaits,
    of_process,
    whose,
    within,
    work_waits,
)

if TYPE_CHECKING:
    from traceana.trace import Trace

HOST, WAIT, LAUNCH, STREAM, EVENT, SYNC, HANDOVER, ORDER = range(8)
"""Kinds of edges: time of a thread; a thread that waits, in a call or idle; from a launch to its
work; from work to the next on its stream, or through an event; from work to the end of a call that
waited for it; from one thread to another; to work without a recorded reason, from what ended last
before it."""

_PROCESS: Final = ("rank", "process")
_MARK: Final = ("host_start", "host_end", *_PROCESS)


def windows(trace: Trace) -> pl.DataFrame:
    """Return the window of each step of ``trace``, in their order; one per rank without steps.

    It is that of :func:`~traceana.timeline.steps.step_windows`; without steps it is the capture, or
    without device work the time of calls and operators. Columns: ``number``, ``rank``, ``process``,
    ``thread`` (of the marker), ``begin``, ``end``, ``host_start``, ``host_end`` (of the marker).
    """
    if trace.tables.steps.is_empty():
        return _captures(trace)
    step_times = step_windows(trace)
    marks = trace.tables.ranges.select(
        *_PROCESS,
        "thread",
        pl.col("start").alias("host_start"),
        (pl.col("start") + pl.col("duration")).alias("host_end"),
    ).filter(pl.col("thread").is_not_null())
    starting = marks.filter(pl.col("host_start").is_in(step_times["host_start"].implode()))
    steps = step_times.join(
        starting.unique(_MARK, keep="first", maintain_order=True),
        on=_MARK, how="left", nulls_equal=True, maintain_order="left",
    )  # fmt: skip
    if (trace.tables.steps["source"] == OPTIMIZER_STEP).any():
        # A step that the optimizer ends has no marker of its own.
        ending = marks.filter(pl.col("host_end").is_in(step_times["host_end"].implode()))
        ending = ending.sort("host_start", maintain_order=True).rename({"thread": "ending"})
        on = ["host_end", *_PROCESS]
        ending = ending.drop("host_start").unique(on, keep="first", maintain_order=True)
        steps = steps.join(ending, on=on, how="left", nulls_equal=True, maintain_order="left")
        steps = steps.with_columns(pl.coalesce("thread", "ending"))
    return steps.select(
        "number", *_PROCESS, "thread", pl.col("start").alias("begin"), "end", "host_start",
        "host_end",
    )  # fmt: skip


def _captures(trace: Trace) -> pl.DataFrame:
    """Return the capture of each rank, of a trace without steps.

    The last work ends with it, so the marker has no duration.
    """
    spans = capture(trace.whole).rename({"start": "begin"})
    if spans.is_empty():
        begin, end = pl.col("start"), pl.col("start") + pl.col("duration")
        spans = (
            pl.concat(
                table.select("rank", begin.alias("begin"), end.alias("end"))
                for table in (trace.whole.tables.calls, trace.whole.tables.ops)
            )
            .group_by("rank")
            .agg(pl.col("begin").min(), pl.col("end").max())
        )
    elif trace.tables.activities.height:
        ranks = trace.tables.activities.select("rank").unique()
        spans = spans.join(ranks, on="rank", how="semi", nulls_equal=True)
    unknown = {"number": pl.Int64, "process": pl.Int64, "thread": pl.Int64}
    return (
        spans.sort("rank")
        .with_columns(pl.lit(None, dtype).alias(name) for name, dtype in unknown.items())
        .select(
            "number", *_PROCESS, "thread", "begin", "end",
            pl.col("begin").alias("host_start"), pl.col("begin").alias("host_end"),
        )
    )  # fmt: skip


class Edges(msgspec.Struct, frozen=True):
    """Edges in the order of their targets.

    Where ``thread`` is not NONE, the lag contains the time of that thread from ``begin`` to
    ``until`` (ns). ``call`` is the row of the waiting call of a SYNC edge, else NONE.
    """

    source: Ints
    target: Ints
    kind: Ints
    lag: Ints
    thread: Ints
    begin: Ints
    until: Ints
    call: Ints

    @classmethod
    def of_kind(cls, kind: int, source: Ints, target: Ints, lag: Ints, **columns: Ints) -> Edges:
        """Return edges of one kind; further ``columns`` are NONE unless given."""
        none = np.full(len(source), NONE, dtype=np.int64)
        host = {name: columns.get(name, none) for name in ("thread", "begin", "until", "call")}
        return cls(source, target, np.full(len(source), kind), lag, **host)


class Graph(msgspec.Struct, frozen=True):
    """The graph of one process. Whatever is waited for has a smaller number than what waits.

    ``at`` is when a node happened: the time of a moment, the start of work; ``duration`` is that of
    work, else 0. ``activity`` is the row of work in ``activities``, ``thread`` the key of the
    thread of a moment, ``step`` the row in ``steps`` of the step that launched work; else -1.
    ``host`` are the pieces of the threads, none where they were not asked for.
    ``steps`` are the windows of the process, with ``step_row``; ``begins`` and ``ends`` the moments
    of their markers, -1 without.
    """

    at: Ints
    duration: Ints
    activity: Ints
    thread: Ints
    step: Ints
    edges: Edges
    keys: Threads
    host: HostTime
    steps: pl.DataFrame
    begins: Ints
    ends: Ints


def graphs(
    trace: Trace, numbers: Collection[int] | None = None, *, with_host: bool = False
) -> Iterator[Graph]:
    """Yield the graph of each process of ``trace`` that marked steps; without steps of each rank.

    With ``numbers`` it is the graph of these steps, which are consecutive, and of all that happened
    from the begin of the first to the end of the last. ``with_host``: with the pieces of the host
    threads. ``trace`` is taken as a whole, whatever is selected of it.
    """
    whole = trace.whole
    steps = windows(whole).with_row_index("step_row")
    keys = Threads.of(whole.tables.ops, whole.tables.calls, whole.tables.ranges, steps)
    if numbers is not None:
        steps = steps.filter(pl.col("number").is_in(numbers))
    for rank_steps in steps.partition_by("rank", maintain_order=True):
        for process_steps in rank_steps.partition_by("process", maintain_order=True):
            between = None
            if numbers is not None:
                begin, end = process_steps["host_start"].min(), process_steps["end"].max()
                between = int(begin), int(end)  # type: ignore[arg-type]
            yield _process_graph(whole, process_steps, keys, between, with_host=with_host)


def _process_graph(
    trace: Trace,
    steps: pl.DataFrame,
    keys: Threads,
    between: tuple[int, int] | None,
    *,
    with_host: bool,
) -> Graph:
    """Return the graph of the process of ``steps``, of what happened ``between`` two times."""
    owner = whose(trace, steps["rank"][0], steps["process"][0])
    op_key, call_key = (
        np.where(of_process(table, owner) & within(table, between), key, NONE)
        for table, key in ((trace.tables.ops, keys.ops), (trace.tables.calls, keys.calls))
    )
    device = work_waits(trace, (owner,), between)
    on_device = len(device.start) > 0
    spans = active_spans(trace, op_key, call_key)
    calls = waiting_calls(trace, device, call_key)
    call_start, call_end = times(trace.tables.calls)
    call_thread = call_key[calls.call]
    returned = call_end[calls.call]

    window_thread = keys.windows[steps["step_row"].to_numpy()]
    marker, mark_begin, mark_end = _step_markers(
        trace, steps, window_thread, spans, on_device=on_device
    )
    marked = marker != NONE
    mark_thread = np.tile(marker[marked], 2)
    mark_time = np.append(mark_begin[marked], mark_end[marked])
    launching_thread = take(call_key, device.call)
    computing_thread = op_key[_awaited_operators(trace, on_device=on_device)]
    partners = np.unique(np.concatenate((launching_thread, computing_thread, window_thread)))
    # Beside a device, calls record the waits.
    range_key = keys.ranges[:0] if on_device else keys.ranges
    idle = handovers(trace, spans, partners, range_key, mark_thread, mark_time)

    silent = silent_waits(
        trace,
        device,
        keys,
        spans,
        # Where calls record the waits, a thread that is silent does something else.
        marker if on_device and not records_waits(trace, device) else marker[:0],
        mark_begin,
        mark_end,
    )

    # A copy that blocks can have begun at any time in its call.
    starts_inside = device.blocking & (device.returned == device.start)
    launched = np.where(starts_inside, device.launched, device.returned)
    has_launch = (device.call != NONE) & (launching_thread != NONE)
    launches = launching_thread[has_launch], launched[has_launch]
    moments = _Moments.of(
        launches,
        (call_thread, call_start[calls.call]),
        (call_thread, returned),
        (idle.thread, idle.begin),
        (idle.thread, idle.end),
        (idle.other, idle.handed),
        (mark_thread, mark_time),
        (silent.thread, silent.begin),
        (silent.thread, silent.end),
    )
    # Nodes are numbered moments first, until all edges are known.
    count = len(moments.time)
    work = count + np.arange(len(device.start))
    launch_node = np.full(len(work), NONE, dtype=np.int64)
    launch_node[has_launch] = moments.find(*launches)
    returned_node = moments.find(call_thread, returned)
    resumed_node = moments.find(idle.thread, idle.end)

    # A thread that waited needs no time of its own, but what its call took to return.
    waited = calls.waited != NONE
    late = returned[waited] - device.end[calls.waited[waited]]
    after_wait = np.full(count, NONE, dtype=np.int64)
    after_wait[resumed_node[idle.handed > idle.begin]] = 0
    after_wait[returned_node[waited]] = np.maximum(late, 0)
    silent_end = moments.find(silent.thread, silent.end)
    after_silence = silent.end - device.end[silent.work]
    after_wait[silent_end] = after_silence
    # The annotations of the thread that marks the steps name the time before another goes on.
    continuing = np.where(np.isin(idle.other, marker), idle.other, idle.thread)
    since = np.maximum(idle.handed, idle.begin)
    edges = [
        *_thread_edges(moments, after_wait),
        *_work_edges(device, launch_node, work, moments.time),
        Edges.of_kind(
            SYNC,
            work[calls.waited[waited]],
            returned_node[waited],
            late,
            call=calls.call[waited],
        ),
        Edges.of_kind(
            SYNC,
            work[calls.pending_work],
            returned_node[calls.pending],
            np.zeros(len(calls.pending), dtype=np.int64),
            call=calls.call[calls.pending],
        ),
        Edges.of_kind(WAIT, work[silent.work], silent_end, after_silence),
        Edges.of_kind(
            HANDOVER,
            moments.find(idle.other, idle.handed),
            resumed_node,
            idle.end - since,
            thread=continuing,
            begin=since,
            until=idle.end,
        ),
    ]

    at = np.concatenate((moments.time, device.start))
    duration = np.concatenate((np.zeros(count, dtype=np.int64), device.end - device.start))
    # Of equal times a moment comes first: the work that starts then was launched by it.
    order = np.argsort(at, kind="stable")
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    begins, ends = np.full(len(marker), NONE), np.full(len(marker), NONE)
    for nodes, time in ((begins, mark_begin), (ends, mark_end)):
        nodes[marked] = number[moments.find(marker[marked], time[marked])]

    first = np.flatnonzero(np.diff(moments.thread, prepend=NONE)) if with_host else order[:0]
    last = np.append(first[1:], count)[: len(first)] - 1
    host = HostTime.of(trace, keys, moments.thread[first], moments.time[first], moments.time[last])
    no_row = np.full(count, NONE, dtype=np.int64)
    step_of_work = np.zeros(len(work), dtype=np.int64)
    if trace.tables.steps.height:
        row_in_steps = np.full(trace.tables.steps.height, NONE, dtype=np.int64)
        row_in_steps[steps["step_row"].to_numpy()] = np.arange(steps.height)
        step = from_rows(trace.tables.activities["step"])
        step_of_work = take(row_in_steps, step[device.activity])
    return Graph(
        at[order],
        duration[order],
        np.append(no_row, device.activity)[order],
        np.append(moments.thread, np.full(len(work), NONE))[order],
        np.append(no_row, step_of_work)[order],
        _numbered(edges, number, at[order], (at + duration)[order]),
        keys,
        host,
        steps,
        begins,
        ends,
    )


def _step_markers(
    trace: Trace,
    steps: pl.DataFrame,
    window_thread: Ints,
    spans: Mapping[int, Intervals],
    *,
    on_device: bool,
) -> tuple[Ints, Ints, Ints]:
    """Return the thread (NONE without), begin and end of the marker of each step.

    A marker on a thread without operators and calls does not count: that step is the step of its
    device work.
    """
    begin, end = steps["host_start"].to_numpy(), steps["host_end"].to_numpy()
    if trace.tables.steps.height:
        active = np.isin(window_thread, list(spans))
        return np.where(active | (not on_device), window_thread, NONE), begin, end
    last_end = {thread: int(ends[-1]) for thread, (_, ends) in spans.items() if len(ends)}
    if on_device or not last_end:
        return np.full(steps.height, NONE, dtype=np.int64), begin, end
    # The capture of a CPU ends with the thread that is active last.
    last_thread = max(last_end, key=last_end.__getitem__)
    return np.full(steps.height, last_thread), begin, steps["end"].to_numpy()


def _awaited_operators(trace: Trace, *, on_device: bool) -> Flags:
    """Return the operators of threads that other threads wait for.

    On a GPU these are the operators of backward passes, which autograd runs on its own thread; on a
    CPU all operators that compute, or those of layers where these take most of the time: other
    operators may be of a pipeline that nothing waits for.
    """
    ops = trace.tables.ops
    if on_device:
        return (ops["direction"] == "backward").fill_null(value=False).to_numpy()
    computing = trace.tables.activities.select("op", "duration").drop_nulls("op")
    op, duration = computing["op"].to_numpy(), computing["duration"].to_numpy()
    of_layers = ops["layer"].is_not_null().to_numpy()
    if 2 * int(duration[of_layers[op]].sum()) > int(duration.sum()):
        return of_layers
    computes = np.zeros(ops.height, dtype=np.bool_)
    computes[op] = True
    return computes


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
        """Return the positions of moments that are among these."""
        count = len(self.thread)
        (position,) = timeline(np.append(self.thread, thread), np.append(self.time, time))
        return np.searchsorted(position[:count], position[count:])


def _thread_edges(moments: _Moments, after_wait: Ints) -> list[Edges]:
    """Return the edges from each moment to the next of its thread.

    Their lag is the time between, or ``after_wait`` where that is not NONE.
    """
    same_thread = np.flatnonzero(moments.thread[1:] == moments.thread[:-1])
    waited = after_wait[same_thread + 1] != NONE
    active, idle = same_thread[~waited], same_thread[waited]
    thread, begin, until = moments.thread[active], moments.time[active], moments.time[active + 1]
    return [
        Edges.of_kind(
            HOST, active, active + 1, until - begin, thread=thread, begin=begin, until=until
        ),
        Edges.of_kind(WAIT, idle, idle + 1, after_wait[idle + 1]),
    ]


def _work_edges(device: WorkWaits, launch_node: Ints, work: Ints, moment_time: Ints) -> list[Edges]:
    """Return the edges to device work (nodes ``work``): from its launch (``launch_node``), from the
    work before it on its stream, through events, and from all nodes of its CUDA graph that it
    depends on.

    Work that waited for an unknown reason follows the work that ended last before it.
    """
    done = np.append(moment_time, device.end)
    event = np.where(device.by_event != NONE, device.by_event, device.by_record)
    decisive: list[Edges] = []
    others: list[Edges] = []
    for kind, source, reason in (
        (LAUNCH, launch_node, BY_LAUNCH),
        (STREAM, take(work, device.on_stream), BY_STREAM),
        (EVENT, take(work, event), BY_EVENT),
    ):
        has_source, decided = source != NONE, device.why == reason
        elapsed = device.start - take(done, source)
        # An edge that did not decide has the usual lag of those that did, if that is less. What
        # takes longer than any latency waited for something that is not recorded.
        decisive_lags = elapsed[has_source & decided]
        usual = min(int(np.median(decisive_lags)), LONGEST_LATENCY_NS) if len(decisive_lags) else 0
        lag = np.where(decided, elapsed, np.minimum(elapsed, usual))
        for rows, edges in ((has_source & decided, decisive), (has_source & ~decided, others)):
            edges.append(Edges.of_kind(kind, source[rows], work[rows], lag[rows]))
        if kind == EVENT:
            waiting, awaited = device.dependencies.T
            lag = np.minimum(device.start[waiting] - device.end[awaited], usual)
            others.append(Edges.of_kind(EVENT, work[awaited], work[waiting], lag))

    unknown = np.flatnonzero(device.why == UNKNOWN)
    last = np.searchsorted(device.end, device.start[unknown], side="right") - 1
    last = np.minimum(last, unknown - 1)
    unknown, last = unknown[last >= 0], last[last >= 0]
    elapsed = device.start[unknown] - device.end[last]
    # Of edges that are over at one moment the first counts: the one that decided.
    return [*decisive, *others, Edges.of_kind(ORDER, work[last], work[unknown], elapsed)]


def _numbered(parts: Sequence[Edges], number: Ints, at: Ints, done: Ints) -> Edges:
    """Return the edges of ``parts`` by target, between nodes that get a new ``number``.

    ``at`` is when each node happened, ``done`` when it was over. A lag is at most the time between;
    time that no edge of a node explains is added to its latest edge. A lag is negative where work
    began before the work before it on its stream had ended, and where a call returned before its
    work.
    """
    columns = {
        name: np.concatenate([getattr(edges, name) for edges in parts])
        for name in Edges.__struct_fields__
    }
    columns["source"], columns["target"] = number[columns["source"]], number[columns["target"]]
    elapsed = at[columns["target"]] - done[columns["source"]]
    may_be_early = np.isin(columns["kind"], (STREAM, SYNC)) & (columns["lag"] < 0)
    kept = (columns["source"] < columns["target"]) & ((elapsed >= 0) | may_be_early)
    columns["lag"] = np.minimum(columns["lag"], elapsed)
    order = np.flatnonzero(kept)
    order = order[np.argsort(columns["target"][order], kind="stable")]
    edges = Edges(**{name: column[order] for name, column in columns.items()})
    if not len(order):
        return edges
    first = np.flatnonzero(np.append(True, edges.target[1:] != edges.target[:-1]))
    reached = done[edges.source] + edges.lag
    latest = np.maximum.reduceat(reached, first)
    unexplained = at[edges.target[first]] - latest
    group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
    latest_edges = np.flatnonzero(reached == latest[group])
    _, first_latest = np.unique(group[latest_edges], return_index=True)
    lag = edges.lag.copy()
    lag[latest_edges[first_latest]] += unexplained
    return replace(edges, lag=lag)


def critical_edges(
    graph: Graph, over: Ints, duration: Ints, lag: Ints, begins: Ints, rows: Ints
) -> pl.DataFrame:
    """Return the critical paths of the steps ``rows``: nodes, each with the edge that led to it.

    A path is walked backwards from the last node of a step to the begin of its window (``begins``
    of all steps), always along the edge that was over last. Nodes are ``over`` when given, after
    ``duration`` and ``lag``. Columns: ``step`` (row in ``graph.steps``), ``node``, ``edge`` (-1 at
    the end of a path); the last node of a step first.
    """
    edges = graph.edges
    deciding = np.flatnonzero(over[edges.source] + lag == (over - duration)[edges.target])
    deciding_edge = np.full(len(over), NONE, dtype=np.int64)
    # Of several the first counts, as the edges were added.
    deciding_edge[edges.target[deciding][::-1]] = deciding[::-1]
    edge_before = deciding_edge.tolist()
    node_before = np.append(edges.source, [NONE])[deciding_edge].tolist()
    ended, started = over.tolist(), (over - duration).tolist()
    # The node with which each step is complete.
    marked, work = np.flatnonzero(graph.ends != NONE), np.flatnonzero(graph.step != NONE)
    final = np.concatenate((work, graph.ends[marked]))
    step_of_final = np.concatenate((graph.step[work], marked))
    order = np.lexsort((over[final], step_of_final))
    last_node_of = np.full(graph.steps.height, NONE, dtype=np.int64)
    last_node_of[step_of_final[order]] = final[order]
    path_steps: list[int] = []
    path_nodes: list[int] = []
    path_edges: list[int] = []
    for step, last_node, begin in zip(
        rows.tolist(), last_node_of[rows].tolist(), begins[rows].tolist(), strict=True
    ):
        node = last_node
        while node != NONE and ended[node] > begin:
            path_steps.append(step)
            path_nodes.append(node)
            if started[node] <= begin:
                path_edges.append(NONE)
                break
            path_edges.append(edge_before[node])
            node = node_before[node]
    schema = dict.fromkeys(("step", "node", "edge"), pl.Int64)
    return pl.DataFrame([path_steps, path_nodes, path_edges], schema=schema)
