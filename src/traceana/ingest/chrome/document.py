"""Reads the keys of a Chrome trace's document, before, between and after its arrays of events."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from traceana.files import UNDECODABLE
from traceana.ingest.chrome.structure import outermost

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
    """

    keys: dict[str, Any] | None
    rest: bytes | None
    oversized: bool = False


def read_head(blocks: Iterator[bytes]) -> Head:
    """Read up to the first event; raises :class:`NoEventsError`."""
    text, found = _until_array(b"", blocks)
    if (bare := text.lstrip()).startswith(b"["):
        return Head({}, bare=True, rest=bare[1:])
    if found is None:
        raise NoEventsError(complete=_is_json(text), oversized=next(blocks, None) is not None)
    return Head(_keys(text[: found.start()] + _INSTEAD + b"}"), False, text[found.end() :])


def read_tail(start: bytes, blocks: Iterator[bytes]) -> Tail:
    """Read up to the next array of events or to the end.

    ``start`` begins after the bracket that ended an array of events.
    """
    opening = b"{" + _INSTEAD
    text, found = _until_array(opening + start, blocks)
    if found is not None:
        return Tail(_keys(text[: found.start()] + _INSTEAD + b"}"), text[found.end() :])
    if text[len(opening) :].strip() == b"}":
        return Tail({}, None)
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
            if found := _array(text):
                return text, found
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
        from traceana.ingest.chrome.repair import repair

        keys = _decoded(repair(text))
    if keys is not None:
        keys.pop("traceEvents", None)
    return keys


def _decoded(text: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except UNDECODABLE:
        return None


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except UNDECODABLE:
        return False
    return True
