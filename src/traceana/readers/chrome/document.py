"""The text of a Chrome trace's document: its keys around the arrays of events, and invalid JSON.

:func:`scan` finds objects, and :func:`outermost` keys, by quotes and brackets alone. That needs no
valid values, and takes time and memory in proportion to the text.

:func:`repair` repairs the invalid JSON that some exporters write: ``NaN``, ``Infinity`` and ``N/A``
as bare values; raw control characters and single backslashes (Windows paths, C++ literals) inside
strings; bytes that are not UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from traceana.files import UNDECODABLE

LARGEST: Final = 16 << 20
"""Bytes of an event, or of the keys around the events, that are read. Keys take some kilobytes, and
an event with all its shapes some hundred; a larger one is a sign of a missing quote before it."""
_BOM: Final = b"\xef\xbb\xbf"
_KEY: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_INSTEAD: Final = b'"traceEvents":0'
"""Stands for an array that has been read, where the keys around it are decoded."""


class NoEventsError(Exception):
    """There is no ``traceEvents`` array.

    ``complete``: the JSON document is complete. ``oversized``: only its first :data:`LARGEST` bytes
    were searched.
    """

    def __init__(self, *, complete: bool, oversized: bool) -> None:
        super().__init__()
        self.complete = complete
        self.oversized = oversized


class Head(msgspec.Struct, frozen=True):
    """The document up to its first event; ``rest`` is the text read beyond that point.

    ``keys`` is None where they cannot be decoded. ``bare``: an array of events without an object
    around it (torch 1.7).
    """

    keys: dict[str, Any] | None
    bare: bool
    rest: bytes


class Tail(msgspec.Struct, frozen=True):
    """The document after an array of events, up to the next or to its end.

    ``keys`` is None where they cannot be decoded. ``rest`` is the text after the bracket of another
    array of events, None at the end. ``oversized``: more than :data:`LARGEST` bytes were left.
    ``behind``: there is text behind the document, as where several traces were concatenated.
    """

    keys: dict[str, Any] | None
    rest: bytes | None
    oversized: bool = False
    behind: bool = False


def read_head(blocks: Iterator[bytes]) -> Head:
    """Read up to the first event; raises :class:`NoEventsError`."""
    text, array = _until_array(b"", blocks)
    if (bare := text.lstrip()).startswith(b"["):
        return Head({}, bare=True, rest=bare[1:])
    if array is None:
        try:
            msgspec.json.decode(text)
            is_complete = True
        except UNDECODABLE:
            is_complete = False
        raise NoEventsError(complete=is_complete, oversized=next(blocks, None) is not None)
    return Head(_keys(text[: array.start()] + _INSTEAD + b"}"), False, text[array.end() :])


def read_tail(start: bytes, blocks: Iterator[bytes]) -> Tail:
    """Read up to the next array of events or to the end.

    ``start`` begins after the bracket that ended an array of events.
    """
    opening = b"{" + _INSTEAD
    text, array = _until_array(opening + start, blocks)
    if array is not None:
        return Tail(_keys(text[: array.start()] + _INSTEAD + b"}"), text[array.end() :])
    if text[len(opening) :].strip() == b"}":
        return Tail({}, None)
    brackets, change, _ = _brackets(text)
    closing = np.flatnonzero(np.cumsum(change, dtype=np.int32) <= 0)
    if len(closing):
        end = int(brackets[closing[0]]) + 1
        if text[end:].strip() or next(blocks, None) is not None:
            return Tail(_keys(text[:end]), None, behind=True)
    if next(blocks, None) is not None:
        return Tail(None, None, oversized=True)
    return Tail(_keys(text) if text[len(opening) :].lstrip().startswith(b",") else None, None)


def _until_array(text: bytes, blocks: Iterator[bytes]) -> tuple[bytes, re.Match[bytes] | None]:
    """Return the text so far, and the first array of events in its outermost object.

    Without one, the text is all that is left, or somewhat more than :data:`LARGEST`.
    """
    searched = 0
    for block in blocks:
        text = text + block if text else block.removeprefix(_BOM)
        if text[:1] == b"[" or text.lstrip().startswith(b"["):
            return text, None
        # Searching only when the text has doubled takes linear time.
        if len(text) >= 2 * searched:
            searched = len(text)
            if array := _array(text):
                return text, array
        if len(text) > LARGEST:
            break
    return text, _array(text)


def _array(text: bytes) -> re.Match[bytes] | None:
    keys = np.array([key.start() for key in _KEY.finditer(text)], dtype=np.int64)
    position = outermost(text, keys) if len(keys) else None
    return None if position is None else _KEY.match(text, position)


def _keys(text: bytes) -> dict[str, Any] | None:
    keys = _decoded(text)
    if keys is None:
        keys = _decoded(repair(text))
    if keys is not None:
        keys.pop("traceEvents", None)
    return keys


def _decoded(text: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except UNDECODABLE:
        return None


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
    outer = keys[(at_depth == 1) & opens_string]
    return int(outer[0]) if len(outer) else None


def _brackets(text: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the brackets outside strings, the change of depth at each, and the strings' quotes."""
    data = np.frombuffer(text, dtype=np.uint8)
    depth_change = _BRACKETS[data]
    brackets = np.flatnonzero(depth_change)
    quotes = np.flatnonzero(data == _QUOTE)
    slashes = np.flatnonzero(data == _BACKSLASH)
    if len(slashes):
        # A character is escaped when the run of backslashes before it is of odd length.
        breaks = np.flatnonzero(np.diff(slashes) > 1)
        first = slashes[np.concatenate(([0], breaks + 1))]
        last = slashes[np.concatenate((breaks, [len(slashes) - 1]))]
        escaped = last[(last - first) % 2 == 0] + 1
        quotes = np.setdiff1d(quotes, escaped, assume_unique=True)
    brackets = brackets[np.searchsorted(quotes, brackets) & 1 == 0]
    return brackets, depth_change[brackets], quotes


