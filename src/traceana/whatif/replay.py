"""Replay: when everything happens, given the waits of graphs; its steps and their critical path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import numpy as np
import polars as pl

from traceana.analyze.collective_ranks import matched_of
from traceana.columns.nesting import NONE, Ints, from_rows, timeline
from traceana.timeline.graph import HANDOVER, HOST, LAUNCH, SYNC, WAIT, Graph, critical_edges

if TYPE_CHECKING:
    from traceana.trace import Trace
    from traceana.whatif.changed import Changed

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
    found: list[tuple[Ints, Ints]] = [(np.zeros(0, dtype=np.int64),) * 2] * len(graphs)
    replays = [
        _replay(graph, lag, duration, nodes)
        for graph, lag, duration, nodes in zip(graphs, lags, durations, meetings.nodes, strict=True)
    ]
    waiting: dict[int, tuple[int, int]] = {}
    arrived: dict[int, list[int]] = {}
    ready: list[tuple[int, int | None]] = [(own, None) for own in range(len(graphs))]
    while ready or waiting:
        if not ready:
            # Whoever began first in the recording.
            own = min(waiting, key=lambda one: int(graphs[one].at[waiting[one][0]]))
            node, begin = waiting.pop(own)
            arrived[int(meetings.number[own][node])].remove(own)
            ready.append((own, begin + int(durations[own][node])))
        own, sent = ready.pop()
        try:
            node, begin = next(replays[own]) if sent is None else replays[own].send(sent)
        except StopIteration as stopped:
            found[own] = stopped.value
            continue
        number = int(meetings.number[own][node])
        waiting[own] = node, begin
        arrived.setdefault(number, []).append(own)
        if len(arrived[number]) < meetings.ranks[number]:
            continue
        # Clocks differ: each rank compares with the end that it has recorded.
        ended = {
            one: int(graphs[one].at[waiting[one][0]] + graphs[one].duration[waiting[one][0]])
            for one in arrived[number]
        }
        last = min(arrived[number], key=lambda one: int(graphs[one].duration[waiting[one][0]]))
        takes = int(durations[last][waiting[last][0]])
        late = max(waiting[one][1] - ended[one] for one in arrived[number]) + takes
        for one in arrived.pop(number):
            del waiting[one]
            ready.append((one, ended[one] + late))
    return found


def _replay(graph: Graph, lag: Ints, duration: Ints, meets: Ints) -> _Replay:
    """Replay ``graph``, with stops at the nodes ``meets``, which are in order."""
    edges = graph.edges
    count = len(graph.at)
    first = np.searchsorted(edges.target, np.arange(count + 1))
    single = first[:-1]
    has = np.diff(first) > 0
    # One more node, which is over at 0, stands for the edge of those that have none.
    source = np.full(count, count, dtype=np.int64)
    passed = graph.at.copy()
    source[has], passed[has] = edges.source[single[has]], lag[single[has]]
    several = np.union1d(np.flatnonzero(np.diff(first) > 1), meets)
    others = np.ones(len(edges.source), dtype=np.bool_)
    others[single[has]] = False
    other_source, other_lag = edges.source[others].tolist(), lag[others].tolist()
    until = np.cumsum(np.maximum(np.diff(first) - 1, 0))[several].tolist()
    over = [0] * (count + 1)
    sources, lags, lengths = source.tolist(), passed.tolist(), duration.tolist()
    meeting = set(meets.tolist())
    done, edge = 0, 0
    for node, end in zip([*several.tolist(), count], [*until, 0], strict=True):
        for one in range(done, node):
            over[one] = over[sources[one]] + lags[one] + lengths[one]
        if node == count:
            break
        begin = over[sources[node]] + lags[node]
        while edge < end:
            other = over[other_source[edge]] + other_lag[edge]
            if other > begin:
                begin = other
            edge += 1
        if node in meeting:
            lengths[node] = (yield node, begin) - begin
        over[node] = begin + lengths[node]
        done = node + 1
    return np.array(over[:count], dtype=np.int64), np.array(lengths, dtype=np.int64)


def step_windows(graph: Graph, over: Ints, duration: Ints) -> tuple[Ints, Ints]:
    """Return begin and end of the window of each step, where nodes are ``over`` when given.

    The window is that of :func:`traceana.timeline.graph.windows`: from the marker, or the
    completion of the step before, to the end of the marker and of all work that it launched.
    """
    measured = _windows(graph, graph.at + graph.duration, graph.at)
    begin, end = graph.steps["begin"].to_numpy(), graph.steps["end"].to_numpy()
    found = _windows(graph, over, over - duration)
    # What is not among the nodes, such as work before the first step, stays as it was.
    return found[0] + begin - measured[0], found[1] + end - measured[1]


def _windows(graph: Graph, over: Ints, start: Ints) -> tuple[Ints, Ints]:
    steps = graph.steps.height
    rows = np.flatnonzero(graph.step != NONE)
    least = np.iinfo(np.int64).min
    ended, begun = np.full(steps, least), np.full(steps, np.iinfo(np.int64).max)
    np.maximum.at(ended, graph.step[rows], over[rows])
    np.minimum.at(begun, graph.step[rows], start[rows])
    marked = graph.begins != NONE
    own = graph.steps["begin"].to_numpy()
    begun = np.where(begun == np.iinfo(np.int64).max, own, begun)
    begun[marked] = over[graph.begins[marked]]
    ended[marked] = np.maximum(ended[marked], over[graph.ends[marked]])
    ended = np.where(ended == least, begun, ended)
    order = np.argsort(own, kind="stable")
    before = np.append(least, np.maximum.accumulate(ended[order])[:-1])
    begin = np.empty_like(begun)
    begin[order] = np.maximum(begun[order], before)
    return begin, np.maximum(begin, ended)


HOST_TIME: Final = "host"
_OF_EDGE: Final = {
    **dict.fromkeys((HOST, HANDOVER), HOST_TIME),
    **dict.fromkeys((WAIT, SYNC), "sync"),
    LAUNCH: "launch",
}
_GAP: Final = "gap"


def path_times(
    trace: Trace,
    category: pl.Series,
    graph: Graph,
    change: Changed,
    over: Ints,
    begins: Ints,
    rows: Ints,
) -> Counter[str]:
    """Return the time of the critical paths of the steps ``rows``, in ns: by class of work, and for
    host, launch, sync and gap (of a stream between work).

    ``category`` is that of each activity. Nodes are ``over`` when given, after ``change``;
    ``begins`` are those of all steps.
    """
    path = critical_edges(graph, over, change.duration, change.lag, begins, rows)
    step, node, edge = (path[name].to_numpy() for name in ("step", "node", "edge"))
    begin, start = begins[step], (over - change.duration)[node]
    is_work, waits = graph.activity[node] != NONE, edge != NONE
    own = category.gather(graph.activity[node[is_work]]).cast(pl.String)
    ended = over[graph.edges.source[edge[waits]]]
    kind = pl.Series(graph.edges.kind[edge[waits]])
    named = kind.replace_strict(_OF_EDGE, default=_GAP, return_dtype=pl.String)
    # Work that overlaps with the work after it counts until that begins.
    first = np.append(True, step[1:] != step[:-1])[: len(step)]
    until = np.where(first, over[node], np.append(0, start)[: len(start)])
    times = pl.concat(
        pl.DataFrame({"of": of, "ns": ns}).filter(pl.col("ns") > 0)
        for of, ns in (
            (own, (np.minimum(over[node], until) - np.maximum(start, begin))[is_work]),
            (named, start[waits] - np.maximum(ended, begin[waits])),
        )
    )
    found = Counter(dict(times.group_by("of").agg(pl.col("ns").sum()).sort("of").iter_rows()))
    if (trace.whole.tables.activities["kind"] == "op").any():
        found.update(_of_operators(trace.whole, graph, change, edge[waits], category))
    return +found


def _of_operators(
    trace: Trace, graph: Graph, change: Changed, path: Ints, category: pl.Series
) -> Counter[str]:
    """Return the time of operators of the CPU on the ``path`` by class, and as much less of the
    host."""
    host, edges = graph.host, graph.edges
    path = path[edges.thread[path] != NONE]
    thread = edges.thread[path]
    place, begin, until = np.split(
        timeline(
            np.concatenate((host.thread, thread, thread)),
            np.concatenate((host.begin, edges.begin[path], edges.until[path])),
        )[0],
        [len(host.begin), len(host.begin) + len(path)],
    )
    of_op = np.full(trace.tables.ops.height + 1, NONE, dtype=np.int64)
    rows = trace.tables.activities["op"]
    of_op[from_rows(rows)] = np.arange(len(rows))
    of_op[NONE] = NONE
    inside = np.zeros(len(place) + 1, dtype=np.int64)
    np.add.at(inside, np.searchsorted(place, begin), 1)
    np.add.at(inside, np.searchsorted(place, until), -1)
    activity = of_op[host.op]
    own = np.flatnonzero((np.cumsum(inside)[:-1] > 0) & (activity != NONE))
    lengths = (host.end - host.begin)[own] * change.host[own]
    names = category.gather(activity[own])
    times = pl.DataFrame({"class": names, "ns": lengths}).group_by("class").agg(pl.col("ns").sum())
    times = times.sort("class")
    found = Counter({name: round(time) for name, time in times.iter_rows()})
    found[HOST_TIME] = -found.total()
    return found


class Meetings(msgspec.Struct, frozen=True):
    """The collectives that are matched across graphs.

    ``nodes`` are those of each graph, in order; ``number`` is that of the collective by node, -1
    for others; ``ranks`` is how many graphs have the collective.
    """

    nodes: list[Ints]
    number: list[Ints]
    ranks: list[int]

    @classmethod
    def of(cls, trace: Trace, graphs: Sequence[Graph]) -> Meetings:
        """Return those of ``graphs``, the processes of ``trace``."""
        number = [np.full(len(graph.at), NONE, dtype=np.int64) for graph in graphs]
        nodes = [np.zeros(0, dtype=np.int64) for _ in graphs]
        if len(graphs) < 2:
            return cls(nodes, number, [])
        occurrence = _occurrences(trace)
        members: dict[int, list[tuple[int, int]]] = {}
        for own, graph in enumerate(graphs):
            of = np.append(occurrence, [NONE])[graph.activity]
            for node in np.flatnonzero(of != NONE).tolist():
                members.setdefault(int(of[node]), []).append((own, node))
        ranks: list[int] = []
        for found in members.values():
            owners = {own for own, _ in found}
            # Several in one process would wait for each other within one replay.
            if len(owners) < 2 or len(owners) < len(found):
                continue
            for own, node in found:
                number[own][node] = len(ranks)
            ranks.append(len(found))
        return cls([np.flatnonzero(one != NONE) for one in number], number, ranks)


def _occurrences(trace: Trace) -> Ints:
    """Return the number of the collective of each activity that is matched across ranks, or -1."""
    none = np.full(trace.tables.activities.height, NONE, dtype=np.int64)
    each, matched = matched_of(trace)
    if matched is None or matched.each.is_empty():
        return none
    keys = ["rank", "device", "start", "duration"]
    rows = (
        each.with_row_index("row")
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
    none[rows["activity"].to_numpy()] = rows["occurrence"].to_numpy()
    return none
