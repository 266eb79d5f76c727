"""The critical path of replayed steps, by what its time is of."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.enrich.nesting import NONE, from_rows, timeline
from traceana.whatif.graph import HANDOVER, HOST, LAUNCH, SYNC, WAIT, Graph

if TYPE_CHECKING:
    from traceana.enrich.nesting import Ints
    from traceana.trace import Trace
    from traceana.whatif.changed import Changed

HOST_TIME: Final = "host"
_OF_EDGE: Final = {
    HOST: HOST_TIME,
    HANDOVER: HOST_TIME,
    LAUNCH: "launch",
    WAIT: "sync",
    SYNC: "sync",
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
    edges, whole = graph.edges, trace.whole
    start = over - change.duration
    deciding = np.flatnonzero(over[edges.source] + change.lag == start[edges.target])
    decides = np.full(len(over), NONE, dtype=np.int64)
    decides[edges.target[deciding]] = deciding
    last = _last_nodes(graph, over)
    path: list[int] = []
    found: Counter[str] = Counter()
    for step in rows.tolist():
        node, begin = int(last[step]), int(begins[step])
        while node != NONE and over[node] > begin:
            since = int(start[node])
            if graph.activity[node] != NONE:
                of = category[int(graph.activity[node])]
                found[of] += int(over[node]) - max(since, begin)
            edge = int(decides[node])
            if edge == NONE or since <= begin:
                break
            node = int(edges.source[edge])
            found[_OF_EDGE.get(int(edges.kind[edge]), _GAP)] += since - max(int(over[node]), begin)
            path.append(edge)
    if (whole.activities["kind"] == "op").any():
        found.update(_of_operators(whole, graph, change, np.array(path, dtype=np.int64), category))
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
    of_op = np.full(trace.ops.height + 1, NONE, dtype=np.int64)
    rows = trace.activities["op"]
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
    found = Counter({name: round(time) for name, time in times.iter_rows()})
    found[HOST_TIME] = -found.total()
    return found


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
