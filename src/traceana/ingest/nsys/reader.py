"""Nsight Systems exports (``nsys export --type sqlite``) to the canonical tables."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from traceana.ingest.integrity import screen
from traceana.ingest.names import NameTable
from traceana.ingest.nsys import activities, calls, ranges, session, strings
from traceana.ingest.nsys.bulk import Query, read_tables
from traceana.ingest.nsys.database import Database
from traceana.ingest.nsys.devices import devices, devices_of_contexts, on_physical_devices, placed
from traceana.ingest.nsys.dialect import require_nsys
from traceana.ingest.nsys.unread import count_missing, count_unread
from traceana.ingest.progress import Progress
from traceana.ingest.rebase import rebase
from traceana.trace import Ledger, Trace, TraceMeta
from traceana.trace.schema import empty


def read(path: Path, progress: Progress) -> Trace:
    """Read an Nsight Systems SQLite export, schema 2 and later.

    The file is opened read-only and immutable. Tables and columns are looked up, not assumed: one
    that is missing leaves its columns null, and an entry in the ledger where the file needed it.
    Raises ``ForeignDatabaseError``, ``UnknownFormatError`` (nvprof), ``CorruptError`` and
    ``UnreadableError``.
    """
    with Database(path) as database:
        require_nsys(database)
        return _read(database, progress)


def _read(database: Database, progress: Progress) -> Trace:
    ledger = Ledger()
    frames = _frames(database, progress)
    events = sum(frame.height for table, frame in frames.items() if table != strings.TABLE)
    texts = strings.Strings(frames.pop(strings.TABLE, None))
    tables: dict[str, pl.DataFrame] = {}
    tables["calls"] = _calls(database, frames, texts, ledger)
    tables["activities"], names = _activities(database, frames, texts, ledger)
    tables["ranges"] = _ranges(database, frames, texts, tables, ledger)
    tables["activities"] = _with_process(tables["activities"], tables["calls"])
    events += count_unread(database, _tables_read(database), ledger)
    count_missing(database, tables["calls"], tables["activities"], ledger)
    session.count_lost(database, ledger)
    tables, first_ns = rebase(tables)
    tables["names"] = names.frame()
    tables["devices"] = devices(database, tables["activities"]["device"])
    tables["ledger"] = ledger.frame()
    facts = session.export_facts(database)
    size = database.path.stat().st_size
    processes = {
        p for t in ("activities", "calls", "ranges") for p in tables[t]["process"].unique()
    }
    meta = TraceMeta(
        source=str(database.path),
        format="nsys",
        format_version=facts.get("EXPORT_SCHEMA_VERSION"),
        producer=session.producer(facts),
        epoch_ns=session.epoch_ns(database, facts, first_ns),
        bytes_read=size,
        bytes_total=size,
        events=events,
        properties=session.properties(database, processes - {None}),
    )
    return Trace(meta, tables)


def _tables_read(database: Database) -> list[str]:
    candidates = [*activities.KINDS, *calls.TABLES, ranges.NVTX, *ranges.API_TABLES, strings.TABLE]
    return [table for table in candidates if table in database.tables]


def _frames(database: Database, progress: Progress) -> dict[str, pl.DataFrame]:
    """Read the tables that hold what the canonical ones need, by their name in the file."""
    tables = _tables_read(database)
    queries = [_query(database, table) for table in tables]
    return dict(zip(tables, read_tables(database, queries, progress), strict=True))


def _query(database: Database, table: str) -> Query:
    if table in activities.KINDS:
        return activities.query(database, table)
    if table in calls.TABLES:
        return calls.query(database, table)
    if table == ranges.NVTX:
        return ranges.nvtx_query(database)
    if table in ranges.API_TABLES:
        return ranges.api_query(database, table)
    return strings.query(database)


def _calls(
    database: Database, frames: dict[str, pl.DataFrame], texts: strings.Strings, ledger: Ledger
) -> pl.DataFrame:
    parts = [
        calls.named(database, table, frames.pop(table), texts, ledger)
        for table in calls.TABLES
        if table in frames
    ]
    return screen(pl.concat(parts), "calls", ledger) if parts else empty("calls")


def _activities(
    database: Database, frames: dict[str, pl.DataFrame], texts: strings.Strings, ledger: Ledger
) -> tuple[pl.DataFrame, NameTable]:
    names = NameTable()
    parts: list[pl.DataFrame] = []
    for table in activities.KINDS:
        if table not in frames:
            continue
        frame = screen(frames.pop(table), "activities", ledger)
        if table == activities.SYNC:
            frame = placed(frame, devices_of_contexts(database, parts))
        shaped, texts_of = activities.named(database, table, frame, texts)
        ledger.add("unnamed", texts_of.null_count(), table="activities", kept=True, detail=table)
        parts.append(shaped.with_columns(names.ids(texts_of).alias("name_id")))
    if not parts:
        return empty("activities"), names
    return on_physical_devices(database, pl.concat(parts, how="diagonal")), names


def _ranges(
    database: Database,
    frames: dict[str, pl.DataFrame],
    texts: strings.Strings,
    others: dict[str, pl.DataFrame],
    ledger: Ledger,
) -> pl.DataFrame:
    parts = []
    if ranges.NVTX in frames:
        parts.append(ranges.nvtx(database, frames.pop(ranges.NVTX), texts, ledger))
    parts += [
        ranges.api(database, table, frames.pop(table), texts, ledger)
        for table in ranges.API_TABLES
        if table in frames
    ]
    if not parts:
        return empty("ranges")
    found = pl.concat(parts)
    ends = [
        frame.select((pl.col("start") + pl.col("duration")).max()).item()
        for frame in [found, *others.values()]
    ]
    last_ns = max((end for end in ends if end is not None), default=0)
    return screen(ranges.close_open(found, last_ns, ledger), "ranges", ledger)


def _with_process(work: pl.DataFrame, made: pl.DataFrame) -> pl.DataFrame:
    """Give device work without a process, as the first exports have it, the only one there is."""
    processes = made["process"].drop_nulls().unique()
    if len(processes) != 1:
        return work
    return work.with_columns(pl.col("process").fill_null(processes[0]))
