"""Unions of intervals: time during which a device did anything, however much at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

Times = npt.NDArray[np.int64]


def union(starts: Times, ends: Times) -> tuple[Times, Times]:
    """Return the union of half-open intervals as disjoint ones, ordered, touching ones joined.

    Intervals need no order and may nest or overlap; empty ones are left out. O(n log n).
    """
    filled = ends > starts
    starts, ends = starts[filled], ends[filled]
    if not len(starts):
        return starts, ends
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


@dataclass(frozen=True, slots=True)
class Busy:
    """When each device was busy: disjoint intervals by device."""

    by_device: Mapping[int, tuple[Times, Times]]

    @staticmethod
    def of(activities: pl.DataFrame) -> Busy:
        """Return the union of ``activities`` (``device``, ``start``, ``duration``) by device."""
        columns = activities.select("device", "start", "duration").drop_nulls()
        found: dict[int, tuple[Times, Times]] = {}
        for (device,), rows in columns.partition_by("device", as_dict=True).items():
            starts = rows["start"].to_numpy()
            found[int(device)] = union(starts, starts + rows["duration"].to_numpy())
        return Busy(found)

    def total(self, device: int) -> int:
        """Return the busy time of ``device``; 0 for one that did nothing."""
        return length(self.by_device[device]) if device in self.by_device else 0

    def within(self, windows: pl.DataFrame) -> pl.Series:
        """Return ``busy_ns``, the busy time inside each window.

        ``windows`` has the columns ``device``, ``start`` and ``end`` (half-open).
        """
        result = np.zeros(windows.height, dtype=np.int64)
        devices = windows["device"].to_numpy()
        starts, ends = windows["start"].to_numpy(), windows["end"].to_numpy()
        for device, intervals in self.by_device.items():
            here = np.flatnonzero(devices == device)
            result[here] = _until(intervals, ends[here]) - _until(intervals, starts[here])
        return pl.Series("busy_ns", result)


def _until(intervals: tuple[Times, Times], moments: Times) -> Times:
    """Return how long ``intervals`` were busy before each of ``moments``."""
    starts, ends = intervals
    before = np.concatenate(([0], np.cumsum(ends - starts)))
    begun = np.searchsorted(starts, moments, side="right")
    # The interval begun last may reach beyond the moment: what lies behind it does not count.
    reached = np.concatenate(([0], ends))[begun]
    beyond = np.where(begun > 0, np.maximum(reached - moments, 0), 0)
    return np.asarray(before[begun] - beyond, dtype=np.int64)
