"""The JSON document around the events: finds ``traceEvents``, whatever stands around it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from traceana.ingest.kineto.repair import repair
from traceana.ingest.kineto.structure import scan

_BOM: Final = b"\xef\xbb\xbf"
_KEY: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_SPACE_BRACKET: Final = re.compile(rb"\s*\[")
_HEAD_LIMIT: Final = 128 << 20
"""Bytes in which ``traceEvents`` must begin; the keys that come before it are some kilobytes."""


class NoEventsError(Exception):
    """There is no ``traceEvents`` array; ``complete`` tells whether the JSON was whole."""

    def __init__(self, complete: bool) -> None:
        super().__init__()
        self.complete = complete


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the first event.

    ``bare`` documents are an array of events without an object around it (torch 1.7).
    """

    keys: dict[str, Any]
    bare: bool
    rest: bytes


def read_head(blocks: Iterator[bytes]) -> Head:
    """Read up to the first event; ``rest`` is what was read beyond that point.

    Raises :class:`NoEventsError`.
    """
    text = b""
    for block in blocks:
        text = (text + block).removeprefix(_BOM) if not text else text + block
        if bracket := _SPACE_BRACKET.match(text):
            return Head({}, bare=True, rest=text[bracket.end() :])
        if (head := _find(text)) is not None:
            return head
        if len(text) > _HEAD_LIMIT:
            break
    raise NoEventsError(complete=_is_json(text))


def _find(text: bytes) -> Head | None:
    for key in _KEY.finditer(text):
        keys = _object(text[: key.start()] + b'"traceEvents":0}')
        if keys is not None:
            keys.pop("traceEvents", None)
            return Head(keys, bare=False, rest=text[key.end() :])
        if _depth(text[: key.start()]) == 1:
            return Head({}, bare=False, rest=text[key.end() :])
    return None


def _object(text: bytes) -> dict[str, Any] | None:
    for attempt in (text, repair(text)):
        try:
            return msgspec.json.decode(attempt, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return None


def _depth(text: bytes) -> int:
    """Return how many brackets are open at the end of ``text``, 0 within a string."""
    # Closing what might be open as objects must complete exactly one.
    closed = scan(text.lstrip() + b"}")
    return 1 if len(closed.starts) == 1 else 0


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def read_tail(tail: bytes) -> tuple[dict[str, Any], bool]:
    """Return the keys that stand behind the events, and whether the document is whole.

    ``tail`` begins behind the bracket that ended ``traceEvents``.
    """
    text = tail.strip()
    if text == b"}":
        return {}, True
    keys = _object(b'{"traceEvents":0' + text) if text.startswith(b",") else None
    if keys is None:
        return {}, False
    keys.pop("traceEvents", None)
    return keys, True
