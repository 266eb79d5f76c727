"""Nested operators: what counts, what is inside of something that counts.

``aten::conv2d`` calls ``aten::convolution``, that calls ``aten::_convolution``, that a library's
operator, and all four have formulas: the outermost counts. Everything here walks level by level
of nesting, never event by event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.enrich.nesting import NONE, Ints, from_rows

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Tree:
    """The nesting of a table of operators: the parent of each row, and the rows of each depth."""

    parent: Ints
    levels: Sequence[Ints]

    @classmethod
    def of(cls, ops: pl.DataFrame) -> Tree:
        """Read ``parent`` and ``depth`` of ``ops``, whose row numbers the parents are."""
        depth = ops["depth"].cast(pl.Int64).fill_null(0).to_numpy()
        order = np.argsort(depth, kind="stable")
        bounds = np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 1))
        return cls(from_rows(ops["parent"]), np.split(order, bounds))

    def inside(self, outer: Flags) -> Flags:
        """Tell which rows have a row of ``outer`` around them."""
        result = np.zeros(len(outer), dtype=np.bool_)
        for rows in self.levels[1:]:
            parent = self.parent[rows]
            result[rows] = (parent != NONE) & (outer[parent] | result[parent])
        return result

    def holding(self, inner: Flags) -> Flags:
        """Tell which rows have a row of ``inner`` somewhere inside them."""
        result = np.zeros(len(inner), dtype=np.bool_)
        for rows in reversed(self.levels):
            parent = self.parent[rows[inner[rows] | result[rows]]]
            result[parent[parent != NONE]] = True
        return result

    def outermost(self, flags: Flags) -> Flags:
        """Return ``flags`` without those that have another of them around them."""
        return flags & ~self.inside(flags)

    def nearest(self, flags: Flags) -> Ints:
        """Return for each row the nearest row of ``flags`` around it, or itself; else ``NONE``."""
        result = np.where(flags, np.arange(len(flags)), NONE)
        for rows in self.levels[1:]:
            waiting = rows[(result[rows] == NONE) & (self.parent[rows] != NONE)]
            result[waiting] = result[self.parent[waiting]]
        return result

    def own_time(self, duration: Ints) -> Ints:
        """Return each row's duration without that of the operators directly inside it."""
        own = duration.copy()
        has_parent = self.parent != NONE
        np.subtract.at(own, self.parent[has_parent], duration[has_parent])
        return np.maximum(own, 0)
