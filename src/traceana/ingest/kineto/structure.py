"""Where the objects of a JSON array begin and end, told from quotes and brackets alone.

The slow and sure way to cut a stretch of ``traceEvents``: it needs no valid values, only balanced
brackets, so one bad event does not take its neighbours along.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_OPEN = np.zeros(256, dtype=np.int8)
_OPEN[[ord("{"), ord("[")]] = 1
_OPEN[[ord("}"), ord("]")]] = -1


@dataclass(frozen=True, slots=True)
class Structure:
    """The objects in a stretch of an array's elements.

    ``starts[i]:ends[i]`` slices object ``i``; ``closed`` is the position of the bracket that ends
    the array, None when the stretch ends before it.
    """

    starts: np.ndarray
    ends: np.ndarray
    closed: int | None


def scan(text: bytes) -> Structure:
    """Find the complete objects of ``text``, which begins between two elements of an array."""
    data = np.frombuffer(text, dtype=np.uint8)
    depth_change = _OPEN[data]
    brackets = np.flatnonzero(depth_change)
    quotes = _unescaped_quotes(data)
    inside_string = np.searchsorted(quotes, brackets) & 1
    brackets = brackets[inside_string == 0]
    depth = np.cumsum(depth_change[brackets], dtype=np.int64)
    closing = np.flatnonzero(depth < 0)
    closed: int | None = None
    if len(closing):
        closed = int(brackets[closing[0]])
        brackets, depth = brackets[: closing[0]], depth[: closing[0]]
    ends = brackets[depth == 0] + 1
    opening = (depth == 1) & (depth_change[brackets] == 1)
    return Structure(starts=brackets[opening][: len(ends)], ends=ends, closed=closed)


def _unescaped_quotes(data: np.ndarray) -> np.ndarray:
    quotes = np.flatnonzero(data == _QUOTE)
    slashes = np.flatnonzero(data == _BACKSLASH)
    if not len(slashes):
        return quotes
    # A character is escaped when the run of backslashes before it is of odd length.
    breaks = np.flatnonzero(np.diff(slashes) > 1)
    first = slashes[np.concatenate(([0], breaks + 1))]
    last = slashes[np.concatenate((breaks, [len(slashes) - 1]))]
    escaped = last[(last - first) % 2 == 0] + 1
    return np.setdiff1d(quotes, escaped, assume_unique=True)