# Possessive: without a way back, a string of megabytes is matched in stretches, not by letters.
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NO_NUMBER: Final = re.compile(rb"-?\b(?:NaN|nan|Infinity|inf|N/A)\b")
_SOUND_ESCAPES: Final = re.compile(rb'(?:[^\\]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
_BAD_ESCAPE: Final = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)', re.DOTALL)
_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_PAIR: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")


def repair(text: bytes) -> bytes:
    """Return ``text`` with bare non-numbers as null and its strings made valid JSON strings."""
    if b"\\" not in text and text.isascii():
        # Without escapes, every second piece between quotes is a string.
        pieces = text.split(b'"')
        has_control = _CONTROL.search(b'"'.join(pieces[1::2]))
        has_no_number = _NO_NUMBER.search(b'"'.join(pieces[::2]))
        if len(pieces) % 2 == 1 and not has_control and not has_no_number:
            return text
    parts: list[bytes] = []
    position = 0
    for string in _STRING.finditer(text):
        parts.append(_NO_NUMBER.sub(b"null", text[position : string.start()]))
        parts.append(_repair_string(string.group()))
        position = string.end()
    parts.append(_NO_NUMBER.sub(b"null", text[position:]))
    return b"".join(parts)


def _repair_string(string: bytes) -> bytes:
    if b"\\" in string:
        if not _SOUND_ESCAPES.fullmatch(string):
            string = _BAD_ESCAPE.sub(lambda m: m.group() if m.group(1) else rb"\\", string)
        if _SURROGATE.search(string):
            # Surrogates that are no pair become U+FFFD.
            parts: list[bytes] = []
            position = 0
            for pair in _PAIR.finditer(string):
                before = string[position : pair.start()]
                parts += [_SURROGATE.sub(rb"\\ufffd", before), pair.group()]
                position = pair.end()
            parts.append(_SURROGATE.sub(rb"\\ufffd", string[position:]))
            string = b"".join(parts)
    string = _CONTROL.sub(lambda m: b"\\u%04x" % m.group()[0], string)
    try:
        string.decode("utf-8")
    except UnicodeDecodeError:
        string = string.decode("utf-8", "replace").encode()
    return string
