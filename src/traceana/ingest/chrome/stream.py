"""Reads the JSON document of a Chrome trace: the keys around ``traceEvents``, and the events.

The events are decoded stretch by stretch. A stretch is cut at the last ``}, {"`` of a block, and
the cut is proved by decoding: text that decodes as a sequence of events cannot end within one.
Where that fails (a bracket within a name, invalid JSON, the end of the array) the events are
separated by quotes and brackets alone. That needs no valid values, so an invalid event does not
affect its neighbours.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, TypedDict, TypeVar

import msgspec
import numpy as np

from traceana.errors import CorruptError, NotATraceError
from traceana.ingest.chrome.event_decoder import Counted, EventDecoder, UndecodableError
from traceana.ingest.chrome.repair import repair
from traceana.ingest.source import ByteSource
from traceana.trace import Ledger

Columns = TypeVar("Columns", bound=Counted)
Decoder = EventDecoder[Any, Columns]
_BOM: Final = b"\xef\xbb\xbf"
_KEY: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_SPACE_BRACKET: Final = re.compile(rb"\s*\[")
_HEAD_LIMIT: Final = 128 << 20
"""``traceEvents`` must begin within these bytes; the keys before it are some kilobytes."""
_SEAM: Final = re.compile(rb'\}\s*,\s*\{\s*"')
_EVENT_SEAM: Final = re.compile(rb'(?<=\})\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|ts)"\s*:)')
_SEAM_SEARCH: Final = 1 << 18
_STUCK: Final = 64 << 20
"""A larger event is a sign of a missing quote before it."""
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_BRACKETS: Final = np.zeros(256, dtype=np.int8)
"""Byte -> change of the nesting depth."""
_BRACKETS[[ord("{"), ord("[")]] = 1
_BRACKETS[[ord("}"), ord("]")]] = -1


class StreamEnd(msgspec.Struct, frozen=True):
    """The document's other keys, and how the file ended.

    ``bare``: the document is an array without an object around it. ``cut``: number of bytes of an
    incomplete event at the end of the file.
    """

    keys: dict[str, Any]
    bare: bool
    cut: int


def read_stream(
    source: ByteSource, decoder: Decoder[Columns], take: Callable[[Columns], None]
) -> StreamEnd:
    """Pass the columns of each stretch of ``traceEvents`` to ``take``; return the rest of the file.

    ``source.truncated`` is set where the document does not end. Raises ``NotATraceError`` on JSON
    without events and ``CorruptError`` where the file ends before the first.
    """
    blocks = source.blocks()
    try:
        head = read_head(blocks)
    except NoEventsError as error:
        raise _no_events(error, source) from error
    stream = EventStream(head.rest, blocks, decoder)
    with _collector_off():
        stream.columns(take)
    keys, whole = _end(head, stream)
    source.truncated |= not whole
    return StreamEnd({**head.keys, **keys}, head.bare, stream.cut)


def _no_events(error: NoEventsError, source: ByteSource) -> Exception:
    if error.complete and not source.truncated:
        return NotATraceError(
            f"{source.path} is JSON without traceEvents: pass the file that a profiler exported"
        )
    return CorruptError(
        f"{source.path} is truncated or invalid JSON before its first event: "
        "copy or record it again"
    )


def _end(head: Head, stream: EventStream[Columns]) -> tuple[dict[str, Any], bool]:
    if head.bare:
        # The Chrome format lets an array of events end without its bracket.
        return {}, stream.closed or not stream.cut
    return read_tail(stream.tail) if stream.closed else ({}, False)


@contextmanager
def _collector_off() -> Iterator[None]:
    # The structs have no cycles: a collection frees nothing, and would take most of the time.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def ledger_of(counted: Counted, source: ByteSource, end: StreamEnd) -> Ledger:
    """Return the ledger of the events that were left out, repaired, damaged or truncated."""
    ledger = Ledger()
    for (reason, detail), count in counted.left_out.items():
        ledger.add(reason, count, table="-", detail=detail or None)
    for name, count in counted.lost_fields.items():
        ledger.add("lost_field", count, table="-", kept=True, detail=name)
    ledger.add("repaired", counted.repaired, table="-", kept=True)
    if source.damaged:
        ledger.add("damaged", 1, table="-", kept=True)
    if end.cut:
        ledger.add("truncated", 1, table="-", detail="last event truncated")
    elif source.truncated:
        ledger.add("truncated", 1, table="-", kept=True)
    return ledger


class Extent(TypedDict):
    """Events and bytes of a file, and how many were read: fields of ``TraceMeta``."""

    source: str
    truncated: bool
    bytes_read: int
    bytes_total: int
    events: int


def extent(counted: Counted, source: ByteSource, end: StreamEnd) -> Extent:
    """Return the fields of ``TraceMeta`` that count events and bytes."""
    return {
        "source": str(source.path),
        "truncated": source.truncated,
        "bytes_read": source.bytes_read - (0 if source.compressed else end.cut),
        "bytes_total": source.bytes_total,
        "events": counted.events + int(end.cut > 0),
    }


class NoEventsError(Exception):
    """There is no ``traceEvents`` array; ``complete``: the JSON document is complete."""

    def __init__(self, complete: bool) -> None:
        super().__init__()
        self.complete = complete


class Head(msgspec.Struct, frozen=True):
    """The document up to its first event; ``rest`` is the text read beyond that point.

    ``bare``: an array of events without an object around it (torch 1.7).
    """

    keys: dict[str, Any]
    bare: bool
    rest: bytes


def read_head(blocks: Iterator[bytes]) -> Head:
    """Read up to the first event; raises :class:`NoEventsError`."""
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
        if _in_outermost_object(text[: key.start()]):
            return Head({}, bare=False, rest=text[key.end() :])
    return None


def _object(text: bytes) -> dict[str, Any] | None:
    for attempt in (text, repair(text)):
        try:
            return msgspec.json.decode(attempt, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return None


def _in_outermost_object(text: bytes) -> bool:
    # One more bracket completes exactly one object if that is all that is open.
    return len(scan(text.lstrip() + b"}").starts) == 1


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def read_tail(tail: bytes) -> tuple[dict[str, Any], bool]:
    """Return the keys after the events, and whether the document is complete.

    ``tail`` begins after the bracket that ended ``traceEvents``.
    """
    text = tail.strip()
    if text == b"}":
        return {}, True
    keys = _object(b'{"traceEvents":0' + text) if text.startswith(b",") else None
    if keys is None:
        return {}, False
    keys.pop("traceEvents", None)
    return keys, True


class EventStream(Generic[Columns]):
    """Decodes the events that follow a document's head.

    After :meth:`columns`, ``closed`` is whether the array ended, ``tail`` the text after it, and
    ``cut`` the number of bytes of an incomplete event at the end of the file.
    """

    def __init__(self, start: bytes, blocks: Iterator[bytes], decoder: Decoder[Columns]) -> None:
        self._buffer = start
        self._decoder = decoder
        self._blocks = blocks
        self.closed = False
        self.cut = 0
        self.tail = b""

    def columns(self, take: Callable[[Columns], None]) -> None:
        """Pass the columns of each stretch to ``take``."""
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

    def _by_structure(self) -> Columns:
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

    def _by_seams(self) -> Columns:
        *events, self._buffer = _EVENT_SEAM.split(self._buffer)
        if not events:
            events, self._buffer = [self._buffer], b""
        return self._decoder.decode_singly(events)


def _last_seam(text: bytes) -> int:
    """Return the position of the comma of the last ``}, {"`` near the end, 0 without one."""
    seams = list(_SEAM.finditer(text, max(0, len(text) - _SEAM_SEARCH)))
    return text.index(b",", seams[-1].start()) if seams else 0


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
    data = np.frombuffer(text, dtype=np.uint8)
    depth_change = _BRACKETS[data]
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
