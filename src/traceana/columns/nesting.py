"""Nested intervals on threads, and conversions between row numbers and numpy arrays.

The functions work on whole columns. Loops run over levels of nesting, not over events.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import count
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NONE: Final = -1
"""The row number in numpy arrays that corresponds to null."""

_DEEP: Final = 256
"""Levels that are computed in vectorized passes; deeper levels are computed with a loop."""

_MOST_CLIMBED: Final = 8
"""Steps from an interval to its parent that a lookup takes before it counts instead."""

WIDEST: Final = 1 << 62
"""Bound of numbers that are ordered by thread, then by time."""

_MOST_PASSES: Final = 16
"""Vectorized passes for one level; a loop handles intervals that still overlap without nesting."""


class Tree(msgspec.Struct, frozen=True, dict=True):
    """Rows with the row of the ``parent`` of each, or :data:`NONE`, and its ``depth``.

    Methods proceed by level of nesting, not by event.
    """

    parent: Ints
    depth: Ints

    @staticmethod
    def of_table(table: pl.DataFrame) -> Tree:
        """Read ``parent`` and ``depth`` of operators or ranges."""
        return Tree(from_rows(table["parent"]), table["depth"].fill_null(0).to_numpy())

    @cached_property
    def levels(self) -> Sequence[Ints]:
        """The rows of each depth, outermost first."""
        return rows_by_depth(self.depth)

    def inside(self, outer: Flags) -> Flags:
        """Return the rows with a parent in ``outer``."""
        result = np.zeros(len(outer), dtype=np.bool_)
        for rows in self.levels[1:]:
            parent = self.parent[rows]
            result[rows] = (parent != NONE) & (outer[parent] | result[parent])
        return result

    def holding(self, inner: Flags) -> Flags:
        """Return the rows with a descendant in ``inner``."""
        result = np.zeros(len(inner), dtype=np.bool_)
        for rows in reversed(self.levels):
            parent = self.parent[rows[inner[rows] | result[rows]]]
            result[parent[parent != NONE]] = True
        return result

    def outermost(self, flags: Flags) -> Flags:
        """Return ``flags`` without rows whose parents have the flag."""
        return flags & ~self.inside(flags)

    def nearest(self, flags: Flags, rows: Ints) -> Ints:
        """Return for each of ``rows`` itself or its nearest parent in ``flags``; else ``NONE``."""
        ancestor = rows.copy()
        climbing = np.flatnonzero(ancestor != NONE)
        for _ in range(_MOST_CLIMBED):
            climbing = climbing[~flags[ancestor[climbing]]]
            ancestor[climbing] = self.parent[ancestor[climbing]]
            climbing = climbing[ancestor[climbing] != NONE]
        if len(climbing):
            ancestor[climbing] = self.inherit(np.where(flags, np.arange(len(flags)), NONE))[
                ancestor[climbing]
            ]
        return ancestor

    def inherit(self, value: Ints) -> Ints:
        """Return ``value`` with :data:`NONE` replaced by that of the nearest parent with one."""
        result = value.copy()
        if (value != NONE).any():
            for rows in self.levels[1:]:
                lacking = rows[(result[rows] == NONE) & (self.parent[rows] != NONE)]
                result[lacking] = result[self.parent[lacking]]
        return result

    def united(self, bits: Ints) -> Ints:
        """Return the ``bits`` of each row combined with the bits of all its parents."""
        result = bits.copy()
        for rows in self.levels[1:]:
            result[rows] |= result[self.parent[rows]]
        return result


class Nesting(Tree, frozen=True, dict=True):
    """Intervals with the parent and the depth of each.

    ``parent[i]`` is the row of the innermost interval on the same thread that contains the start
    of interval ``i``, or :data:`NONE`. ``depth[i]`` is the number of intervals around it.
    Intervals that overlap without nesting count as nested while both run. ``order`` has the rows
    thread by thread, parents before children.
    """

    key: Ints
    start: Ints
    end: Ints
    order: Ints

    @classmethod
    def of(cls, key: Ints, start: Ints, duration: Ints) -> Nesting:
        """Return the nesting of intervals given as columns of equal length, in nanoseconds."""
        end = start + duration
        order = np.lexsort((-end, start, key))
        timeline_start, timeline_end = timeline(key[order], start[order], end[order])
        parent, depth = by_counting(timeline_start, timeline_end) or by_peeling(
            timeline_start, timeline_end
        )
        rows_parent = np.full(len(order), NONE, dtype=np.int64)
        rows_depth = np.zeros(len(order), dtype=np.int64)
        rows_parent[order] = np.where(parent == NONE, NONE, order[parent])
        rows_depth[order] = depth
        return cls(rows_parent, rows_depth, key, start, end, order)

    @cached_property
    def _ends(self) -> tuple[int, int]:
        """The first and the last start."""
        return int(self.start.min()), int(self.start.max())

    @cached_property
    def _positions(self) -> Ints:
        """(Thread, start) of the intervals, in their order, as one number; see :meth:`_begun`."""
        first, last = self._ends
        return (self.key * (last - first + 3) + (self.start - first))[self.order]

    def _begun(self, key: Ints, time: Ints) -> Ints:
        """Return the number of intervals, in their order, that begin until each (thread, time)."""
        order, intervals = self.order, len(self.order)
        first, last = self._ends
        span = last - first + 3
        if (max(int(self.key.max()), int(key.max(initial=0))) + 2) * span >= WIDEST:
            (position,) = timeline(
                np.concatenate((self.key[order], key)), np.concatenate((self.start[order], time))
            )
            return np.searchsorted(position[:intervals], position[intervals:], side="right")
        # Times before all intervals and after them are one number each.
        query = time.clip(first - 1, last + 1)
        query += key * span - first
        return np.searchsorted(self._positions, query, side="right")

    def innermost(self, key: Ints, time: Ints) -> Ints:
        """Return the row of the innermost interval at each (thread, time).

        An interval includes its start and excludes its end.
        """
        order = self.order
        if not len(order):
            return np.full(len(time), NONE, dtype=np.int64)
        last = self._begun(key, time) - 1
        row = np.where(last == NONE, NONE, order[last])
        row[(row != NONE) & (self.key[row] != key)] = NONE
        ended = np.flatnonzero((row != NONE) & (self.end[row] <= time))
        for steps in count():
            if not len(ended):
                break
            if steps == _MOST_CLIMBED:
                open_row = self.innermost_by_counting(key[ended], time[ended])
                if open_row is not None:
                    row[ended] = open_row
                    break
            row[ended] = self.parent[row[ended]]
            parent_row = row[ended]
            ended = ended[(parent_row != NONE) & (self.end[parent_row] <= time[ended])]
        return row

    def innermost_by_counting(self, key: Ints, time: Ints) -> Ints | None:
        """Return the result of :meth:`innermost`, in a time that does not grow with the depth.

        None where intervals overlap without nesting. Otherwise those that have begun and not ended
        contain each other, so their number is the depth at which the innermost one is found.
        """
        order = self.order[self.end[self.order] > self.start[self.order]]
        inside = self.parent[order] != NONE
        if (self.end[order[inside]] > self.end[self.parent[order[inside]]]).any():
            return None
        intervals = len(order)
        begin, finish = timeline(
            np.concatenate((self.key[order], key)),
            np.concatenate((self.start[order], time)),
            np.concatenate((self.end[order], time)),
        )
        begun = np.searchsorted(begin[:intervals], begin[intervals:], side="right")
        depth = begun - np.searchsorted(
            np.sort(finish[:intervals]), finish[intervals:], side="right"
        )
        last = _last_of_depth(self.depth[order], np.arange(intervals), depth - 1, begun)
        return take(order, last)


def rows_by_depth(depth: Ints) -> Sequence[Ints]:
    """Return the rows of each ``depth``, from 0 on."""
    # Numbers of 16 bits are sorted by their digits, in a quarter of the time.
    narrow = depth.astype(np.uint16) if (depth < 1 << 16).all() else depth
    order = np.argsort(narrow, kind="stable")
    return np.split(order, np.cumsum(np.bincount(depth))[:-1])


def timeline(key: Ints, *times: Ints) -> tuple[Ints, ...]:
    """Return (thread, time) as one number that is ordered by thread, then by time."""
    filled = [part for part in times if len(part)]
    if not filled:
        return times
    first = min(int(part.min()) for part in filled)
    span = max(int(part.max()) for part in filled) - first + 1
    if (int(key.max()) + 2) * span < WIDEST:
        base = key * span - first
        return tuple(base + part for part in times)
    # The times of all threads end to end would exceed int64. The ranks of the times have the same
    # order.
    distinct, rank = np.unique(np.concatenate(times), return_inverse=True)
    return tuple(key * len(distinct) + part for part in np.split(rank, len(times)))


def by_counting(start: Ints, end: Ints) -> tuple[Ints, Ints] | None:
    """Return parent and depth, None where intervals overlap without nesting.

    The intervals that have begun before one and not ended contain it, so their number is its depth:
    the time does not grow with the depth. An interval of no length contains nothing. Order as in
    :func:`by_peeling`.
    """
    lasts = end > start
    holds = np.flatnonzero(lasts)
    if len(holds) < len(start) and (end < start).any():
        return None
    begun: Ints = np.cumsum(lasts) - lasts
    depth = begun - np.searchsorted(np.sort(end[holds], kind="stable"), start, side="right")
    parent = _last_of_depth(depth[holds], holds, depth - 1, begun)
    inside = parent != NONE
    if (end[inside] > end[parent[inside]]).any():
        return None
    return parent, depth


def _last_of_depth(depth: Ints, value: Ints, wanted: Ints, before: Ints) -> Ints:
    """Return the ``value`` of the last of the depth ``wanted`` among the first ``before``, or NONE.

    ``depth`` and ``value`` have an entry for each of them. A negative depth has none.
    """
    last = np.full(len(wanted), NONE, dtype=np.int64)
    if not len(depth) or not len(wanted):
        return last
    levels = rows_by_depth(depth)
    # Level by level both sides are in order, and a search continues where the last one ended.
    for queries, rows in zip(rows_by_depth((wanted + 1).clip(0))[1:], levels, strict=False):
        position = np.searchsorted(rows, before[queries]) - 1
        last[queries] = value[rows[position]]
    return last


def by_peeling(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return parent and depth, level by level from the outermost intervals inwards.

    ``start`` is sorted; of equal starts the longer interval comes first.
    """
    end = end.copy()
    parent = np.full(len(start), NONE, dtype=np.int64)
    depth = np.zeros(len(start), dtype=np.int64)
    rest = np.arange(len(start))
    level = 0
    while len(rest) and level < _DEEP:
        outer = _starts_outermost(start, end, rest)
        depth[rest[outer]] = level
        owner = rest[outer][np.cumsum(outer) - 1]
        inner = ~outer
        parent[rest[inner]] = owner[inner]
        end[rest[inner]] = np.minimum(end[rest[inner]], end[owner[inner]])
        rest = rest[inner]
        level += 1
    _nest_with_stack(start, end, parent, depth, rest, level)
    return parent, depth


