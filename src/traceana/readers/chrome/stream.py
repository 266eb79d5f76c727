"""Reads the JSON document of a Chrome trace: the keys around ``traceEvents``, and the events.

The events are decoded stretch by stretch. A stretch is cut at the last ``}, {"`` of a block, and
the cut is proved by decoding: text that decodes as a sequence of events cannot end within one.
Where that fails (a bracket within a name, invalid JSON, the end of the array) the events are
separated by quotes and brackets alone. That needs no valid values, so an invalid event does not
affect its neighbours.

A decoder that leaves Python's lock decodes a stretch while the next one is read, or inflated.
Columns are taken in the order of the file; where a stretch cannot be decoded, the reading goes back
to it, so that the result is that of decoding one by one.
"""

from __future__ import annotations

import gc
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, Final, Generic, NamedTuple, TypedDict, TypeVar

import msgspec

from traceana.errors import CorruptError, NotATraceError
from traceana.readers.chrome import NO_EVENTS
from traceana.readers.chrome.document import (
    LARGEST,
    NoEventsError,
    read_head,
    read_tail,
    scan,
)
from traceana.readers.chrome.event_decoder import Counted, EventDecoder, UndecodableError
from traceana.readers.source import ByteSource
from traceana.trace import Ledger

Columns = TypeVar("Columns", bound=Counted)
Decoder = EventDecoder[Any, Columns]
_SEAM: Final = re.compile(rb'\}\s*,\s*\{\s*["}]')
_EVENT_SEAM: Final = re.compile(rb'(?<=\})\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|ts)"\s*:)')
_SEAM_SEARCH: Final = (1 << 12, 1 << 18)
"""Bytes before the end of a block in which its last seam is searched, one after the other."""
_BETWEEN: Final = b", \t\r\n"
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
        document = read_document(source.blocks(decoder.block), decoder, take)
    except NoEventsError as error:
        if error.oversized:
            raise NotATraceError(
                f"{source.path} has no traceEvents in its first {LARGEST >> 20} MiB: "
                "pass the file that a profiler exported"
            ) from error
        if error.complete and not source.truncated:
            raise NotATraceError(f"{source.path} {NO_EVENTS}") from error
        raise CorruptError(
            f"{source.path} is truncated or invalid JSON before its first event: "
            "copy or record it again"
        ) from error
    source.truncated |= not document.whole
    return document


def read_document(
    blocks: Iterator[bytes], decoder: Decoder[Columns], take: Callable[[Columns], None]
) -> Document:
    """Pass the columns of each stretch of ``traceEvents`` to ``take``; return the rest of the text.

    Of several arrays ``traceEvents`` all are read. Raises :class:`NoEventsError`.
    """
    blocks = _Blocks(blocks)
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
            document.whole = stream.ends_in_skipped
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
            if tail.behind:
                document.count("malformed", "text after the trace")
            document.whole = tail.keys is not None
            document.keys |= tail.keys or {}
    return document


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
        time_ns = counted.left_out_ns.get((reason, detail))
        ledger.add(reason, count, table="-", time_ns=time_ns, detail=detail or None)
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


