"""Collectives of several ranks: they begin when the last rank arrives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from traceana.analyze.collective_ranks import matched_of
from traceana.enrich.nesting import NONE

if TYPE_CHECKING:
    from traceana.enrich.nesting import Ints
    from traceana.trace import Trace
    from traceana.whatif.graph import Graph


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
    none = np.full(trace.activities.height, NONE, dtype=np.int64)
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
            trace.activities.select(keys)
            .with_row_index("activity")
            .filter(trace.activities["kind"] != "sync"),
            on=keys,
            nulls_equal=True,
        )
        .unique(["occurrence", "rank", "device"], keep="first", maintain_order=True)
    )
    none[rows["activity"].to_numpy()] = rows["occurrence"].to_numpy()
    return none
