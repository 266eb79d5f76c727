"""Intervals on threads that are layers, and the paths of nested ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import polars as pl

from traceana.columns.nesting import NONE, Flags, Ints, Nesting, take

SEPARATOR: Final = "."

Layer = tuple[str, str | None, str]
"""(path, type, role) of one row of ``layers``."""


class LayerIntervals(msgspec.Struct, frozen=True):
    """Intervals on threads, each of them a layer.

    ``layer[i]`` is the index into ``layers`` of interval ``i``. Other ranges are excluded before
    nesting. ``too_long`` counts those that have the path of their parent, because theirs is longer
    than :data:`LONGEST_PATH`. ``several`` are the intervals with several layers directly inside,
    None without any: such as the attention of a transformer around its products.
    """

    nesting: Nesting
    layer: Ints
    layers: list[Layer]
    too_long: int = 0
    several: Flags | None = None

    def at(self, key: Ints, time: Ints) -> Ints:
        """Return the index into ``layers`` at each (thread, time), NONE outside all layers."""
        row = self.nesting.innermost(key, time)
        return take(self.layer, row)


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


def tree_of(frame: pl.DataFrame, key: Ints) -> tuple[Nesting, PathTree, list[str]]:
    """Return the nesting of ranges, the tree of their texts, and the texts by number."""
    nesting = nest(frame, key)
    code, texts = codes(frame["text"])
    return nesting, PathTree.of(nesting, code), texts


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
