"""When everything happens, given the waits of a graph, and the steps that follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceana.enrich.nesting import NONE

if TYPE_CHECKING:
    from traceana.enrich.nesting import Ints
    from traceana.whatif.graph import Graph


def replayed(graph: Graph, lag: Ints, duration: Ints) -> Ints:
    """Return when each node of ``graph`` is over, if its edges have ``lag`` and work ``duration``.

    A node without edges happens when it did. With the graph's own lags and durations the result is
    ``at + duration`` of the graph, exactly: a test holds it to that on every recorded trace.
    """
    edges = graph.edges
    count = len(graph.at)
    first = np.searchsorted(edges.target, np.arange(count + 1))
    single = first[:-1]
    has = np.diff(first) > 0
    # One more node, which is over at 0, stands for the edge of those that have none.
    source = np.full(count, count, dtype=np.int64)
    passed = graph.at.copy()
    source[has], passed[has] = edges.source[single[has]], lag[single[has]]
    several = np.flatnonzero(np.diff(first) > 1)
    others = np.ones(len(edges.source), dtype=np.bool_)
    others[single[has]] = False
    other_source, other_lag = edges.source[others].tolist(), lag[others].tolist()
    until = np.cumsum(np.maximum(np.diff(first) - 1, 0))[several].tolist()
    over = [0] * (count + 1)
    sources, lags, lengths = source.tolist(), passed.tolist(), duration.tolist()
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
        over[node] = begin + lengths[node]
        done = node + 1
    return np.array(over[:count], dtype=np.int64)


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