class _Blocks(Iterator[bytes]):
    """Blocks of a file, which can be put back."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks

    def __next__(self) -> bytes:
        return next(self._blocks)

    def put_back(self, blocks: list[bytes]) -> None:
        """Let ``blocks`` be the next ones."""
        self._blocks = chain(blocks, self._blocks)


class _Pending(NamedTuple, Generic[Columns]):
    """A stretch that is being decoded: the buffer that it begins, its columns, later blocks."""

    buffer: bytes
    decoded: Callable[[], Columns]
    later: list[bytes]


class EventStream(Generic[Columns]):
    """Decodes the events that follow the bracket of an array.

    After :meth:`columns`, ``closed`` is whether the array ended, ``rest`` the text after it, and
    ``cut`` the number of bytes of an incomplete event at the end of the file.
    """

    def __init__(self, start: bytes, blocks: _Blocks, decoder: Decoder[Columns]) -> None:
        self._buffer = start
        self._decoder = decoder
        self._blocks = blocks
        self._pending: deque[_Pending[Columns]] = deque()
        self._skipping = False
        self.closed = False
        self.cut = 0

    @property
    def rest(self) -> bytes:
        """The text that has been read beyond the events."""
        return self._buffer

    def columns(self, take: Callable[[Columns], None]) -> None:
        """Pass the columns of each stretch to ``take``."""
        threads = self._decoder.threads
        with ThreadPoolExecutor(max(threads, 1), thread_name_prefix="traceana-json") as pool:
            while not self.closed:
                self._skip()
                if self._buffer[:1] in _BETWEEN:
                    self._buffer = self._buffer.lstrip(_BETWEEN)
                cut = _last_seam(self._buffer)
                if cut:
                    self._begin(cut, pool)
                    self._finish(take, threads)
                elif len(self._buffer) > LARGEST and self._finish(take, 0):
                    take(self._decode_by_structure())
                if self.closed or not self._read(take):
                    break
        if self.closed:
            return
        if not self._skipping:
            take(self._decode_by_structure())
        if not (self.closed or self.ends_in_skipped):
            self.cut = len(self._buffer.strip(_BETWEEN))

    @property
    def ends_in_skipped(self) -> bool:
        """Whether the last event is too large, and the file ends behind it."""
        return self._skipping and self._buffer.rstrip().endswith((b"]", b"}"))

    def _begin(self, cut: int, pool: ThreadPoolExecutor) -> None:
        """Begin to decode the events before the comma at ``cut``."""
        work = partial(self._decoder.decode, self._buffer, cut)
        decoded = pool.submit(work).result if self._decoder.threads else work
        self._pending.append(_Pending(self._buffer, decoded, []))
        self._buffer = self._buffer[cut + 1 :].lstrip(_BETWEEN)

    def _finish(self, take: Callable[[Columns], None], most: int) -> bool:
        """Take what has been decoded, until at most ``most`` stretches are left.

        Returns False where a stretch could not be decoded: it has been read by structure, and what
        follows it will be read again.
        """
        while len(self._pending) > most:
            stretch = self._pending.popleft()
            try:
                take(stretch.decoded())
            except UndecodableError:
                self._pending.clear()
                self._blocks.put_back(stretch.later)
                self._buffer = stretch.buffer
                take(self._decode_by_structure())
                return False
        return True

    def _read(self, take: Callable[[Columns], None]) -> bool:
        """Read another block; return whether there is one, and the array goes on."""
        block = next(self._blocks, None)
        if block is None and not self._finish(take, 0) and not self.closed:
            block = next(self._blocks, None)
        if block is None:
            return False
        for stretch in self._pending:
            stretch.later.append(block)
        self._buffer += block
        return True

    def _decode_by_structure(self) -> Columns:
        """Return the columns of the events that quotes and brackets separate in the buffer."""
        structure = scan(self._buffer)
        text = self._buffer
        if not len(structure.ends) and structure.closed is None and len(text) > LARGEST:
            return self._decode_by_seams()
        events = [text[a:b] for a, b in zip(structure.starts, structure.ends, strict=True)]
        try:
            columns = self._decoder.decode(b",".join(events))
        except UndecodableError:
            columns = self._decoder.decode_singly(events)
        # Text between events other than a comma: malformed events, and repaired commas.
        ends = [0, *structure.ends.tolist()]
        starts = structure.starts.tolist()
        if structure.closed is not None:
            starts.append(structure.closed)
        for i, (end, start) in enumerate(zip(ends, starts, strict=False)):
            gap = text[end:start].strip()
            if gap == b"," or (not gap and (i == 0 or start == structure.closed)):
                continue
            if gap.strip(b", \t\r\n"):
                columns.events += 1
                columns.count("malformed", "", 1)
            else:
                columns.repaired += 1
        if structure.closed is not None:
            self.closed = True
            self._buffer = text[structure.closed + 1 :]
        elif events:
            self._buffer = text[int(structure.ends[-1]) :]
        return columns

    def _decode_by_seams(self) -> Columns:
        """Return the columns of the events between seams: brackets are unbalanced."""
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


def _last_seam(text: bytes) -> int:
    """Return the position of the comma of the last ``}, {"`` near the end, 0 without one."""
    for search in _SEAM_SEARCH:
        seams = list(_SEAM.finditer(text, max(0, len(text) - search)))
        if seams:
            return text.index(b",", seams[-1].start())
    return 0
