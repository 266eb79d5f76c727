"""Reads XPlane files (``*.xplane.pb``) of TensorFlow's and JAX's profilers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import polars as pl

from traceana.errors import CorruptError, NotATraceError
from traceana.ingest.integrity import rebase, screen
from traceana.ingest.names import NameTable
from traceana.ingest.source import ByteSource, Progress
from traceana.ingest.xplane.activities import STREAM, activities
from traceana.ingest.xplane.events import (
    ALLOCATOR_STATS,
    DEVICE_STATS,
    HOST_STATS,
    EventColumns,
    LineEvents,
    PlaneEvents,
)
from traceana.ingest.xplane.facts import (
    device_number,
    devices,
    epoch_ns,
    facts,
    framework,
    gpu_number,
    is_device,
    process_id,
    producer,
)
from traceana.ingest.xplane.hlo import HloPrograms
from traceana.ingest.xplane.host import HostTables, derived_ranges
from traceana.ingest.xplane.space import Line, Plane, Space, read_space
from traceana.ingest.xplane.wire import Buffer, WireError
from traceana.trace import Ledger, Trace, TraceMeta
from traceana.trace.schema import ACTIVITIES, LABEL, TABLES, TIME_COLUMNS, conform

_STREAM: Final = re.compile(STREAM)
_OFF_ZERO: Final = 1
"""Added to all times until they are rebased: 0 is a valid time here, and a lost one elsewhere."""
_TIMED: Final = ("activities", "calls", "ops", "ranges")


_NOT_TEXT: Final = "warnings, errors and host names that are not UTF-8"
_BROKEN: Final = "lines and metadata that end within a field"
_UNKNOWN: Final = "fields that planes and lines do not have: what they hold is not read"


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of an XPlane file, plain or gzip.

    A truncated file is read up to its end; ``meta.truncated`` is set. Raises ``NotATraceError``
    on a file without planes and ``CorruptError`` on an invalid message.
    """
    try:
        return _Reading(ByteSource(path), progress).trace()
    except WireError as error:
        raise CorruptError(
            f"{path} is damaged or not an XPlane file ({error}): copy or record it again"
        ) from error


class _Reading:
    """The state of reading one file."""

    def __init__(self, source: ByteSource, progress: Progress) -> None:
        self._source = source
        self._progress = progress
        self._buffer = Buffer.of(source.blocks(), source.bytes_total)
        self._space = read_space(self._buffer)
        if not self._space.planes:
            raise NotATraceError(
                f"{source.path} is a protocol buffer without planes: "
                "pass the .xplane.pb of a profile"
            )
        self._ledger = Ledger()
        self._tables = Tables(HloPrograms(self._buffer, self._space, self._ledger), self._ledger)
        self._events = 0
        self._cut = self._space.cut or source.truncated

    def trace(self) -> Trace:
        """Return the Trace of all planes."""
        not_text = self._space.not_text
        self._ledger.add("damaged", not_text, table="-", kept=True, detail=_NOT_TEXT)
        for plane in self._space.planes:
            self._ledger.add("damaged", plane.broken, table="-", kept=True, detail=_BROKEN)
            self._ledger.add("damaged", plane.unknown, table="-", kept=True, detail=_UNKNOWN)
            if not is_device(plane):
                self._add(plane, plane.lines, (*HOST_STATS, *ALLOCATOR_STATS), "ranges")
                continue
            streams = [line for line in plane.lines if is_stream(plane, line)]
            others = [line for line in plane.lines if not is_stream(plane, line)]
            self._add(plane, streams, DEVICE_STATS, "activities")
            self._add(plane, others, (), "ranges")
        self._progress(self._buffer.size, self._buffer.size)
        if self._cut:
            self._ledger.add("truncated", 1, table="-", kept=True)
        # The file's bytes are freed before the tables are concatenated.
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
        add("damaged", events.unknown, table="-", kept=True, detail=_UNKNOWN)
        add("truncated", int(events.cut), table=table, detail="last event truncated")

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


