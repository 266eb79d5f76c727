"""XPlane files (``*.xplane.pb``) of TensorFlow's and JAX's profilers to the canonical tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from traceana.errors import CorruptError, NotATraceError
from traceana.ingest.progress import Progress
from traceana.ingest.source import ByteSource
from traceana.ingest.xplane.buffer import Buffer
from traceana.ingest.xplane.columns import EventColumns
from traceana.ingest.xplane.devices import is_device
from traceana.ingest.xplane.events import LineEvents
from traceana.ingest.xplane.facts import epoch_ns, facts, framework, producer
from traceana.ingest.xplane.hlo import HloPrograms
from traceana.ingest.xplane.space import Line, Plane, read_space
from traceana.ingest.xplane.stats import OF_ALLOCATORS, OF_DEVICE_WORK, OF_HOST
from traceana.ingest.xplane.tables import Tables, is_stream
from traceana.ingest.xplane.wire import WireError
from traceana.trace import Ledger, Trace, TraceMeta


def read(path: Path, progress: Progress) -> Trace:
    """Read an XPlane file, plain or gzip.

    A file that ends in the middle is read up to there; ``meta.truncated`` says so. Raises
    ``NotATraceError`` on a file without planes and ``CorruptError`` where a message is none.
    """
    try:
        return _Reading(ByteSource(path), progress).trace()
    except WireError as error:
        raise CorruptError(
            f"{path} is no XPlane file, or damaged ({error}): copy or record it again"
        ) from error


class _Reading:
    """One file on its way into the tables."""

    def __init__(self, source: ByteSource, progress: Progress) -> None:
        self._source = source
        self._progress = progress
        self._buffer = Buffer.of(source.blocks(), source.bytes_total)
        self._space = read_space(self._buffer)
        if not self._space.planes:
            raise NotATraceError(
                f"{source.path} is a protocol buffer without planes: "
                "give the .xplane.pb of a profile"
            )
        self._ledger = Ledger()
        self._tables = Tables(HloPrograms(self._buffer, self._space), self._ledger)
        self._events = 0
        self._cut = self._space.cut or source.truncated

    def trace(self) -> Trace:
        """Read all planes."""
        for plane in self._space.planes:
            if not is_device(plane):
                self._add(plane, plane.lines, (*OF_HOST, *OF_ALLOCATORS), "ranges")
                continue
            streams = [line for line in plane.lines if is_stream(plane, line)]
            others = [line for line in plane.lines if not is_stream(plane, line)]
            self._add(plane, streams, OF_DEVICE_WORK, "activities")
            self._add(plane, others, (), "ranges")
        self._progress(self._buffer.size, self._buffer.size)
        if self._cut:
            self._ledger.add("truncated", 1, table="-", kept=True)
        # The tables are put together now, and the bytes are not needed beside them.
        del self._buffer
        tables, first_ns = self._tables.finish(self._space)
        return Trace(self._meta(first_ns), tables)

    def _add(
        self, plane: Plane, lines: Sequence[Line], wanted: tuple[str, ...], table: str
    ) -> None:
        if lines:
            events = LineEvents(self._buffer, plane, lines, wanted)
            self._tables.add(plane, lines, events.names, self._watched(events))
            self._count(events, plane, table)

    def _watched(self, events: LineEvents) -> Iterator[EventColumns]:
        for block in events:
            yield block
            self._progress(events.till, self._buffer.size)

    def _count(self, events: LineEvents, plane: Plane, table: str) -> None:
        self._events += events.events
        self._cut |= events.cut
        add = self._ledger.add
        add("malformed", events.damaged, table=table, detail=plane.name)
        add("aggregate", events.aggregates, table=table, detail=plane.name)
        add("rounded", events.rounded, table=table, kept=True, detail=plane.name)
        add("unnamed", events.unnamed, table=table, kept=True, detail=plane.name)
        add("truncated", int(events.cut), table=table, detail="an event is cut")

    def _meta(self, first_ns: int) -> TraceMeta:
        return TraceMeta(
            source=str(self._source.path),
            format="xplane",
            producer=producer(self._space),
            framework=framework(self._space),
            epoch_ns=epoch_ns(self._space, first_ns),
            truncated=self._cut,
            bytes_read=self._source.bytes_read,
            bytes_total=self._source.bytes_total,
            events=self._events,
            properties=facts(self._space),
        )
