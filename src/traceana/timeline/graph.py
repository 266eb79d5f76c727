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

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from traceana.columns.distinct import Threads
from traceana.columns.intervals import times
from traceana.columns.nesting import NONE, Flags, Ints, take, timeline
from traceana.enrich.steps import OPTIMIZER_STEP
from traceana.settings import LONGEST_LATENCY_NS
from traceana.timeline.idle_gaps import capture
from traceana.timeline.steps import step_windows
from traceana.timeline.threads import (
    HostTime,
    active_spans,
    handovers,
    waiting_calls,
)
from traceana.timeline.waits import (
    BY_EVENT,
    BY_LAUNCH,
    BY_STREAM,
    UNKNOWN,
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
    every = step_windows(trace)
    marks = trace.tables.ranges.select(
        *_PROCESS,
        "thread",
        pl.col("start").alias("host_start"),
        (pl.col("start") + pl.col("duration")).alias("host_end"),
    ).filter(pl.col("thread").is_not_null())
    begun = marks.filter(pl.col("host_start").is_in(every["host_start"].implode()))
    found = every.join(
        begun.unique(_MARK, keep="first", maintain_order=True),
        on=_MARK, how="left", nulls_equal=True, maintain_order="left",
    )  # fmt: skip
    if (trace.tables.steps["source"] == OPTIMIZER_STEP).any():
        # A step that the optimizer ends has no marker of its own.
        ending = marks.filter(pl.col("host_end").is_in(every["host_end"].implode()))
        ending = ending.sort("host_start", maintain_order=True).rename({"thread": "ending"})
        on = ["host_end", *_PROCESS]
        ending = ending.drop("host_start").unique(on, keep="first", maintain_order=True)
        found = found.join(ending, on=on, how="left", nulls_equal=True, maintain_order="left")
        found = found.with_columns(pl.coalesce("thread", "ending"))
    return found.select(
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

    ``thread`` is -1, or the lag has the time of that thread from ``begin`` to ``until`` (ns).
    ``call`` is the row of the waiting call of a SYNC edge, else -1.
    """

    source: Ints
    target: Ints
    kind: Ints
    lag: Ints
    thread: Ints
    begin: Ints
    until: Ints
    call: Ints


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
    own = windows(whole).with_row_index("step_row")
    keys = Threads.of(whole.tables.ops, whole.tables.calls, whole.tables.ranges, own)
    if numbers is not None:
        own = own.filter(pl.col("number").is_in(numbers))
    for of_rank in own.partition_by("rank", maintain_order=True):
        for of in of_rank.partition_by("process", maintain_order=True):
            between = None
            if numbers is not None:
                begin, end = of["host_start"].min(), of["end"].max()
                between = int(begin), int(end)  # type: ignore[arg-type]
            yield _graph(whole, of, keys, between, with_host=with_host)


def _graph(
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
        np.where(of_process(table, owner) & within(table, between), own, NONE)
        for table, own in ((trace.tables.ops, keys.ops), (trace.tables.calls, keys.calls))
    )
    device = work_waits(trace, (owner,), between)
    on_device = len(device.start) > 0
    launching = take(call_key, device.call)
    spans = active_spans(trace, op_key, call_key)
    calling = waiting_calls(trace, device, call_key)
    begin_of, end_of = times(trace.tables.calls)
    called = call_key[calling.call], begin_of[calling.call], end_of[calling.call]

    # The marker's thread; without operators and calls a step is that of its device work.
    main = keys.windows[steps["step_row"].to_numpy()]
    marker = np.where(np.isin(main, list(spans)) | (not on_device), main, NONE)
    begin, end = steps["host_start"].to_numpy(), steps["host_end"].to_numpy()
    if trace.tables.steps.is_empty():
        marker = np.full(steps.height, NONE, dtype=np.int64)
        spans_of = {thread: ends for thread, (_, ends) in spans.items() if len(ends)}
        if spans_of and not on_device:
            # The capture of a CPU ends with the thread that is active last.
            marker[:] = max(spans_of, key=lambda thread: int(spans_of[thread][-1]))
            end = steps["end"].to_numpy()
    marked = marker != NONE
    marks = np.concatenate((marker[marked],) * 2), np.concatenate((begin[marked], end[marked]))
    computing = op_key[_passed_on(trace, on_device=on_device)]
    partners = np.unique(np.concatenate((launching, computing, main)))
    # Beside a device, calls record the waits.
    range_key = keys.ranges[:0] if on_device else keys.ranges
    idle = handovers(trace, spans, partners, range_key, *marks)

    # A copy that blocks can have begun at any time in its call.
    inside = device.blocking & (device.returned == device.start)
    launched = np.where(inside, device.launched, device.returned)
    known = (device.call != NONE) & (launching != NONE)
    moments = _Moments.of(
        (launching[known], launched[known]),
        (called[0], called[1]),
        (called[0], called[2]),
        (idle.thread, idle.begin),
        (idle.thread, idle.end),
        (idle.other, idle.handed),
        marks,
    )
    count = len(moments.time)
    work = count + np.arange(len(device.start))
    returned, resumed = moments.find(called[0], called[2]), moments.find(idle.thread, idle.end)
    waited = calling.waited != NONE
    late = called[2][waited] - device.end[calling.waited[waited]]
    # A thread that waited needs no time of its own, but what its call took to return.
    least = np.full(count, NONE, dtype=np.int64)
    least[resumed[idle.handed > idle.begin]] = 0
    least[returned[waited]] = np.maximum(late, 0)

    edges = _Edges()
    edges.along_threads(moments, least)
    launch = np.full(len(work), NONE, dtype=np.int64)
    launch[known] = moments.find(launching[known], launched[known])
    awaited = np.where(device.by_event != NONE, device.by_event, device.by_record)
    done = np.concatenate((moments.time, device.end))
    reasons = []
    for source, kind, why in (
        (launch, LAUNCH, BY_LAUNCH),
        (take(work, device.on_stream), STREAM, BY_STREAM),
        (take(work, awaited), EVENT, BY_EVENT),
    ):
        has, because = source != NONE, device.why == why
        lag = _lag(device.start - take(done, source), because, has)
        reasons += [(source, kind, has & because, lag), (source, kind, has & ~because, lag)]
    # Of edges that are over at one moment the first counts: the one that decided.
    for source, kind, rows, lag in (*reasons[::2], *reasons[1::2]):
        edges.add(source[rows], work[rows], kind, lag[rows])
    waiting = calling.call[waited]
    edges.add(work[calling.waited[waited]], returned[waited], SYNC, late, call=waiting)
    also = returned[calling.pending]
    none_late = np.zeros(len(also), dtype=np.int64)
    edges.add(work[calling.pending_work], also, SYNC, none_late, call=calling.call[calling.pending])
    handed = moments.find(idle.other, idle.handed)
    # The annotations of the thread that marks the steps name the time before another goes on.
    spent = np.where(np.isin(idle.other, marker), idle.other, idle.thread)
    since = np.maximum(idle.handed, idle.begin)
    edges.add(handed, resumed, HANDOVER, idle.end - since, (spent, since, idle.end))
    unknown = np.flatnonzero(device.why == UNKNOWN)
    last = np.searchsorted(device.end, device.start[unknown], side="right") - 1
    last = np.minimum(last, unknown - 1)
    of, last = unknown[last >= 0], last[last >= 0]
    edges.add(work[last], work[of], ORDER, device.start[of] - device.end[last])

    first = np.flatnonzero(np.append(True, moments.thread[1:] != moments.thread[:-1])[:count])
    first = first if with_host else first[:0]
    last = np.append(first[1:], count)[: len(first)] - 1
    host = HostTime.of(trace, keys, moments.thread[first], moments.time[first], moments.time[last])
    at = np.concatenate((moments.time, device.start))
    duration = np.concatenate((np.zeros(count, dtype=np.int64), device.end - device.start))
    # Of equal times a moment comes first: the work that starts then was launched by it.
    order = np.argsort(at, kind="stable")
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    none = np.full(count, NONE, dtype=np.int64)
    begins, ends = np.full(len(marker), NONE), np.full(len(marker), NONE)
    for nodes, time in ((begins, begin), (ends, end)):
        nodes[marked] = number[moments.find(marker[marked], time[marked])]
    return Graph(
        at[order],
        duration[order],
        np.concatenate((none, device.activity))[order],
        np.concatenate((moments.thread, np.full(len(work), NONE)))[order],
        np.concatenate((none, _step_of(trace, steps, device.activity)))[order],
        edges.placed(number, at[order], (at + duration)[order]),
        keys,
        host,
        steps,
        begins,
        ends,
    )


def _passed_on(trace: Trace, *, on_device: bool) -> Flags:
    """Return the operators of threads that other threads wait for.

    They are those of backward passes, which autograd runs on its own thread; on a CPU those of
    layers, or where none has one, all that compute.
    """
    ops = trace.tables.ops
    if on_device:
        return (ops["direction"] == "backward").fill_null(value=False).to_numpy()
    of_layers = ops["layer"].is_not_null().to_numpy()
    if of_layers.any():
        return of_layers
    computing = np.zeros(ops.height, dtype=np.bool_)
    computing[trace.tables.activities["op"].drop_nulls().to_numpy()] = True
    return computing


def _lag(passed: Ints, decided: Flags, known: Flags) -> Ints:
    """Return the lag of edges after which ``passed`` nanoseconds passed.

    It is all of it where the edge ``decided``; else what such edges usually take, their median, if
    that is less. What takes longer than any latency waited for something that is not recorded.
    """
    usual = passed[decided & known]
    most = min(int(np.median(usual)), LONGEST_LATENCY_NS) if len(usual) else 0
    return np.where(decided, passed, np.minimum(passed, most))


def _step_of(trace: Trace, steps: pl.DataFrame, activity: Ints) -> Ints:
    """Return the row in ``steps`` of the step of each of the activities, or -1."""
    if trace.tables.steps.is_empty():
        return np.zeros(len(activity), dtype=np.int64)
    own = np.full(trace.tables.steps.height + 1, NONE, dtype=np.int64)
    own[steps["step_row"].to_numpy()] = np.arange(steps.height)
    step = (
        trace.tables.activities["step"]
        .cast(pl.Int64)
        .fill_null(trace.tables.steps.height)
        .to_numpy()
    )
    found: Ints = own[step[activity]]
    return found


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
        """Return the number of moments that are among these."""
        own = len(self.thread)
        both = np.concatenate((self.thread, thread)), np.concatenate((self.time, time))
        (place,) = timeline(*both)
        return np.searchsorted(place[:own], place[own:])


class _Edges:
    """Edges as they are collected."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Ints]] = {name: [] for name in Edges.__struct_fields__}

    def add(
        self,
        source: Ints,
        target: Ints,
        kind: int,
        lag: Ints,
        within: tuple[Ints, Ints, Ints] | None = None,
        call: Ints | None = None,
    ) -> None:
        """Add edges; their lag has the time ``within`` a thread, from one time to another."""
        none = np.full(len(source), NONE, dtype=np.int64)
        spent = within or (none,) * 3
        kinds = np.full(len(source), kind)
        columns = (source, target, kinds, lag, *spent, none if call is None else call)
        for part, column in zip(self._parts.values(), columns, strict=True):
            part.append(column)

    def along_threads(self, moments: _Moments, least: Ints) -> None:
        """Add the edges from each moment to the next of its thread.

        Their lag is the time between, or ``least`` where that is not -1.
        """
        same = np.flatnonzero(moments.thread[1:] == moments.thread[:-1])
        rows = same[least[same + 1] == NONE]
        begin, until = moments.time[rows], moments.time[rows + 1]
        self.add(rows, rows + 1, HOST, until - begin, (moments.thread[rows], begin, until))
        rows = same[least[same + 1] != NONE]
        self.add(rows, rows + 1, WAIT, least[rows + 1])

    def placed(self, number: Ints, at: Ints, done: Ints) -> Edges:
        """Return the edges by target, of nodes that are numbered anew.

        ``at`` is when each node happened, ``done`` when it was over. Lags are at most what passed;
        what no edge of a node explains is added to the latest of them. A lag is negative where work
        began before the work before it on its stream had ended, and where a call returned before
        its work.
        """
        columns = {name: np.concatenate(part) for name, part in self._parts.items()}
        columns["source"], columns["target"] = number[columns["source"]], number[columns["target"]]
        passed = at[columns["target"]] - done[columns["source"]]
        early = np.isin(columns["kind"], (STREAM, SYNC)) & (columns["lag"] < 0)
        kept = (columns["source"] < columns["target"]) & ((passed >= 0) | early)
        columns["lag"] = np.minimum(columns["lag"], passed)
        order = np.flatnonzero(kept)
        order = order[np.argsort(columns["target"][order], kind="stable")]
        edges = Edges(**{name: column[order] for name, column in columns.items()})
        if not len(order):
            return edges
        first = np.flatnonzero(np.append(True, edges.target[1:] != edges.target[:-1]))
        reached = done[edges.source] + edges.lag
        latest = np.maximum.reduceat(reached, first)
        missing = at[edges.target[first]] - latest
        group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
        of_latest = np.flatnonzero(reached == latest[group])
        _, one = np.unique(group[of_latest], return_index=True)
        lag = edges.lag.copy()
        lag[of_latest[one]] += missing
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
    decides = np.full(len(over), NONE, dtype=np.int64)
    # Of several the first counts, as the edges were added.
    decides[edges.target[deciding][::-1]] = deciding[::-1]
    before = np.append(edges.source, [NONE])[decides]
    next_edge, next_node, done = decides.tolist(), before.tolist(), over.tolist()
    started = (over - duration).tolist()
    steps: list[int] = []
    nodes: list[int] = []
    taken: list[int] = []
    for step, node, begin in zip(
        rows.tolist(), _last_nodes(graph, over)[rows].tolist(), begins[rows].tolist(), strict=True
    ):
        while node != NONE and done[node] > begin:
            steps.append(step)
            nodes.append(node)
            if started[node] <= begin:
                taken.append(NONE)
                break
            taken.append(next_edge[node])
            node = next_node[node]
    schema = dict.fromkeys(("step", "node", "edge"), pl.Int64)
    return pl.DataFrame([steps, nodes, taken], schema=schema)


def _last_nodes(graph: Graph, over: Ints) -> Ints:
    """Return the node with which each step is complete, or -1."""
    steps = np.arange(graph.steps.height)
    marked = graph.ends != NONE
    work = np.flatnonzero(graph.step != NONE)
    node = np.concatenate((work, graph.ends[marked]))
    step = np.concatenate((graph.step[work], steps[marked]))
    order = np.lexsort((over[node], step))
    last = np.full(len(steps), NONE, dtype=np.int64)
    last[step[order]] = node[order]
    return last
