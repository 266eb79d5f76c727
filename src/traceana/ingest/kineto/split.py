"""Cuts the stream of ``traceEvents`` into stretches of whole events and decodes them.

A cut is guessed at the last ``}, {"`` of the block and proved by decoding: text that decodes as a
sequence of events cannot end within one. Where that fails (a bracket within a name, invalid JSON,
the end of the array) the stretch is cut by its structure, event by event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

from traceana.ingest.kineto.structure import scan

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_SEAM: Final = re.compile(rb'\}\s*,\s*\{\s*"')
_EVENT_SEAM: Final = re.compile(rb'(?<=\})\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|ts)"\s*:)')
_SEAM_SEARCH: Final = 1 << 18
_STUCK: Final = 64 << 20
"""An event larger than this is none: a quote is missing somewhere before."""


class UndecodableError(Exception):
    """The text is not a sequence of whole, valid events."""


class Decoder(Protocol[T_co]):
    """What makes columns of events; see ``event_decoder.py``."""

    def decode(self, text: bytes) -> T_co:
        """Decode whole events separated by commas; raises :class:`UndecodableError`."""
        ...

    def decode_singly(self, texts: Sequence[bytes]) -> T_co:
        """Decode events one by one: mends what can be mended and counts what cannot."""
        ...


class EventStream(Generic[T]):
    """Decodes the events behind a document's head.

    After :meth:`columns`, ``closed`` tells whether the array ended, ``tail`` is what stands behind
    it, and ``cut`` how many bytes of a broken event stand at the end of the file.
    """

    def __init__(self, start: bytes, blocks: Iterator[bytes], decoder: Decoder[T]) -> None:
        self._buffer = start
        self._decoder = decoder
        self._blocks = blocks
        self.closed = False
        self.cut = 0
        self.tail = b""

    def columns(self, take: Callable[[T], None]) -> None:
        """Hand the columns of stretch after stretch to ``take``."""
        while not self.closed:
            self._buffer = self._buffer.lstrip(b", \t\r\n")
            cut = _last_seam(self._buffer)
            if cut:
                try:
                    take(self._decoder.decode(self._buffer[:cut]))
                    self._buffer = self._buffer[cut + 1 :]
                except UndecodableError:
                    take(self._by_structure())
            elif len(self._buffer) > _STUCK:
                take(self._by_structure())
            if self.closed:
                break
            block = next(self._blocks, None)
            if block is None:
                take(self._by_structure())
                break
            self._buffer += block
        if self.closed:
            self.tail = self._buffer + b"".join(self._blocks)
        else:
            self.cut = len(self._buffer.strip(b", \t\r\n"))

    def _by_structure(self) -> T:
        found = scan(self._buffer)
        text = self._buffer
        if not len(found.ends) and found.closed is None and len(text) > _STUCK:
            return self._by_seams()
        events = [text[a:b] for a, b in zip(found.starts, found.ends, strict=True)]
        try:
            columns = self._decoder.decode(b",".join(events))
        except UndecodableError:
            columns = self._decoder.decode_singly(events)
        if found.closed is not None:
            self.closed = True
            self._buffer = text[found.closed + 1 :]
        elif events:
            self._buffer = text[int(found.ends[-1]) :]
        return columns

    def _by_seams(self) -> T:
        *events, self._buffer = _EVENT_SEAM.split(self._buffer)
        if not events:
            events, self._buffer = [self._buffer], b""
        return self._decoder.decode_singly(events)


def _last_seam(text: bytes) -> int:
    """Return the position of the comma of the last ``}, {"``, 0 when there is none near the end."""
    seams = list(_SEAM.finditer(text, max(0, len(text) - _SEAM_SEARCH)))
    return text.index(b",", seams[-1].start()) if seams else 0