def is_stream(plane: Plane, line: Line) -> bool:
    """Return whether a line is a GPU's stream, whose events are activities."""
    return gpu_number(plane) is not None and _STREAM.match(line.name) is not None


class Tables:
    """Collects the events of all planes in the canonical tables."""

    def __init__(self, hlo: HloPrograms, ledger: Ledger) -> None:
        self._hlo = hlo
        self._ledger = ledger
        self._parts: dict[str, list[pl.DataFrame]] = {name: [] for name in (*_TIMED, "memory")}

    def add(
        self,
        plane: Plane,
        lines: Sequence[Line],
        names: Sequence[str | None],
        blocks: Iterable[PlaneEvents],
    ) -> None:
        """Add the events of some lines of a plane: all of them streams, or none.

        The events' ``name`` indexes ``names``.
        """
        if not is_device(plane):
            host = HostTables(lines, names, process_id(plane), self._hlo)
            for events in blocks:
                for table, frame in host.of(events).items():
                    self._keep(table, frame)
            return
        number = gpu_number(plane)
        if number is None or not any(is_stream(plane, line) for line in lines):
            number = device_number(plane)
            for events in blocks:
                self._keep("ranges", derived_ranges(events, lines, names, number))
            return
        for events in blocks:
            self._keep("activities", activities(events, lines, names, number, self._hlo))

    def keep_ranges(self, ranges: pl.DataFrame) -> None:
        """Add ranges from outside the planes."""
        self._keep("ranges", ranges)

    def finish(self, space: Space) -> tuple[dict[str, pl.DataFrame], int]:
        """Return the tables and the first event's time on the file's clock.

        Call it last.
        """
        instructions = self._hlo.instructions()
        del self._hlo  # frees the bytes of the file
        tables = {name: self._screened(name) for name in _TIMED}
        names = NameTable(self._ledger)
        work = tables["activities"]
        named = work.with_columns(names.ids(work["name"]).alias("name_id"))
        tables["activities"] = named.drop("name")
        tables["memory"] = self._stacked("memory")
        tables, first_ns = rebase(
            {name: conform(name, each) for name, each in tables.items()}, self._ledger
        )
        tables["names"] = names.frame()
        tables["instructions"] = instructions
        tables["devices"] = devices(space, tables["activities"]["device"])
        tables["ledger"] = self._ledger.frame()
        return tables, first_ns - _OFF_ZERO

    def _keep(self, table: str, frame: pl.DataFrame) -> None:
        if not frame.height:
            return
        schema = _schema(table)
        self._parts[table].append(
            frame.cast({name: schema[name] for name in frame.columns}).with_columns(
                pl.col(name) + _OFF_ZERO for name in TIME_COLUMNS[table]
            )
        )

    def _screened(self, table: str) -> pl.DataFrame:
        frame = self._stacked(table)
        # Nested scopes of one name may begin and end together: they are not duplicates.
        return screen(frame, table, self._ledger, repeats=table == "ranges")

    def _stacked(self, table: str) -> pl.DataFrame:
        """Return the parts of a table concatenated, without the columns that no part has.

        Parts release each column once it is concatenated, so that one column at most is in memory
        twice.
        """
        schema, parts = _schema(table), self._parts.pop(table)
        heights = [part.height for part in parts]
        columns = [
            pl.concat(
                [
                    part.drop_in_place(name)
                    if name in part.columns
                    else pl.repeat(None, height, dtype=dtype, eager=True).alias(name)
                    for part, height in zip(parts, heights, strict=True)
                ],
                rechunk=True,
            )
            for name, dtype in schema.items()
            if any(name in part.columns for part in parts)
        ]
        return pl.DataFrame(columns) if parts else pl.DataFrame(schema=schema)


def _schema(table: str) -> dict[str, pl.DataType | type[pl.DataType]]:
    """Return the columns of a table; activities have ``name`` instead of ``name_id``."""
    if table != "activities":
        return TABLES[table]
    return {"name": LABEL} | {name: kind for name, kind in ACTIVITIES.items() if name != "name_id"}
