"""The activities of graph replays, and where their operators and layers are found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.enrich import GRAPH_LAUNCH
from traceana.enrich.nesting import NONE, Ints, from_rows
from traceana.enrich.texts import Texts
from traceana.trace import Trace
from traceana.trace.schema import DEVICE_WORK

NODE_KINDS: Final = tuple(kind for kind in DEVICE_WORK if kind != "graph")
"""Kinds of the work of a node. A graph that was recorded whole has no nodes."""


class Replays(msgspec.Struct, frozen=True):
    """The activities of graph replays, the replay of each, and the launches of the replays."""

    rows: Ints
    """Rows of ``activities``."""
    replay: Ints
    """The replay of each of ``rows``."""
    calls: pl.DataFrame
    """The launch call of each replay: process, thread, start."""
    turn: Ints
    """The number of each replay among those of its graph."""

    @classmethod
    def of(cls, trace: Trace) -> Replays:
        """Return the replays of ``trace``, whose activities have their calls."""
        calls, activities = trace.calls, trace.activities
        launches = Texts.of(calls["name"]).matching(GRAPH_LAUNCH)
        call = from_rows(activities["call"])
        of_graph = np.append(launches, False)[call] & (call != NONE)
        nodes = activities["kind"].is_in(NODE_KINDS)
        rows = np.flatnonzero(of_graph & nodes.to_numpy())
        distinct, replay = np.unique(call[rows], return_inverse=True)
        launched = calls.select("process", "thread", "start")[distinct]
        found = cls(rows, replay.astype(np.int64), launched, np.zeros(len(distinct), np.int64))
        names = activities["name_id"].to_numpy()[rows]
        graphs: dict[bytes, int] = {}
        for at, places in enumerate(found.each(activities["start"].to_numpy()[rows])):
            graph = names[places].tobytes()
            found.turn[at] = graphs[graph] = graphs.get(graph, -1) + 1
        return found

    def each(self, order: Ints) -> Iterator[Ints]:
        """Yield the places in ``rows`` of each replay's activities, sorted by ``order``."""
        by_replay = np.lexsort((order, self.replay))
        ends = np.flatnonzero(np.diff(self.replay[by_replay], append=-1)) + 1
        begin = 0
        for end in ends.tolist():
            yield by_replay[begin:end]
            begin = end


class Found(NamedTuple):
    """Source of each activity of a replay: its recording, the row of the activity there."""

    trace: Trace
    row: Ints
    confidence: npt.NDArray[np.float64]


def pass_codes(directions: pl.Series) -> Ints:
    """Return the number of each direction, NONE without one."""
    return directions.to_physical().cast(pl.Int64).fill_null(NONE).to_numpy()
