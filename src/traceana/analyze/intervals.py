"""Unions of intervals: time during which a device did anything, however much at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.analyze.numbering import numbered, rows_of

Times = npt.NDArray[np.int64]


def union(starts: Times, ends: Times) -> tuple[Times, Times]:
    """Return the union of half-open intervals as disjoint ones, ordered, touching ones joined.

    Intervals need no order and may nest or overlap; empty ones are left out. O(n log n), O(n) for
    those that are in order.
    """
    filled = ends > starts
    if not filled.all():
        starts, ends = starts[filled], ends[filled]
    if not len(starts):
        return starts, ends
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reached = np.maximum.accumulate(ends)
    first = np.empty(len(starts), dtype=bool)
    first[0] = True
    np.greater(starts[1:], reached[:-1], out=first[1:])
    last = np.append(first[1:], True)
    return starts[first], reached[last]


def length(intervals: tuple[Times, Times]) -> int:
    """Return the summed length of disjoint intervals."""
    starts, ends = intervals
    return int((ends - starts).sum())


Place = tuple[int | None, int]
"""(rank, device): device numbers are counted within a rank."""


def rows_by_place(frame: pl.DataFrame) -> Iterator[tuple[Place, Times]]:
    """Yield each device (``rank``, ``device``) of ``frame`` with its rows, in their order."""
    (numbers,) = numbered(frame.select("rank", "device"))
    for _, rows in rows_of(numbers):
        rank, device = frame["rank"][int(rows[0])], frame["device"][int(rows[0])]
        yield (rank, device), rows


@dataclass(frozen=True, slots=True)
class Busy:
    """When each device was busy: disjoint intervals by place."""

    by_place: Mapping[Place, tuple[Times, Times]]

    @staticmethod
    def of(activities: pl.DataFrame) -> Busy:
        """Return the union of ``activities`` (``rank``, ``device``, ``start``, ``duration``)."""
        columns = activities.select("rank", "device", "start", "duration").drop_nulls(
            ["device", "start", "duration"]
        )
        starts = columns["start"].to_numpy()
        ends = starts + columns["duration"].to_numpy()
        return Busy(
            {place: union(starts[rows], ends[rows]) for place, rows in rows_by_place(columns)}
        )

    def with_also(self, activities: pl.DataFrame) -> Busy:
        """Return when each device was busy, or did one of ``activities`` (as of :meth:`of`)."""
        more = Busy.of(activities).by_place
        nothing = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        both = {}
        for place in {**self.by_place, **more}:
            one, other = self.by_place.get(place, nothing), more.get(place, nothing)
            starts, ends = (np.concatenate(sides) for sides in zip(one, other, strict=True))
            both[place] = union(starts, ends)
        return Busy(both)

    def total(self, place: Place) -> int:
        """Return the busy time of the device; 0 for one that did nothing."""
        return length(self.by_place[place]) if place in self.by_place else 0

    def within(self, windows: pl.DataFrame) -> pl.Series:
        """Return ``busy_ns``, the busy time inside each window.

        ``windows`` has the columns ``rank``, ``device``, ``start`` and ``end`` (half-open).
        """
        result = np.zeros(windows.height, dtype=np.int64)
        starts, ends = windows["start"].to_numpy(), windows["end"].to_numpy()
        for place, here in rows_by_place(windows):
            if place in self.by_place:
                intervals = self.by_place[place]
                result[here] = until(intervals, ends[here]) - until(intervals, starts[here])
        return pl.Series("busy_ns", result)


def until(intervals: tuple[Times, Times], moments: Times) -> Times:
    """Return how long ``intervals`` were busy before each of ``moments``."""
    starts, ends = intervals
    before = np.concatenate(([0], np.cumsum(ends - starts)))
    begun = np.searchsorted(starts, moments, side="right")
    # The interval begun last may reach beyond the moment: what lies behind it does not count.
    reached = np.concatenate(([0], ends))[begun]
    beyond = np.where(begun > 0, np.maximum(reached - moments, 0), 0)
    return np.asarray(before[begun] - beyond, dtype=np.int64)