def _nest_with_stack(
    start: Ints, end: Ints, parent: Ints, depth: Ints, rest: Ints, level: int
) -> None:
    """Fill in ``parent`` and ``depth`` of the intervals ``rest``, from ``level`` on, with a stack.

    One pass per level would take time in the square of the depth.
    """
    around: list[tuple[int, int]] = []
    for i, begin, finish in zip(
        rest.tolist(), start[rest].tolist(), end[rest].tolist(), strict=True
    ):
        while around and around[-1][1] <= begin:
            around.pop()
        if around:
            parent[i], until = around[-1]
            finish = min(finish, until)
        depth[i] = level + len(around)
        around.append((i, finish))


def _starts_outermost(start: Ints, end: Ints, rest: Ints) -> Flags:
    """Return which of ``rest`` start after the end of all outermost intervals before them."""
    begins, ends = start[rest], end[rest].copy()
    for _ in range(_MOST_PASSES):
        ended_before = np.concatenate(([NONE], np.maximum.accumulate(ends)[:-1]))
        outer = begins >= ended_before
        owner_end = ends[outer][np.cumsum(outer) - 1]
        inner = ~outer & (begins < owner_end)
        if np.all(outer | inner):
            return outer
        # An interval that ends after its owner hides later outermost intervals: cut it there.
        ends[inner] = np.minimum(ends, owner_end)[inner]
    outer = np.zeros(len(rest), dtype=np.bool_)
    running_until = NONE
    for i, (begin, finish) in enumerate(zip(begins.tolist(), end[rest].tolist(), strict=True)):
        if begin >= running_until:
            outer[i] = True
            running_until = finish
    return outer


