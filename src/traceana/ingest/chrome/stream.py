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
from itertools import chain
from typing import Any, Final, Generic, TypedDict, TypeVar

import msgspec

from traceana.errors import CorruptError, NotATraceError
from traceana.ingest.chrome.document import LARGEST, NoEventsError, read_head, read_tail
from traceana.ingest.chrome.event_decoder import Counted, EventDecoder, UndecodableError
from traceana.ingest.chrome.structure import Structure, scan
from traceana.ingest.source import ByteSource
from traceana.trace import Ledger

Columns = TypeVar("Columns", bound=Counted)
Decoder = EventDecoder[Any, Columns]
_SEAM: Final = re.compile(rb'\}\s*,\s*\{\s*"')
_EVENT_SEAM: Final = re.compile(rb'(?<=\})\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|ts)"\s*:)')
_SEAM_SEARCH: Final = 1 << 18
_LONGEST_SEAM: Final = 1 << 10
"""Bytes in which a seam lies, white space included."""


class Document(msgspec.Struct):
    """The document's keys other than its events, and how the file ended.

    ``bare``: the document is an array without an object around it. ``whole``: the document ends.
    ``cut``: number of bytes of an incomplete event at the end of the file. ``problems`` counts
    what is wrong around the events, by reason and detail in the ledger.
    """

    keys: dict[str, Any]
    bare: bool
    whole: bool = False
    cut: int = 0
    problems: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)

    def count(self, reason: str, detail: str) -> None:
        """Count one problem around the events."""
        self.problems[reason, detail] = self.problems.get((reason, detail), 0) + 1

    def add(self, keys: dict[str, Any] | None) -> None:
        """Add keys, None where they cannot be decoded."""
        if keys is None:
            self.count("malformed", "keys beside traceEvents")
        self.keys |= keys or {}


def read_stream(
    source: ByteSource, decoder: Decoder[Columns], take: Callable[[Columns], None]
) -> Document:
    """Pass the columns of each stretch of ``traceEvents`` to ``take``; return the rest of the file.

    ``source.truncated`` is set where the document does not end. Raises ``NotATraceError`` on JSON
    without events and ``CorruptError`` where the file ends before the first.
    """
    try:
        document = read_document(source.blocks(), decoder, take)
    except NoEventsError as error:
        raise _no_events(error, source) from error
    source.truncated |= not document.whole
    return document


def read_document(
    blocks: Iterator[bytes], decoder: Decoder[Columns], take: Callable[[Columns], None]
) -> Document:
    """Pass the columns of each stretch of ``traceEvents`` to ``take``; return the rest of the text.

    Of several arrays ``traceEvents`` all are read. Raises :class:`NoEventsError`.
    """
    head = read_head(blocks)
    document = Document({}, head.bare)
    document.add(head.keys)
    rest: bytes | None = head.rest
    while rest is not None:
        stream = EventStream(rest, blocks, decoder)
        with _collector_off():
            stream.columns(take)
        document.cut = stream.cut
        if not stream.closed:
            return document
        if head.bare:
            document.whole = True
            if any(part.strip() for part in chain([stream.rest], blocks)):
                document.count("malformed", "text after the events")
            return document
        tail = read_tail(stream.rest, blocks)
        rest = tail.rest
        if rest is not None:
            document.count("repaired", "another traceEvents")
            document.add(tail.keys)
        elif tail.oversized:
            document.whole = True
            document.count("oversized", "keys after the events")
        else:
            document.whole = tail.keys is not None
            document.keys |= tail.keys or {}
    return document


def _no_events(error: NoEventsError, source: ByteSource) -> Exception:
    if error.oversized:
        return NotATraceError(
            f"{source.path} has no traceEvents in its first {LARGEST >> 20} MiB: "
            "pass the file that a profiler exported"
        )
    if error.complete and not source.truncated:
        return NotATraceError(
            f"{source.path} is JSON without traceEvents: pass the file that a profiler exported"
        )
    return CorruptError(
        f"{source.path} is truncated or invalid JSON before its first event: "
        "copy or record it again"
    )


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


