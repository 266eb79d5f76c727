"""XPlane files (``*.xplane.pb``) of TensorFlow's and JAX's profilers to the canonical tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import polars as pl

from traceana.errors import CorruptError, NotATraceError
from traceana.ingest.integrity import screen
from traceana.ingest.names import NameTable
from traceana.ingest.progress import Progress
from traceana.ingest.rebase import rebase
from traceana.ingest.source import ByteSource
from traceana.ingest.xplane import activities, host
from traceana.ingest.xplane.annotations import annotations
from traceana.ingest.xplane.buffer import Buffer
from traceana.ingest.xplane.columns import EventColumns
from traceana.ingest.xplane.devices import device_number, devices, gpu_number, is_device
from traceana.ingest.xplane.events import read_events
from traceana.ingest.xplane.facts import epoch_ns, facts, framework, process_id, producer
from traceana.ingest.xplane.hlo import HloScopes
from traceana.ingest.xplane.space import Line, Plane, Space, read_space
from traceana.ingest.xplane.wire import WireError
from traceana.trace import Ledger, Trace, TraceMeta
from traceana.trace.schema import conform, empty

_STREAM: Final = re.compile(activities.STREAM)
_TIMED: Final = ("activities", "calls", "ops", "ranges")


def read(path: Path, progress: Progress) -> Trace:
    """Read an XPlane file, plain or gzip.

    A file that ends in the middle is read up to there; ``meta.truncated`` says so. Raises
    ``NotATraceError`` on a file without planes and ``CorruptError`` where a message is none.
    """
    source = ByteSource(path)
    buffer = Buffer.of(source.blocks(), source.bytes_total)
    try:
        space = read_space(buffer)
        if not space.planes:
            raise NotATraceError(
                f"{path} is a protocol buffer without planes: give the .xplane.pb of a profile"
            )
        return _Reading(buffer, space, source, progress).trace()
    except WireError as error:
        raise CorruptError(
            f"{path} is no XPlane file, or damaged ({error}): copy or record it again"
        ) from error


class _Reading:
    """One file on its way into the tables."""

    def __init__(
        self, buffer: Buffer, space: Space, source: ByteSource, progress: Progress
    ) -> None:
        self._buffer = buffer
        self._space = space
        self._source = source
        self._progress = progress
        self._hlo = HloScopes(buffer, space)
        self._ledger = Ledger()
        self._parts: dict[str, list[pl.DataFrame]] = {name: [] for name in (*_TIMED, "memory")}
        self._events = 0
        self._cut = space.cut or source.truncated

    def trace(self) -> Trace:
        """Read all planes."""
        for plane in self._space.planes:
            if plane.lines:
                self._plane(plane)
        self._progress(self._buffer.size, self._buffer.size)
        if self._cut:
            self._ledger.add("truncated", 1, table="-", kept=True)
        tables = {name: screen(self._frame(name), name, self._ledger) for name in _TIMED}
        tables["memory"] = self._frame("memory")
        tables, first_ns = rebase(tables)
        names = NameTable()
        work = tables["activities"]
        tables["activities"] = work.with_columns(names.ids(work["name"]).alias("name_id")).drop(
            "name"
        )
        tables["names"] = names.frame()
        tables["devices"] = devices(self._space, tables["activities"]["device"])
        tables["ledger"] = self._ledger.frame()
        return Trace(self._meta(tables, first_ns), tables)

    def _frame(self, table: str) -> pl.DataFrame:
        parts = [part for part in self._parts[table] if part.height]
        if parts:
            return pl.concat(parts)
        frame = empty(table)
        return frame.with_columns(pl.lit(None, pl.Categorical()).alias("name")) if (
            table == "activities"
        ) else frame

    def _plane(self, plane: Plane) -> None:
        if not is_device(plane):
            columns = self._columns(plane, plane.lines, host.STATS, "ranges")
            found = host.host_tables(columns, plane.lines, process_id(plane), self._hlo)
            for table, frame in found.items():
                self._keep(table, frame)
            return
        number = gpu_number(plane)
        streams = [x for x in plane.lines if number is not None and _STREAM.match(x.name)]
        others = [x for x in plane.lines if number is None or not _STREAM.match(x.name)]
        if streams and number is not None:
            columns = self._columns(plane, streams, activities.STATS, "activities")
            self._keep(
                "activities", activities.activities(columns, streams, number, self._hlo)
            )
        if others:
            columns = self._columns(plane, others, (), "ranges")
            self._keep("ranges", annotations(columns, others, device_number(plane)))

    def _columns(
        self, plane: Plane, lines: list[Line], wanted: tuple[str, ...], table: str
    ) -> EventColumns:
        columns = read_events(
            self._buffer,
            plane,
            lines,
            wanted,
            lambda at: self._progress(at, self._buffer.size),
        )
        self._events += columns.events
        self._cut |= columns.cut
        add = self._ledger.add
        add("malformed", columns.damaged, table=table, detail=plane.name)
        add("aggregate", columns.aggregates, table=table, detail=plane.name)
        add("rounded", columns.rounded, table=table, kept=True, detail=plane.name)
        add("unnamed", columns.unnamed, table=table, kept=True, detail=plane.name)
        add("truncated", int(columns.cut), table=table, detail="within an event")
        return columns

    def _keep(self, table: str, frame: pl.DataFrame) -> None:
        if table == "activities":
            named = frame.drop("name")
            frame = pl.concat([conform("activities", named), frame.select("name")], how="horizontal")
        else:
            frame = conform(table, frame)
        self._parts[table].append(frame)

    def _meta(self, tables: dict[str, pl.DataFrame], first_ns: int) -> TraceMeta:
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
