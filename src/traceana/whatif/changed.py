"""Changes applied to a graph: the lags of its edges and the durations of its work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from traceana.enrich.nesting import NONE
from traceana.whatif.factors import Floats
from traceana.whatif.graph import EVENT, LAUNCH, STREAM, SYNC, Graph

if TYPE_CHECKING:
    from traceana.enrich.nesting import Ints
    from traceana.whatif.scenario import Change
    from traceana.whatif.selected import Selection


_NO_WAIT: Final = -(1 << 60)
"""A lag with which an edge holds nothing up."""


class Changed(NamedTuple):
    """Lags of the edges and durations of the nodes of a graph, in nanoseconds, and the factors of
    the pieces of its threads.

    ``beside`` and ``host_beside`` are the times (ns) of nodes and pieces that nothing waits for:
    they run beside the step, which takes at least as long as their sum.
    """

    lag: Ints
    duration: Ints
    host: Floats
    beside: Ints
    host_beside: Floats


def changed(
    graph: Graph, changes: Sequence[Change], selections: Sequence[Selection], where: float
) -> Changed:
    """Return ``graph`` with ``changes``, each of what is selected, at ``where`` (0 to 1) between
    their least and most factors."""
    work, host = np.ones(len(graph.at)), np.ones(len(graph.host.begin))
    gone = np.zeros(len(graph.at), dtype=np.bool_)
    edges = graph.edges
    free = np.zeros(len(edges.target), dtype=np.bool_)
    beside, host_beside = gone.copy(), np.zeros(len(host), dtype=np.bool_)
    for change, chosen in zip(changes, selections, strict=True):
        least, most = change.factors
        factor = least + where * (most - least)
        if change.by is None or chosen.factors is None:
            work[chosen.work] *= factor
        else:
            low, high = chosen.factors
            work[chosen.work] *= (low + where * (high - low))[chosen.work]
        host[chosen.host] *= factor
        gone |= chosen.work & change.remove
        beside |= chosen.work & change.beside
        host_beside |= chosen.host & change.beside
        if change.by is not None and chosen.returned is not None:
            # Whatever the call waited for, it returns at once.
            free |= np.isin(edges.target, chosen.returned) & (edges.kind == SYNC)
    duration = np.rint(graph.duration * work).astype(np.int64)
    own_time = (graph.host.end - graph.host.begin) * host
    host[host_beside] = 0
    lag = edges.lag.copy()
    rows = np.flatnonzero(edges.thread != NONE)
    begin, until = edges.begin[rows], edges.until[rows]
    lag[rows] += graph.host.lengths(edges.thread[rows], begin, until, host) - (until - begin)
    # Work that does not run, or elsewhere, needs no time before it either.
    gone |= beside
    lag[gone[edges.target] & np.isin(edges.kind, [STREAM, EVENT, LAUNCH])] = 0
    lag[free] = _NO_WAIT
    return Changed(
        lag,
        np.where(beside, 0, duration),
        host,
        np.where(beside, duration, 0),
        np.where(host_beside, own_time, 0.0),
    )