def ledger_of(counted: Counted, source: ByteSource, end: Document) -> Ledger:
    """Return the ledger of the events that were left out, repaired, damaged or truncated."""
    ledger = Ledger()
    for (reason, detail), count in counted.left_out.items():
        ledger.add(reason, count, table="-", detail=detail or None)
    for name, count in counted.lost_fields.items():
        ledger.add("lost_field", count, table="-", kept=True, detail=name)
    ledger.add("repaired", counted.repaired, table="-", kept=True)
    for (reason, detail), count in end.problems.items():
        ledger.add(reason, count, table="-", kept=True, detail=detail)
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


def extent(counted: Counted, source: ByteSource, end: Document) -> Extent:
    """Return the fields of ``TraceMeta`` that count events and bytes."""
    return {
        "source": str(source.path),
        "truncated": source.truncated,
        "bytes_read": source.bytes_read - (0 if source.compressed else end.cut),
        "bytes_total": source.bytes_total,
        "events": counted.events + int(end.cut > 0),
    }


class EventStream(Generic[Columns]):
    """Decodes the events that follow the bracket of an array.

    After :meth:`columns`, ``closed`` is whether the array ended, ``rest`` the text after it, and
    ``cut`` the number of bytes of an incomplete event at the end of the file.
    """

    def __init__(self, start: bytes, blocks: Iterator[bytes], decoder: Decoder[Columns]) -> None:
        self._buffer = start
        self._decoder = decoder
        self._blocks = blocks
        self._skipping = False
        self.closed = False
        self.cut = 0

    @property
    def rest(self) -> bytes:
        """The text that has been read beyond the events."""
        return self._buffer

    def columns(self, take: Callable[[Columns], None]) -> None:
        """Pass the columns of each stretch to ``take``."""
        while not self.closed:
            self._skip()
            self._buffer = self._buffer.lstrip(b", \t\r\n")
            cut = _last_seam(self._buffer)
            if cut:
                try:
                    take(self._decoder.decode(self._buffer[:cut]))
                    self._buffer = self._buffer[cut + 1 :]
                except UndecodableError:
                    take(self._by_structure())
            elif len(self._buffer) > LARGEST:
                take(self._by_structure())
            if self.closed:
                return
            block = next(self._blocks, None)
            if block is None:
                break
            self._buffer += block
        if not self._skipping:
            take(self._by_structure())
        if not self.closed:
            self.cut = len(self._buffer.strip(b", \t\r\n"))

    def _by_structure(self) -> Columns:
        found = scan(self._buffer)
        text = self._buffer
        if not len(found.ends) and found.closed is None and len(text) > LARGEST:
            return self._by_seams()
        events = [text[a:b] for a, b in zip(found.starts, found.ends, strict=True)]
        try:
            columns = self._decoder.decode(b",".join(events))
        except UndecodableError:
            columns = self._decoder.decode_singly(events)
        _count_gaps(text, found, columns)
        if found.closed is not None:
            self.closed = True
            self._buffer = text[found.closed + 1 :]
        elif events:
            self._buffer = text[int(found.ends[-1]) :]
        return columns

    def _by_seams(self) -> Columns:
        *events, self._buffer = _EVENT_SEAM.split(self._buffer)
        columns = self._decoder.decode_singly(events)
        if not events:
            self._skipping = True
            columns.events += 1
            columns.count("oversized", "", 1)
        return columns

    def _skip(self) -> None:
        """Discard the rest of an event that is too large, up to the next event."""
        if not self._skipping:
            return
        if seam := _EVENT_SEAM.search(self._buffer):
            self._skipping = False
            self._buffer = self._buffer[seam.end() :]
        else:
            self._buffer = self._buffer[-_LONGEST_SEAM:]


def _count_gaps(text: bytes, found: Structure, columns: Counted) -> None:
    """Count what stands between the events of ``text`` beside one comma."""
    ends = [0, *found.ends.tolist()]
    starts = found.starts.tolist()
    if found.closed is not None:
        starts.append(found.closed)
    for i, (end, start) in enumerate(zip(ends, starts, strict=False)):
        gap = text[end:start].strip()
        if gap == b"," or (not gap and (i == 0 or start == found.closed)):
            continue
        if gap.strip(b", \t\r\n"):
            columns.events += 1
            columns.count("malformed", "", 1)
        else:
            columns.repaired += 1


def _last_seam(text: bytes) -> int:
    """Return the position of the comma of the last ``}, {"`` near the end, 0 without one."""
    seams = list(_SEAM.finditer(text, max(0, len(text) - _SEAM_SEARCH)))
    return text.index(b",", seams[-1].start()) if seams else 0
