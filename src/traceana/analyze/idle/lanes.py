"""The work of each device in order of time, found once for all that looks at it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traceana.analyze.intervals import Place, rows_by_place
from traceana.enrich.nesting import Ints
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.trace import Trace


@dataclass(frozen=True, slots=True)
class Lane:
    """The work of one device by its start: ``row`` in activities, ``start`` and ``end``."""

    place: Place
    row: Ints
    start: Ints
    end: Ints


def lanes(trace: Trace, places: Collection[Place]) -> list[Lane]:
    """Return the lanes of ``places``, those of the host left out; of equal starts as recorded."""
    columns = trace.activities.select("rank", "device", "start", "duration", "kind")
    worked = columns.select(
        (pl.col("kind") != "sync") & (pl.col("device") != CPU_DEVICE).fill_null(value=False)
    ).to_series()
    kept = None if worked.all() else np.flatnonzero(worked.to_numpy())
    if kept is not None:
        columns = columns.filter(worked)
    starts, durations = columns["start"].to_numpy(), columns["duration"].to_numpy()
    found = []
    for place, rows in rows_by_place(columns):
        if place not in places:
            continue
        start, own = starts[rows], rows
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            start, own = start[order], rows[order]
        found.append(Lane(place, own if kept is None else kept[own], start, start + durations[own]))
    return found
