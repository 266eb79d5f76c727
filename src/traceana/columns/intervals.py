"""Unions of intervals by device: busy time, and the exposed time of copies and collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.columns.distinct import numbered, rows_of

Times = npt.NDArray[np.int64]
Intervals = tuple[Times, Times]
"""Starts and ends."""

Device = tuple[int | None, int]
"""(rank, device): device numbers are counted within a rank."""

PER_DEVICE: Final = ("rank", "device")


def times(table: pl.DataFrame) -> Intervals:
    """Return ``start`` of each row, and its end, ``start + duration``."""
    start = table["start"].to_numpy()
    return start, start + table["duration"].to_numpy()


def union(starts: Times, ends: Times) -> Intervals:
    """Return the union of half-open intervals as disjoint, ordered ones; touching ones are joined.

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


def length(intervals: Intervals) -> int:
    """Return the summed length of disjoint intervals."""
    starts, ends = intervals
    return int((ends - starts).sum())


def rows_by_device(frame: pl.DataFrame) -> Iterator[tuple[Device, Times]]:
    """Yield each device (``rank``, ``device``) of ``frame`` with its rows, in their order."""
    (numbers,) = numbered(frame[list(PER_DEVICE)])
    for _, rows in rows_of(numbers):
        first = int(rows[0])
        yield (frame["rank"][first], frame["device"][first]), rows


class Busy(msgspec.Struct, frozen=True):
    """Busy time of each device: disjoint intervals by device."""

    by_device: Mapping[Device, Intervals]

    @staticmethod
    def of(activities: pl.DataFrame) -> Busy:
        """Return the union of ``activities`` (``rank``, ``device``, ``start``, ``duration``)."""
        known = ["device", "start", "duration"]
        columns = activities[["rank", *known]]
        if any(columns[name].null_count() for name in known):
            columns = columns.drop_nulls(known)
        starts = columns["start"].to_numpy()
        ends = starts + columns["duration"].to_numpy()
        return Busy(
            {device: union(starts[rows], ends[rows]) for device, rows in rows_by_device(columns)}
        )

    def with_also(self, activities: pl.DataFrame) -> Busy:
        """Return when each device was busy or ran one of ``activities`` (as in :meth:`of`)."""
        more = Busy.of(activities).by_device
        nothing = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        both = {}
        for device in {**self.by_device, **more}:
            own, added = self.by_device.get(device, nothing), more.get(device, nothing)
            starts, ends = (np.concatenate(sides) for sides in zip(own, added, strict=True))
            both[device] = union(starts, ends)
        return Busy(both)

    def total(self, device: Device) -> int:
        """Return the busy time of the device; 0 for an idle one."""
        return length(self.by_device[device]) if device in self.by_device else 0

    def of_all(self) -> int:
        """Return the busy time summed over the devices."""
        return sum(map(length, self.by_device.values()))

    def within(self, windows: pl.DataFrame) -> pl.Series:
        """Return ``busy_ns``, the busy time inside each window.

        ``windows`` has the columns ``rank``, ``device``, ``start`` and ``end`` (half-open).
        """
        result = np.zeros(windows.height, dtype=np.int64)
        starts, ends = windows["start"].to_numpy(), windows["end"].to_numpy()
        for device, here in rows_by_device(windows):
            if device in self.by_device:
                intervals = self.by_device[device]
                result[here] = until(intervals, ends[here]) - until(intervals, starts[here])
        return pl.Series("busy_ns", result)


def until(intervals: Intervals, times: Times) -> Times:
    """Return the length of the disjoint ``intervals`` before each of ``times``."""
    starts, ends = intervals
    before = np.concatenate(([0], np.cumsum(ends - starts)))
    started = np.searchsorted(starts, times, side="right")
    # The last interval to start may end later: only its part before the time counts.
    reached = np.concatenate(([0], ends))[started]
    beyond = np.where(started > 0, np.maximum(reached - times, 0), 0)
    return np.asarray(before[started] - beyond, dtype=np.int64)


COMPUTING: Final = ("kernel", "op", "graph")
"""Kinds of activities that count as compute. A CUDA graph recorded as one activity may contain
copies, but counts as kernels: its nodes are not recorded."""


def computing(activities: pl.DataFrame) -> Busy:
    """Return when each device ran kernels, or the CPU ran operators."""
    columns = activities[["rank", "device", "start", "duration"]]
    return Busy.of(columns.filter(activities["kind"].is_in(COMPUTING)))


def exposed(copies: pl.DataFrame, kernels: Busy, keys: Sequence[str]) -> pl.DataFrame:
    """Return ``exposed_ns`` of each distinct combination of ``keys``, columns of ``copies``.

    Exposed means not overlapped with compute: the union of the copies of the combination on a
    device, less the time in which ``kernels`` ran on that device, summed over the devices. Copies
    of one combination that overlap count once; copies of two combinations count in both. ``copies``
    has ``rank``, ``device``, ``start`` and ``duration``; copies without a device are left out, as
    are combinations of only such copies. O(n log n).
    """
    device_keys = [*keys, "rank", "device"]
    end, begin = pl.col("end"), pl.col("start")
    ordered = (
        copies.select(*device_keys, "start", (begin + pl.col("duration")).alias("end"))
        .drop_nulls("device")
        .sort("start")
    )
    reached = end.cum_max().shift(1).over(device_keys)
    windows = (
        ordered.with_columns((begin > reached).fill_null(value=True).alias("first"))
        .with_columns(pl.col("first").cum_sum().over(device_keys).alias("window"))
        .group_by(*device_keys, "window")
        .agg(begin.min(), end.max())
        .sort("start")  # lookups in order of time are faster
    )
    hidden = kernels.within(windows)
    return (
        windows.with_columns((end - begin - hidden).alias("exposed_ns"))
        .group_by(keys)
        .agg(pl.col("exposed_ns").sum())
        if keys
        else windows.select((end - begin - hidden).sum().alias("exposed_ns"))
    )


def exposed_within(copies: pl.DataFrame, kernels: Busy, windows: pl.DataFrame) -> int:
    """Return the exposed time of ``copies`` (as in :func:`exposed`) inside ``windows``.

    ``windows`` has ``rank``, ``device``, ``start`` and ``end``; where two overlap, both count.
    """
    return int((kernels.with_also(copies).within(windows) - kernels.within(windows)).sum())
