"""Databases of nvprof and of the Visual Profiler to the canonical tables."""

from __future__ import annotations

import polars as pl

from traceana.ingest.cupti.processes import with_process
from traceana.ingest.cupti.ranges import close_open
from traceana.ingest.integrity import screen
from traceana.ingest.names import NameTable
from traceana.ingest.nvprof import activities, calls, ranges, recording
from traceana.ingest.progress import Progress
from traceana.ingest.rebase import rebase
from traceana.ingest.tables import Query, TableSource
from traceana.ingest.texts import Texts
from traceana.ingest.texts import query as texts_query
from traceana.trace import Ledger, Trace, TraceMeta
from traceana.trace.schema import empty

Frames = dict[str, pl.DataFrame]


def read_database(source: TableSource, progress: Progress) -> Trace:
    """Read the tables of an nvprof database.

    Versions 12 and 16 of its schema were met; columns are looked up, not assumed, so that others
    lose what they lack and no more. Raises ``CorruptError``.
    """
    ledger = Ledger()
    wanted = [*activities.tables(source), *calls.TABLES, *ranges.TABLES, recording.STRINGS]
    tables_read = [table for table in wanted if table in source.tables]
    queries = [_query(table) for table in tables_read]
    frames = dict(zip(tables_read, source.read(queries, progress), strict=True))
    events = sum(frame.height for table, frame in frames.items() if table != recording.STRINGS)
    texts = _texts(frames.pop(recording.STRINGS, None))
    tables: Frames = {}
    tables["calls"] = _calls(frames, ledger)
    work, names = _activities(source, frames, texts, ledger)
    tables["activities"] = with_process(work, tables["calls"])
    tables["ranges"] = _ranges(frames, texts, tables, ledger)
    events += recording.count_unread(source, tables_read, ledger)
    recording.count_missing(source, tables["calls"], tables["activities"], ledger)
    tables, first_ns = rebase(tables)
    tables["names"] = names.frame()
    tables["devices"] = recording.devices(source, texts, tables["activities"]["device"])
    tables["ledger"] = ledger.frame()
    processes = {
        p for t in ("activities", "calls", "ranges") for p in tables[t]["process"].unique()
    }
    meta = TraceMeta(
        source=str(source.path),
        format="nvprof",
        format_version=recording.version(source),
        producer="NVIDIA nvprof",
        epoch_ns=recording.epoch_ns(first_ns),
        bytes_read=source.size_bytes,
        bytes_total=source.size_bytes,
        events=events,
        properties=recording.properties(source, texts, processes - {None}),
    )
    return Trace(meta, tables)


def _query(table: str) -> Query:
    if table in activities.KINDS:
        return activities.query(table)
    if table in calls.TABLES:
        return calls.query(table)
    if table == ranges.MARKER:
        return ranges.marker_query()
    if table == ranges.OVERHEAD:
        return ranges.overhead_query()
    return texts_query(recording.STRINGS, "_id_", "value")


def _texts(table: pl.DataFrame | None) -> Texts:
    if table is None:
        return Texts(None)
    return Texts(table.filter(pl.col("id") != recording.NO_TEXT))


def _calls(frames: Frames, ledger: Ledger) -> pl.DataFrame:
    parts = [calls.named(table, frames.pop(table)) for table in calls.TABLES if table in frames]
    return screen(pl.concat(parts), "calls", ledger) if parts else empty("calls")


def _activities(
    source: TableSource, frames: Frames, texts: Texts, ledger: Ledger
) -> tuple[pl.DataFrame, NameTable]:
    names = NameTable()
    parts: list[pl.DataFrame] = []
    for table in activities.KINDS:
        if table not in frames:
            continue
        frame = frames.pop(table)
        if table == activities.UNIFIED:
            frame = activities.migrations(frame, ledger)
        frame = screen(frame, "activities", ledger)
        if table == activities.SYNC:
            frame = activities.on_devices(source, frame)
        shaped, texts_of = activities.named(table, frame, texts)
        ledger.add("unnamed", texts_of.null_count(), table="activities", kept=True, detail=table)
        parts.append(shaped.with_columns(names.ids(texts_of).alias("name_id")))
    if not parts:
        return empty("activities"), names
    work = pl.concat(parts, how="diagonal")
    missing = [pl.lit(None, pl.Int64).alias("process")] if "process" not in work.columns else []
    return work.with_columns(missing), names


def _ranges(frames: Frames, texts: Texts, others: Frames, ledger: Ledger) -> pl.DataFrame:
    parts = []
    if ranges.MARKER in frames:
        parts.append(ranges.markers(frames.pop(ranges.MARKER), texts, ledger))
    if ranges.OVERHEAD in frames:
        parts.append(ranges.overhead(frames.pop(ranges.OVERHEAD)))
    if not parts:
        return empty("ranges")
    found = pl.concat(parts, how="diagonal")
    return screen(close_open(found, others.values(), ledger), "ranges", ledger)
