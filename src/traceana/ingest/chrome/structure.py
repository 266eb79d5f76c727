"""Finds the objects of an array, and keys, by quotes and brackets alone.

That needs no valid values, and takes time and memory in proportion to the text.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_BRACKETS: Final = np.zeros(256, dtype=np.int8)
"""Byte -> change of the nesting depth."""
_BRACKETS[[ord("{"), ord("[")]] = 1
_BRACKETS[[ord("}"), ord("]")]] = -1


class Structure(msgspec.Struct, frozen=True):
    """The objects in a stretch of an array's elements.

    ``starts[i]:ends[i]`` slices object ``i``; ``closed`` is the position of the bracket that ends
    the array, None when the stretch ends before it.
    """

    starts: np.ndarray
    ends: np.ndarray
    closed: int | None


def scan(text: bytes) -> Structure:
    """Find the complete objects of ``text``, which begins between two elements of an array."""
    brackets, change, _ = _brackets(text)
    depth = np.cumsum(change, dtype=np.int32)
    closing = np.flatnonzero(depth < 0)
    closed: int | None = None
    if len(closing):
        closed = int(brackets[closing[0]])
        brackets, change, depth = (part[: closing[0]] for part in (brackets, change, depth))
    ends = brackets[depth == 0] + 1
    opening = (depth == 1) & (change == 1)
    return Structure(starts=brackets[opening][: len(ends)], ends=ends, closed=closed)


def outermost(text: bytes, keys: np.ndarray) -> int | None:
    """Return the first position in ``keys`` at which a key of the first, outermost object begins.

    ``keys`` are ascending positions of quotes in ``text``; None where no key of that object begins
    at any of them.
    """
    brackets, change, quotes = _brackets(text)
    depth = np.cumsum(change, dtype=np.int32)
    closing = np.flatnonzero(depth <= 0)
    if len(closing):
        keys = keys[keys < brackets[closing[0]]]
    before = np.searchsorted(brackets, keys)
    at_depth = np.concatenate((np.zeros(1, dtype=np.int32), depth))[before]
    opens_string = np.searchsorted(quotes, keys) & 1 == 0
    found = keys[(at_depth == 1) & opens_string]
    return int(found[0]) if len(found) else None


def _brackets(text: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the brackets outside strings, the change of depth at each, and the strings' quotes."""
    data = np.frombuffer(text, dtype=np.uint8)
    depth_change = _BRACKETS[data]
    brackets = np.flatnonzero(depth_change)
    quotes = _unescaped_quotes(data)
    brackets = brackets[np.searchsorted(quotes, brackets) & 1 == 0]
    return brackets, depth_change[brackets], quotes


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
