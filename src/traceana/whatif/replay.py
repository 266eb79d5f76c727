"""When everything happens, given the waits of graphs, and the steps that follow from it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from traceana.enrich.nesting import NONE

if TYPE_CHECKING:
    from traceana.enrich.nesting import Ints
    from traceana.whatif.collectives import Meetings
    from traceana.whatif.graph import Graph

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

    The window is that of :func:`traceana.analyze.critical_path.windows`: from the marker, or the
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
