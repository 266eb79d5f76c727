"""Events of an nsys export that no canonical table is for, and tables that should be there."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import polars as pl

from traceana.ingest.cupti.words import CALLS_OF
from traceana.ingest.nsys.activities import GRAPH, KERNEL, MEMCPY, MEMSET
from traceana.ingest.nsys.calls import TABLES as CALLS
from traceana.ingest.nsys.session import DIAGNOSTICS
from traceana.ingest.tables import TableSource
from traceana.trace import Ledger

_NO_EVENTS: Final = ("ENUM_", "TARGET_INFO_", "META_DATA_", "ANALYSIS_")
_TIMES: Final = frozenset({"start", "timestamp", "rawTimestamp"})
STRINGS: Final = "StringIds"
_CUPTI: Final = "CUPTI_ACTIVITY_KIND_"
_EXPECTED: Final = {KERNEL: "kernel", MEMCPY: "memcpy", MEMSET: "memset"}


def count_unread(database: TableSource, read: Collection[str], ledger: Ledger) -> int:
    """Count in ``ledger`` the rows of all event tables but ``read``; return their sum.

    A table holds events when it has a time, or when it is one of CUPTI's activity kinds.
    """
    total = 0
    for table, columns in sorted(database.tables.items()):
        if table in read or table.startswith(_NO_EVENTS):
            continue
        if not _TIMES.intersection(columns) and not table.startswith(_CUPTI):
            continue
        count = database.count(table)
        total += count
        ledger.add(_reason(table), count, table="-", detail=table)
    return total


def _reason(table: str) -> str:
    if table == DIAGNOSTICS:
        return "instant"
    if table.endswith("_METRICS") or "_COUNTER" in table:
        return "counter"
    return "unknown_category"


def count_missing(
    database: TableSource, calls: pl.DataFrame, activities: pl.DataFrame, ledger: Ledger
) -> None:
    """Count in ``ledger`` the tables without which the export cannot be whole.

    nsys leaves out tables that would be empty. So a table of device work is missed only where the
    calls say that there was such work, and the calls only where there was any. The entries count
    tables, not events: ``kept`` is true. A missing description of the GPUs loses no event; it
    shows in the devices, which have no name then.
    """
    missing = [] if STRINGS in database.tables else [STRINGS]
    called = calls["name"].cast(pl.Categorical).unique().drop_nulls().cast(pl.String)
    for table, kind in _EXPECTED.items():
        recorded_whole = table == KERNEL and GRAPH in database.tables
        if table not in database.tables and not recorded_whole:
            missing += [table] * int(called.str.contains(CALLS_OF[kind]).any())
    if activities.height and not any(table in database.tables for table in CALLS):
        missing.append(CALLS[0])
    for table in missing:
        ledger.add("missing_table", 1, table="-", kept=True, detail=table)
