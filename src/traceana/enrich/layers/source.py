"""Input and result of each source of layers; layers of ranges, and their paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from traceana.columns.distinct import Texts
from traceana.columns.nesting import NONE, Flags, Ints, Nesting, roots, take

SEPARATOR: Final = "."
NO_LAUNCH: Final = "(launched before capture)"
"""Rows for work without a layer, by reason."""

Layer = tuple[str, str | None, str]
"""(path, type, role) of one row of ``layers``."""


@dataclass(frozen=True)
class Program:
    """A recorded program: the input of each source of layers.

    ``ops`` have parent and direction. Each operator has a thread (``op_key``), a ``step`` and a
    ``forward`` operator, NONE without. ``ranges`` are those that may be layers, ``copying`` the
    operators that called for a copy, None where calls are not recorded.
    """

    ops: pl.DataFrame
    names: Texts
    op_key: Ints
    nesting: Nesting
    step: Ints
    forward: Ints
    ranges: pl.DataFrame
    range_key: Ints
    copying: Ints | None

    @cached_property
    def start(self) -> Ints:
        """The start of each operator."""
        return self.ops["start"].to_numpy()

    @cached_property
    def root(self) -> Ints:
        """The outermost operator around each operator."""
        return roots(self.nesting)

    @cached_property
    def texts(self) -> Texts:
        """The texts of the ranges."""
        return Texts.of(self.ranges["text"])

    def of_direction(self, direction: str) -> Flags:
        """Return which operators are of the ``direction``."""
        return (self.ops["direction"] == direction).fill_null(value=False).to_numpy()


class LayerIntervals(msgspec.Struct, frozen=True):
    """Intervals on threads, each of them a layer.

    ``layer[i]`` is the layer of interval ``i``, an index into the layers of :class:`OpLayers`.
    Other ranges are excluded before nesting. ``too_long`` counts those that have the path of their
    parent, because theirs is longer than :data:`LONGEST_PATH`.
    """

    nesting: Nesting
    layer: Ints
    too_long: int = 0

    def at(self, key: Ints, time: Ints) -> Ints:
        """Return the layer at each (thread, time), NONE outside all layers."""
        return take(self.layer, self.nesting.innermost(key, time))


class OpLayers(NamedTuple):
    """The layer of each operator by one source, as index into ``layers``, or NONE.

    ``intervals`` are the ranges that have these layers.
    """

    of_op: Ints
    layers: Sequence[Layer]
    intervals: LayerIntervals | None = None


def codes(text: pl.Series) -> tuple[Ints, list[str]]:
    """Return the number of each row's text, and the distinct texts by number."""
    distinct = text.unique(maintain_order=True)
    numbers = pl.Series(np.arange(len(distinct)))
    if not len(distinct):
        return np.zeros(0, dtype=np.int64), []
    return (
        text.replace_strict(distinct, numbers, return_dtype=pl.Int64).to_numpy(),
        distinct.cast(pl.String).to_list(),
    )


def nest(frame: pl.DataFrame, key: Ints) -> Nesting:
    """Return the nesting of the rows of ``frame`` by their ``start`` and ``duration``."""
    return Nesting.of(key, frame["start"].to_numpy(), frame["duration"].to_numpy())


DEEPEST_PATH: Final = 256
"""Most nested ranges in a path; deeper ranges have the path of their parent."""
LONGEST_PATH: Final = 4096
"""Most characters of a path of several ranges; a range that makes it longer has its parent's."""


class PathTree(msgspec.Struct, frozen=True):
    """The distinct paths of nested, named intervals.

    ``node[i]`` is the node of interval ``i``. ``parent`` and ``code`` have one entry per node,
    parents before children.
    """

    node: Ints
    parent: Ints
    code: Ints

    @classmethod
    def of(cls, nesting: Nesting, code: Ints) -> PathTree:
        """Return the tree of intervals whose names are numbered ``code``, 0 or greater."""
        node = np.full(len(code), NONE, dtype=np.int64)
        parents: list[Ints] = []
        codes: list[Ints] = []
        base = int(code.max(initial=0)) + 1
        count = 0
        for rows in nesting.levels:
            above = nesting.parent[rows]
            owner = np.where(above == NONE, NONE, node[above])
            distinct, inverse = np.unique((owner + 1) * base + code[rows], return_inverse=True)
            node[rows] = inverse + count
            parents.append(distinct // base - 1)
            codes.append(distinct % base)
            count += len(distinct)
        empty = np.zeros(0, dtype=np.int64)
        return cls(node, np.concatenate([empty, *parents]), np.concatenate([empty, *codes]))

    def paths(
        self, texts: Sequence[str], separator: str, *, whole: Flags | None = None
    ) -> tuple[list[str], int]:
        """Return the path of every node, and the number of intervals whose path is too long.

        An empty text adds nothing to its parent's path. Nodes deeper than :data:`DEEPEST_PATH`, and
        those whose path would be longer than :data:`LONGEST_PATH`, have the path of their parent,
        because the memory of all paths grows with the square of the depth.

        A text that already begins with its parent's path (``features.0`` within ``features``)
        replaces it, and so does one that is a ``whole`` path.
        """
        paths: list[str] = []
        long = np.zeros(len(self.parent), dtype=np.bool_)
        nodes = zip(self.parent.tolist(), self.code.tolist(), self.depths().tolist(), strict=True)
        for parent, code, depth in nodes:
            above, text = paths[parent] if parent != NONE else "", texts[code]
            if depth >= DEEPEST_PATH:
                paths.append(above)
            elif not text or not above or (whole is not None and whole[code]):
                paths.append(text or above)
            elif text.startswith(above + separator):
                paths.append(text)
            elif len(above) + len(text) >= LONGEST_PATH:
                long[len(paths)] = True
                paths.append(above)
            else:
                paths.append(f"{above}{separator}{text}")
        return paths, int(long[self.node].sum())

    def depths(self) -> Ints:
        """Return the number of ancestors of each node."""
        depth = np.zeros(len(self.parent), dtype=np.int64)
        for i, parent in enumerate(self.parent.tolist()):
            depth[i] = 0 if parent == NONE else depth[parent] + 1
        return depth