def roots(nesting: Nesting) -> Ints:
    """Return the row of the outermost interval around each interval, or the interval itself."""
    order = nesting.order
    outermost = np.where(nesting.parent[order] == NONE, np.arange(len(order)), 0)
    rows = np.empty_like(order)
    # Whatever lies within an outermost interval stands between it and the next in the order.
    rows[order] = order[np.maximum.accumulate(outermost)]
    return rows


def to_rows(rows: Ints) -> pl.Series:
    """Return row numbers as a polars column, with null for :data:`NONE`."""
    # A negative number is beyond the type.
    return pl.Series(rows, dtype=pl.Int64).cast(pl.UInt32, strict=False)


def from_rows(column: pl.Series) -> Ints:
    """Return a column of row numbers as an array, with :data:`NONE` for null."""
    if column.dtype == pl.UInt32 and column.null_count():
        # Fewer rows than 2^31 are ever read, so the largest number is NONE as a signed one.
        signed = column.fill_null(2**32 - 1).to_numpy().view(np.int32)
        return signed.astype(np.int64)
    rows = column.cast(pl.Int64)
    return (rows.fill_null(NONE) if rows.null_count() else rows).to_numpy()


def take(values: Ints, rows: Ints) -> Ints:
    """Return the values of ``rows``, :data:`NONE` where the row is :data:`NONE`."""
    if not len(values):
        return np.full(len(rows), NONE, dtype=np.int64)
    return np.where(rows == NONE, NONE, values[rows])
