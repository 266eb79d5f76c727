"""Reads exports of Nsight Systems, schema 2 and later, into the canonical tables."""

from __future__ import annotations

import polars as pl

from traceana.ingest.cupti import end_open_ranges, with_process
from traceana.ingest.integrity import rebase, screen
from traceana.ingest.names import NameTable
from traceana.ingest.nsys import activities, host, session
from traceana.ingest.nsys.devices import (
    devices,
    devices_of_contexts,
    on_physical_devices,
    with_devices,
)
from traceana.ingest.nsys.session import STRINGS, count_missing, count_unread
from traceana.ingest.source import Progress
from traceana.ingest.table_source import Query, TableSource, Texts, texts_query
from traceana.trace import Ledger, Trace, TraceMeta
from traceana.trace.schema import empty


def read_tables(database: TableSource, progress: Progress) -> Trace:
    """Return the Trace of the tables of an nsys export.

    All tables and columns are optional: missing columns are null, and the ledger counts missing
    tables that the calls require. Raises ``CorruptError``.
    """
    ledger = Ledger()
    frames = _frames(database, progress)
    events = sum(frame.height for table, frame in frames.items() if table != STRINGS)
    texts = Texts(frames.pop(STRINGS, None))
    tables: dict[str, pl.DataFrame] = {}
    tables["calls"] = _calls(database, frames, texts, ledger)
    tables["activities"], names = _activities(database, frames, texts, ledger)
    tables["ranges"] = _ranges(database, frames, texts, tables, ledger)
    tables["activities"] = with_process(tables["activities"], tables["calls"])
    events += count_unread(database, _tables_read(database), ledger)
    count_missing(database, tables["calls"], tables["activities"], ledger)
    session.count_lost(database, ledger)
    database.count_damage(ledger)
    tables, first_ns = rebase(tables, ledger)
    tables["activities"] = activities.with_capture_since(tables["activities"], first_ns)
    tables["names"] = names.frame()
    tables["devices"] = devices(database, tables["activities"]["device"])
    tables["ledger"] = ledger.frame()
    facts = session.export_facts(database)
    processes = {
        p for t in ("activities", "calls", "ranges") for p in tables[t]["process"].unique()
    }
    meta = TraceMeta(
        source=str(database.path),
        format="nsys",
        format_version=facts.get("EXPORT_SCHEMA_VERSION"),
        producer=session.producer(facts),
        epoch_ns=session.epoch_ns(database, facts, first_ns),
        bytes_read=database.size_bytes,
        bytes_total=database.size_bytes,
        events=events,
        properties=session.properties(database, processes - {None}),
    )
    return Trace(meta, tables)


def _tables_read(database: TableSource) -> list[str]:
    candidates = [
        *activities.KINDS,
        activities.EVENT,
        activities.GRAPH_NODE,
        *host.CALL_TABLES,
        host.NVTX,
        *host.API_TABLES,
    ]
    tables = [table for table in candidates if table in database.tables]
    return [*tables, STRINGS] if session.has_strings(database) else tables


def _frames(database: TableSource, progress: Progress) -> dict[str, pl.DataFrame]:
    """Return the tables that are read, by their name in the file."""
    tables = _tables_read(database)
    queries = [_query(table) for table in tables]
    return dict(zip(tables, database.read(queries, progress), strict=True))


def _query(table: str) -> Query:
    if table in activities.KINDS:
        return activities.query(table)
    if table == activities.EVENT:
        return activities.event_query()
    if table == activities.GRAPH_NODE:
        return activities.node_query()
    if table in host.CALL_TABLES:
        return host.call_query(table)
    if table == host.NVTX:
        return host.nvtx_query()
    if table in host.API_TABLES:
        return host.api_query(table)
    return texts_query(STRINGS, *session.STRING_COLUMNS)


def _calls(
    database: TableSource, frames: dict[str, pl.DataFrame], texts: Texts, ledger: Ledger
) -> pl.DataFrame:
    parts = [
        host.calls(database, table, frames.pop(table), texts, ledger)
        for table in host.CALL_TABLES
        if table in frames
    ]
    return screen(pl.concat(parts), "calls", ledger) if parts else empty("calls")


def _activities(
    database: TableSource, frames: dict[str, pl.DataFrame], texts: Texts, ledger: Ledger
) -> tuple[pl.DataFrame, NameTable]:
    names = NameTable(ledger)
    parts: list[pl.DataFrame] = []
    recorded = frames.pop(activities.EVENT, activities.event_query().nothing())
    ledger.add("event_record", recorded.height, table="-", detail=activities.EVENT)
    nodes = frames.pop(activities.GRAPH_NODE, activities.node_query().nothing())
    ledger.add("graph_node", nodes.height, table="-", detail=activities.GRAPH_NODE)
    for table in activities.KINDS:
        if table not in frames:
            continue
        frame = screen(frames.pop(table), "activities", ledger)
        if table == activities.SYNC:
            frame = activities.with_events(frame, recorded)
            frame = with_devices(frame, devices_of_contexts(database, parts))
        shaped, texts_of = activities.named(database, table, frame, texts)
        ledger.add("unnamed", texts_of.null_count(), table="activities", kept=True, detail=table)
        parts.append(shaped.with_columns(names.ids(texts_of).alias("name_id")))
    if not parts:
        return empty("activities"), names
    found = pl.concat(parts, how="diagonal")
    if nodes.height:
        found = activities.with_captures(found, nodes)
    return on_physical_devices(database, found), names


def _ranges(
    database: TableSource,
    frames: dict[str, pl.DataFrame],
    texts: Texts,
    others: dict[str, pl.DataFrame],
    ledger: Ledger,
) -> pl.DataFrame:
    parts = []
    if host.NVTX in frames:
        parts.append(host.nvtx(database, frames.pop(host.NVTX), texts, ledger))
    parts += [
        host.api(database, table, frames.pop(table), texts, ledger)
        for table in host.API_TABLES
        if table in frames
    ]
    if not parts:
        return empty("ranges")
    found = end_open_ranges(pl.concat(parts), others.values(), ledger)
    return screen(found, "ranges", ledger)
