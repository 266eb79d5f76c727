"""Changes applied to a graph: the lags of its edges and the durations of its work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from traceana.enrich.nesting import NONE
from traceana.whatif.graph import EVENT, LAUNCH, STREAM, Graph
from traceana.whatif.host_time import Factors

if TYPE_CHECKING:
    from traceana.enrich.nesting import Ints
    from traceana.whatif.scenario import Change
    from traceana.whatif.selected import Selection


class Changed(NamedTuple):
    """Lags of the edges and durations of the nodes of a graph, in nanoseconds, and the factors of
    the pieces of its threads."""

    lag: Ints
    duration: Ints
    host: Factors


def changed(
    graph: Graph, changes: Sequence[Change], selections: Sequence[Selection], where: float
) -> Changed:
    """Return ``graph`` with ``changes``, each of what is selected, at ``where`` (0 to 1) between
    their least and most factors."""
    work, host = np.ones(len(graph.at)), np.ones(len(graph.host.begin))
    gone = np.zeros(len(graph.at), dtype=np.bool_)
    for change, chosen in zip(changes, selections, strict=True):
        least, most = change.factors
        factor = least + where * (most - least)
        work[chosen.work] *= factor
        host[chosen.host] *= factor
        gone |= chosen.work & change.remove
    edges = graph.edges
    lag = edges.lag.copy()
    rows = np.flatnonzero(edges.thread != NONE)
    begin, until = edges.begin[rows], edges.until[rows]
    lag[rows] += graph.host.lengths(edges.thread[rows], begin, until, host) - (until - begin)
    # Work that does not run needs no time before it either.
    lag[gone[edges.target] & np.isin(edges.kind, [STREAM, EVENT, LAUNCH])] = 0
    return Changed(lag, np.rint(graph.duration * work).astype(np.int64), host)
