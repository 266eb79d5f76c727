"""Reads a Chrome trace file's document from its first byte to its last."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from traceana.errors import CorruptError, NotATraceError
from traceana.ingest.kineto.document import Head, NoEventsError, read_head, read_tail
from traceana.ingest.kineto.event_decoder import Counted
from traceana.ingest.kineto.split import Decoder, EventStream, T
from traceana.ingest.source import ByteSource
from traceana.trace import Ledger


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """What stands around the events: the document's other keys, and how the file ended.

    ``bare``: the document is an array without an object around it. ``cut``: bytes of a broken
    event at the end of the file.
    """

    keys: dict[str, Any]
    bare: bool
    cut: int


def read_stream(source: ByteSource, decoder: Decoder[T], take: Callable[[T], None]) -> StreamEnd:
    """Hand the columns of stretch after stretch of ``traceEvents`` to ``take``.

    ``source.truncated`` is set where the document does not end. Raises ``NotATraceError`` on JSON
    without events and ``CorruptError`` when the file breaks off before the first.
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


def ledger_of(counted: Counted, source: ByteSource, end: StreamEnd) -> Ledger:
    """Return the ledger of what was left out, mended, damaged or cut while the file was read."""
    ledger = Ledger()
    for (reason, detail), count in counted.left_out.items():
        ledger.add(reason, count, table="-", detail=detail or None)
    for name, count in counted.lost_fields.items():
        ledger.add("lost_field", count, table="-", kept=True, detail=name)
    ledger.add("repaired", counted.repaired, table="-", kept=True)
    if source.damaged:
        ledger.add("damaged", 1, table="-", kept=True)
    if end.cut:
        ledger.add("truncated", 1, table="-", detail="an event is cut")
    elif source.truncated:
        ledger.add("truncated", 1, table="-", kept=True)
    return ledger


def _no_events(error: NoEventsError, source: ByteSource) -> Exception:
    if error.complete and not source.truncated:
        return NotATraceError(
            f"{source.path} is JSON without traceEvents: give the file that a profiler exported"
        )
    return CorruptError(
        f"{source.path} breaks off or is no JSON before its first event: copy or record it again"
    )


def _end(head: Head, stream: EventStream[T]) -> tuple[dict[str, Any], bool]:
    if head.bare:
        # The Chrome format lets an array of events end without its bracket.
        return {}, stream.closed or not stream.cut
    return read_tail(stream.tail) if stream.closed else ({}, False)


@contextmanager
def _collector_off() -> Iterator[None]:
    # Millions of short-lived structs: the collector finds nothing and takes most of the time.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
