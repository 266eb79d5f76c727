"""Reads the SQLite databases of rocprofv3 (rocpd) and of rocprof into the canonical tables."""

from __future__ import annotations

from typing import Any

import polars as pl

from traceana.ingest.detect import Dialect
from traceana.ingest.rocprof import legacy_database, rocpd
from traceana.ingest.rocprof.agents import of_work
from traceana.ingest.rocprof.assembly import assembled, properties
from traceana.ingest.source import Progress
from traceana.ingest.table_source import TableSource
from traceana.trace import Ledger, Trace, TraceMeta


def read_database(source: TableSource, dialect: Dialect, progress: Progress) -> Trace:
    """Return the Trace of the tables of a database of rocprofv3 or rocprof.

    All columns are optional. Raises ``CorruptError``.
    """
    described: list[dict[str, Any]] = []
    version = None
    ledger = Ledger()
    if dialect is Dialect.ROCPD:
        rows, described = rocpd.rows_of(source, ledger, progress)
        version = rocpd.version(source)
    else:
        rows = legacy_database.rows_of(source, progress)
    source.count_damage(ledger)
    tables, events = assembled(rows, ledger)
    used = pl.concat([tables[name]["device"] for name in ("activities", "counters")])
    tables["devices"] = of_work(described, used)
    meta = TraceMeta(
        source=str(source.path),
        format="rocprof",
        format_version=version,
        producer="AMD rocpd" if dialect is Dialect.ROCPD else "AMD rocprof",
        bytes_read=source.size_bytes,
        bytes_total=source.size_bytes,
        events=events,
        properties=properties(rows),
    )
    return Trace(meta, tables)
