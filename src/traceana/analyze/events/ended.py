"""Which piece of work ended last by a moment, of those asked for before another moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceana.enrich.nesting import NONE, Ints


def distinct(ordered: Ints) -> Ints:
    """Return the distinct values of what is in order; hashing them is many times slower."""
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


@dataclass(frozen=True, slots=True)
class Ended:
    """Work by its key (a stream, a device) and its end. Lookups of whole columns, O(log n) each."""

    order: Ints
    """Rows, by key and end."""
    key: Ints
    end: Ints
    _merged: Ints
    _rank: Ints
    _tree: Ints
    """The least moment of asking below each node of a balanced tree over ``order``."""

    @classmethod
    def of(cls, key: Ints, end: Ints, asked: Ints) -> Ended:
        """Index rows given as columns, ordered by their end; ``key`` is 0 or more."""
        order = np.argsort(key, kind="stable")
        rank = distinct(end)
        merged = key[order] * (len(rank) + 1) + np.searchsorted(rank, end[order])
        size = 1 << len(order).bit_length()
        tree = np.full(2 * size, np.iinfo(np.int64).max, dtype=np.int64)
        tree[size : size + len(order)] = asked[order]
        level = size
        while level > 1:
            half = level // 2
            tree[half:level] = np.minimum(
                tree[level : 2 * level : 2], tree[level + 1 : 2 * level : 2]
            )
            level = half
        return cls(order, key[order], end[order], merged, rank, tree)

    def last(self, key: Ints, until: Ints) -> Ints:
        """Return the place in ``order`` of the last of ``key`` that ended by ``until``, or NONE."""
        if not len(self.order):
            return np.full(len(key), NONE, dtype=np.int64)
        place = self._behind(key, until) - 1
        return np.where((place >= 0) & (self.key[place] == key), place, NONE)

    def last_asked(self, key: Ints, after: Ints, until: Ints, before: Ints) -> Ints:
        """Return the row of the last that ended in (``after``, ``until``] and was asked for before
        ``before``; NONE where there is none."""
        if not len(self.order):
            return np.full(len(key), NONE, dtype=np.int64)
        size = len(self._tree) // 2
        node = self._behind(key, until) + size
        found = np.zeros(len(node), dtype=np.int64)
        while (node > 1).any():
            # What lies before a right child is its left sibling, and what is before their parent.
            sibling = np.where(node & 1, node - 1, 0)
            hit = (sibling > 0) & (self._tree[sibling] < before)
            found = np.where(hit, sibling, found)
            node = np.where(hit, 0, node >> 1)
        while ((found > 0) & (found < size)).any():
            below = (found > 0) & (found < size)
            right = np.where(below, 2 * found + 1, 1)
            found = np.where(below, np.where(self._tree[right] < before, right, right - 1), found)
        place = np.maximum(found - size, 0)
        known = (found > 0) & (place >= self._behind(key, after))
        return np.where(known, self.order[place], NONE)

    def _behind(self, key: Ints, until: Ints) -> Ints:
        """Return the place behind all of smaller keys and those of ``key`` ended by ``until``."""
        rank = np.searchsorted(self._rank, until, side="right")
        return np.searchsorted(self._merged, key * (len(self._rank) + 1) + rank, side="left")
