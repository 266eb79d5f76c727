"""Replay: when everything happens, given the waits of graphs; its steps and their critical path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import numpy as np
import polars as pl

from traceana.analyze.collective_ranks import matched_of
from traceana.columns.nesting import NONE, Ints, from_rows, timeline
from traceana.timeline.graph import HANDOVER, HOST, LAUNCH, SYNC, WAIT, Graph, critical_edges

if TYPE_CHECKING:
    from traceana.trace import Trace
    from traceana.whatif.changed import ChangedGraph

_Replay: TypeAlias = "Generator[tuple[int, int], int, tuple[Ints, Ints]]"
"""A replay that stops at collectives: it yields the node and when it begins there, is sent when
that is over, and returns when each node is over, and how long it takes."""


def replayed_together(
    graphs: Sequence[Graph], meetings: Meetings, lags: Sequence[Ints], durations: Sequence[Ints]
) -> list[tuple[Ints, Ints]]:
    """Return when each node of ``graphs`` is over, and how long it takes, if edges have ``lags``
    and work ``durations``.

    A node without edges happens when it did. With the graphs' own lags and durations the result is
    ``at + duration`` of the graph, exactly: a test holds it to that on every recorded trace.
    Collectives in which several graphs meet begin when the last of their ranks arrives. From then
    on one takes as long as on the rank that arrived last in the recording: there it waited for
    none. Where ranks wait for each other in a circle, which the recording did not, a collective
    takes as long as it did.
    """
    results: list[tuple[Ints, Ints]] = [(np.zeros(0, dtype=np.int64),) * 2] * len(graphs)
    replays = [
        _replay(order, lag, duration)
        for order, lag, duration in zip(meetings.orders, lags, durations, strict=True)
    ]
    waiting: dict[int, tuple[int, int]] = {}
    arrived: dict[int, list[int]] = {}
    runnable: list[tuple[int, int | None]] = [(rank, None) for rank in range(len(graphs))]
    while runnable or waiting:
        if not runnable:
            # The rank that began first in the recording goes on alone.
            rank = min(waiting, key=lambda rank: int(graphs[rank].at[waiting[rank][0]]))
            node, begin = waiting.pop(rank)
            arrived[int(meetings.number[rank][node])].remove(rank)
            runnable.append((rank, begin + int(durations[rank][node])))
        rank, resumed_at = runnable.pop()
        replay = replays[rank]
        try:
            node, begin = next(replay) if resumed_at is None else replay.send(resumed_at)
        except StopIteration as stopped:
            results[rank] = stopped.value
            continue
        number = int(meetings.number[rank][node])
        waiting[rank] = node, begin
        arrived.setdefault(number, []).append(rank)
        if len(arrived[number]) < meetings.ranks[number]:
            continue
        ranks = arrived.pop(number)
        nodes, begins = zip(*(waiting.pop(rank) for rank in ranks), strict=True)
        recorded = [
            int(graphs[rank].duration[node]) for rank, node in zip(ranks, nodes, strict=True)
        ]
        # Clocks differ: each rank compares with the end that it has recorded.
        recorded_ends = [
            int(graphs[rank].at[node]) + duration
            for rank, node, duration in zip(ranks, nodes, recorded, strict=True)
        ]
        last = recorded.index(min(recorded))
        length = int(durations[ranks[last]][nodes[last]])
        delays = [begin - end for begin, end in zip(begins, recorded_ends, strict=True)]
        delay = max(delays) + length
        runnable += [(rank, end + delay) for rank, end in zip(ranks, recorded_ends, strict=True)]
    return results


_NEVER: Final = -(2**62)
"""The lag of an edge that nothing waits for."""


class ReplayOrder(msgspec.Struct, frozen=True):
    """What every replay of a graph walks along, whatever the lags and durations.

    A walk goes from place to place; each waits for two places before it. The last place of a node
    is ``place_of_node``; a node of more than two edges has more of them. Place 0 is over at 0, and
    a node without edges happens its time ``at`` after that. Of each further place,
    ``first_sources`` and ``second_sources`` are the two places, and ``first_lags`` and
    ``second_lags`` their rows in the lags of edges, then the times of nodes, 0 and ``_NEVER``.
    Ranks meet at the ``meetings``, in order.
    """

    at: Ints
    place_of_node: Ints
    first_sources: list[int]
    first_lags: Ints
    second_sources: list[int]
    second_lags: Ints
    meetings: list[int]

    @classmethod
    def of(cls, graph: Graph, meeting_nodes: Ints) -> ReplayOrder:
        """Return the order of ``graph``, whose ranks meet at the sorted ``meeting_nodes``."""
        edges, nodes = graph.edges, len(graph.at)
        edge_of_node = np.searchsorted(edges.target, np.arange(nodes + 1))
        edges_of_node = np.diff(edge_of_node)
        places_of_node = np.maximum(edges_of_node - 1, 1)
        place_of_node = np.cumsum(places_of_node)
        node = np.repeat(np.arange(nodes), places_of_node)
        place_before = np.arange(len(node))
        nth = place_before - (place_of_node - places_of_node)[node]
        has_edge, has_second = (edges_of_node[node] > count for count in (0, 1))
        # A row behind the last edge: the source of a node without edges is place 0.
        source = np.append(place_of_node[edges.source], [0])
        first_edge = np.where(has_edge, edge_of_node[node], len(edges.source))
        second_edge = np.where(has_second, edge_of_node[node] + nth + 1, len(edges.source))
        time_of_node = len(edges.source) + node
        zero, never = len(edges.source) + nodes, len(edges.source) + nodes + 1
        further = nth > 0  # waits for the node's place before, and for its next edge
        return cls(
            graph.at,
            place_of_node,
            np.where(further, place_before, source[first_edge]).tolist(),
            np.where(further, zero, np.where(has_edge, first_edge, time_of_node)),
            source[second_edge].tolist(),
            np.where(has_second, second_edge, never),
            meeting_nodes.tolist(),
        )


def _replay(order: ReplayOrder, lag: Ints, duration: Ints) -> _Replay:
    """Replay a graph along ``order``, with stops where its ranks meet."""
    lags = np.concatenate((lag, order.at, [0, _NEVER]))
    length = np.zeros(len(order.first_sources), dtype=np.int64)
    length[order.place_of_node - 1] = duration
    first_lags, second_lags = lags[order.first_lags] + length, lags[order.second_lags] + length
    places = zip(
        order.first_sources,
        first_lags.tolist(),
        order.second_sources,
        second_lags.tolist(),
        strict=True,
    )
    ended, lengths = [0], duration.copy()
    for node in (*order.meetings, None):
        before = None if node is None else int(order.place_of_node[node]) - len(ended)
        for first, first_lag, second, second_lag in islice(places, before):
            by_first, by_second = ended[first] + first_lag, ended[second] + second_lag
            ended.append(by_first if by_first > by_second else by_second)
        if node is not None:
            first, first_lag, second, second_lag = next(places)
            end = max(ended[first] + first_lag, ended[second] + second_lag)
            begin = end - int(duration[node])
            end = yield node, begin
            lengths[node] = end - begin
            ended.append(end)
    return np.array(ended, dtype=np.int64)[order.place_of_node], lengths


def step_windows(graph: Graph, over: Ints, duration: Ints) -> tuple[Ints, Ints]:
    """Return begin and end of the window of each step, where nodes are ``over`` when given.

    The window is that of :func:`traceana.timeline.graph.windows`: from the marker, or the
    completion of the step before, to the end of the marker and of all work that it launched.
    """
    measured = _windows(graph, graph.at + graph.duration, graph.at)
    begin, end = graph.steps["begin"].to_numpy(), graph.steps["end"].to_numpy()
    replayed = _windows(graph, over, over - duration)
    # What is not among the nodes, such as work before the first step, stays as it was.
    return replayed[0] + begin - measured[0], replayed[1] + end - measured[1]


def _windows(graph: Graph, over: Ints, start: Ints) -> tuple[Ints, Ints]:
    """Return begin and end of the window of each step, by its marker and its work alone."""
    steps = graph.steps.height
    work = np.flatnonzero(graph.step != NONE)
    int64 = np.iinfo(np.int64)
    work_end, work_begin = np.full(steps, int64.min), np.full(steps, int64.max)
    np.maximum.at(work_end, graph.step[work], over[work])
    np.minimum.at(work_begin, graph.step[work], start[work])
    marked = graph.begins != NONE
    recorded_begin = graph.steps["begin"].to_numpy()
    begun = np.where(work_begin == int64.max, recorded_begin, work_begin)
    begun[marked] = over[graph.begins[marked]]
    ended = work_end
    ended[marked] = np.maximum(ended[marked], over[graph.ends[marked]])
    ended = np.where(ended == int64.min, begun, ended)
    order = np.argsort(recorded_begin, kind="stable")
    ended_before = np.append(int64.min, np.maximum.accumulate(ended[order])[:-1])
    begin = np.empty_like(begun)
    begin[order] = np.maximum(begun[order], ended_before)
    return begin, np.maximum(begin, ended)


HOST_TIME: Final = "host"
_CLASS_OF_EDGE: Final = {
    **dict.fromkeys((HOST, HANDOVER), HOST_TIME),
    **dict.fromkeys((WAIT, SYNC), "sync"),
    LAUNCH: "launch",
}
_STREAM_GAP: Final = "gap"


def path_times(
    trace: Trace,
    category: pl.Series,
    graph: Graph,
    change: ChangedGraph,
    ended_at: Ints,
    begins: Ints,
    rows: Ints,
) -> Counter[str]:
    """Return the time of the critical paths of the steps ``rows``, in ns: by class of work, and for
    host, launch, sync and gap (of a stream between work).

    ``category`` is the class of each activity. Nodes are ``ended_at`` when given, after ``change``;
    ``begins`` are those of all steps.
    """
    path = critical_edges(graph, ended_at, change.duration, change.lag, begins, rows)
    step, node, edge = (path[name].to_numpy() for name in ("step", "node", "edge"))
    begin, start = begins[step], (ended_at - change.duration)[node]
    is_work, has_edge = graph.activity[node] != NONE, edge != NONE
    class_of_work = category.gather(graph.activity[node[is_work]]).cast(pl.String)
    ended = ended_at[graph.edges.source[edge[has_edge]]]
    kind = pl.Series(graph.edges.kind[edge[has_edge]])
    class_of_edge = kind.replace_strict(_CLASS_OF_EDGE, default=_STREAM_GAP, return_dtype=pl.String)
    # Work that overlaps with the work after it counts until that begins.
    first = np.append(True, step[1:] != step[:-1])[: len(step)]
    until = np.where(first, ended_at[node], np.append(0, start)[: len(start)])
    work_time = np.minimum(ended_at[node], until) - np.maximum(start, begin)
    times = pl.concat(
        pl.DataFrame({"of": kinds, "ns": ns}).filter(pl.col("ns") > 0)
        for kinds, ns in (
            (class_of_work, work_time[is_work]),
            (class_of_edge, start[has_edge] - np.maximum(ended, begin[has_edge])),
        )
    )
    times_by_class = Counter(
        dict(times.group_by("of").agg(pl.col("ns").sum()).sort("of").iter_rows())
    )
    if (trace.whole.tables.activities["kind"] == "op").any():
        times_by_class.update(_operator_times(trace.whole, graph, change, edge[has_edge], category))
    return +times_by_class


def _operator_times(
    trace: Trace, graph: Graph, change: ChangedGraph, path: Ints, category: pl.Series
) -> Counter[str]:
    """Return the time of operators of the CPU on the ``path`` by class, and as much less of the
    host."""
    host, edges = graph.host, graph.edges
    path = path[edges.thread[path] != NONE]
    thread = edges.thread[path]
    position, begin, until = np.split(
        timeline(
            np.concatenate((host.thread, thread, thread)),
            np.concatenate((host.begin, edges.begin[path], edges.until[path])),
        )[0],
        [len(host.begin), len(host.begin) + len(path)],
    )
    activity_of_op = np.full(trace.tables.ops.height + 1, NONE, dtype=np.int64)
    rows = trace.tables.activities["op"]
    activity_of_op[from_rows(rows)] = np.arange(len(rows))
    activity_of_op[NONE] = NONE
    depth_changes = np.zeros(len(position) + 1, dtype=np.int64)
    np.add.at(depth_changes, np.searchsorted(position, begin), 1)
    np.add.at(depth_changes, np.searchsorted(position, until), -1)
    activity = activity_of_op[host.op]
    on_path = np.flatnonzero((np.cumsum(depth_changes)[:-1] > 0) & (activity != NONE))
    lengths = (host.end - host.begin)[on_path] * change.host[on_path]
    names = category.gather(activity[on_path])
    times = pl.DataFrame({"class": names, "ns": lengths}).group_by("class").agg(pl.col("ns").sum())
    times = times.sort("class")
    operator_times = Counter({name: round(time) for name, time in times.iter_rows()})
    operator_times[HOST_TIME] = -operator_times.total()
    return operator_times


class Meetings(msgspec.Struct, frozen=True):
    """The collectives that are matched across graphs.

    ``nodes`` are the matched nodes of each graph, in order; ``number`` is the number of the
    collective by node, -1 for others; ``ranks`` is how many graphs have the collective. ``orders``
    are those in which the graphs are replayed.
    """

    nodes: list[Ints]
    number: list[Ints]
    ranks: list[int]
    orders: list[ReplayOrder]

    @classmethod
    def of(cls, trace: Trace, graphs: Sequence[Graph]) -> Meetings:
        """Return the meetings of ``graphs``, the processes of ``trace``."""
        numbers = [np.full(len(graph.at), NONE, dtype=np.int64) for graph in graphs]
        nodes = [np.zeros(0, dtype=np.int64) for _ in graphs]
        if len(graphs) < 2:
            orders = [ReplayOrder.of(*pair) for pair in zip(graphs, nodes, strict=True)]
            return cls(nodes, numbers, [], orders)
        occurrence = _collective_numbers(trace)
        members: dict[int, list[tuple[int, int]]] = {}
        for process, graph in enumerate(graphs):
            occurrences = np.append(occurrence, [NONE])[graph.activity]
            for node in np.flatnonzero(occurrences != NONE).tolist():
                members.setdefault(int(occurrences[node]), []).append((process, node))
        ranks: list[int] = []
        for nodes_of_meeting in members.values():
            processes = {process for process, _ in nodes_of_meeting}
            # Several in one process would wait for each other within one replay.
            if len(processes) < 2 or len(processes) < len(nodes_of_meeting):
                continue
            for process, node in nodes_of_meeting:
                numbers[process][node] = len(ranks)
            ranks.append(len(nodes_of_meeting))
        nodes = [np.flatnonzero(number != NONE) for number in numbers]
        orders = [ReplayOrder.of(*pair) for pair in zip(graphs, nodes, strict=True)]
        return cls(nodes, numbers, ranks, orders)


def _collective_numbers(trace: Trace) -> Ints:
    """Return the number of the collective of each activity that is matched across ranks, or -1."""
    numbers = np.full(trace.tables.activities.height, NONE, dtype=np.int64)
    collectives, matched = matched_of(trace)
    if matched is None or matched.each.is_empty():
        return numbers
    keys = ["rank", "device", "start", "duration"]
    rows = (
        collectives.with_row_index("row")
        .join(matched.each.select("row", "occurrence"), on="row")
        .select("rank", "device", "occurrence", start="start_ns", duration="time_ns")
        .unique(keys, keep="first")
        .join(
            trace.tables.activities.select(keys)
            .with_row_index("activity")
            .filter(trace.tables.activities["kind"] != "sync"),
            on=keys,
            nulls_equal=True,
        )
        .unique(["occurrence", "rank", "device"], keep="first", maintain_order=True)
    )
    numbers[rows["activity"].to_numpy()] = rows["occurrence"].to_numpy()
    return numbers
