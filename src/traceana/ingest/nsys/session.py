"""The session of an nsys export: versions, machine, epoch, command; events unread or lost."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

import polars as pl

from traceana.ingest.cupti import CALLS_OF
from traceana.ingest.detect import NSYS_EXPORT_TABLES
from traceana.ingest.nsys.activities import GRAPH, KERNEL, MEMCPY, MEMSET
from traceana.ingest.nsys.host import CALL_TABLES
from traceana.ingest.table_source import TableSource, as_int, has_texts
from traceana.trace import Ledger

STRINGS: Final = "StringIds"
STRING_COLUMNS: Final = ("id", "value")
DIAGNOSTICS: Final = "DIAGNOSTIC_EVENT"

_ENVIRONMENT: Final = {
    "NvDriverVersion": "driver_version",
    "CudaDriverVersion": "cuda_driver_version",
    "Hostname": "host",
    "OsDescription": "operating_system",
    "CpuDescription": "cpu",
    "CpuCores": "cpu_cores",
}

_OPTIONS: Final = {
    "CUDA_GRAPH_TRACE_OPTIONS:MODE": "cuda_graph_trace",
    "CUDA_SKIP_SOME_API_CALLS": "skips_some_api_calls",
}

_COMMAND: Final = re.compile(r"PROCESS_0:(?:COMMAND|ARGUMENT_\d+)")
_LOSS: Final = re.compile(r"\b(?:lost|dropped|might be missing|not all\b.*\bcollected)\b", re.I)

_LOST_COUNT: Final = re.compile(
    r"dropped:?\s+(\d{1,15})\b|\blost\s+(\d{1,15})\b|\(\s*(\d{1,15})\s*\)\s+were lost", re.I
)

_WARNING: Final = 2
_LONGEST_MESSAGE: Final = 300
_MOST_MESSAGES: Final = 50
_NO_EVENTS: Final = ("ENUM_", "TARGET_INFO_", "META_DATA_", "ANALYSIS_")
_TIMES: Final = frozenset({"start", "timestamp", "rawTimestamp"})
_CUPTI: Final = "CUPTI_ACTIVITY_KIND_"
_EXPECTED: Final = {KERNEL: "kernel", MEMCPY: "memcpy", MEMSET: "memset"}


def has_strings(database: TableSource) -> bool:
    """Return whether the export has its table of strings, with both columns."""
    return has_texts(database, STRINGS, *STRING_COLUMNS)


def export_facts(database: TableSource) -> dict[str, str]:
    """Return nsys's description of the export, by key (``EXPORT_SCHEMA_VERSION`` …)."""
    return {
        str(row.get("name")): str(row.get("value"))
        for table in NSYS_EXPORT_TABLES
        for row in database.records(table)
    }


def producer(facts: dict[str, str]) -> str:
    """Return the exporting program, with its version where recorded."""
    name = facts.get("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems")
    return f"{name} {facts.get('EXPORT_PRODUCT_VERSION', '')}".strip()


def epoch_ns(database: TableSource, facts: dict[str, str], first_ns: int) -> int | None:
    """Return the Unix time of ``first_ns``, a time on the file's clock; None where not recorded.

    That clock starts with the session, or is Unix time where the export was normalized
    (``nsys export --ts-normalize``). ``--ts-shift`` is subtracted.
    """
    shift = as_int(facts.get("EXPORT_PARAM_TIME_SHIFT", 0)) or 0
    starts = [row.get("utcEpochNs") for row in database.records("TARGET_INFO_SESSION_START_TIME")]
    start = as_int(starts[0]) if starts else None
    if facts.get("EXPORT_PARAM_TIME_NORMALIZE") == "true":
        start = 0
    # Beyond int64, the recorded times are damaged.
    return None if start is None else as_int(start + first_ns - shift)


def properties(database: TableSource, processes: set[int]) -> dict[str, Any]:
    """Return further facts: versions, machine, command, processes with events, warnings.

    Environment variables are not read, because they can hold secrets.
    """
    found: dict[str, Any] = {}
    for row in database.records("TARGET_INFO_SYSTEM_ENV"):
        key, value = _ENVIRONMENT.get(str(row.get("name"))), row.get("value")
        if key and value:
            found.setdefault(key, str(value))
    command = []
    for row in database.records("META_DATA_CAPTURE"):
        name, value = str(row.get("name")), str(row.get("value"))
        if name in _OPTIONS:
            found.setdefault(_OPTIONS[name], value)
        elif _COMMAND.fullmatch(name):
            command.append(value)
    if command:
        found["command"] = command
    named = {
        as_int(row.get("pid")): row["name"]
        for row in database.records("PROCESSES")
        if isinstance(row.get("name"), str)
    }
    found["processes"] = {str(pid): named.get(pid) for pid in sorted(processes)}
    warnings = [text for severity, text in _messages(database) if severity >= _WARNING]
    if warnings:
        found["warnings"] = warnings[:_MOST_MESSAGES]
    return found


def count_lost(database: TableSource, ledger: Ledger) -> None:
    """Count in ``ledger`` the events that nsys lost, 1 for a message without a number.

    The conservation law does not cover events that are not in the file: ``kept`` is true.
    """
    for _, text in _messages(database):
        if _LOSS.search(text):
            found = _LOST_COUNT.search(text)
            count = int(next(g for g in found.groups() if g)) if found else 1
            ledger.add("dropped_by_profiler", count, table="-", kept=True, detail=text)


def _messages(database: TableSource) -> list[tuple[int, str]]:
    return [
        (
            as_int(row.get("severity")) or 0,
            " ".join(str(row.get("text")).split())[:_LONGEST_MESSAGE],
        )
        for row in database.records(DIAGNOSTICS)
    ]


def count_unread(database: TableSource, read: Collection[str], ledger: Ledger) -> int:
    """Count in ``ledger`` the rows of all event tables but ``read``; return their sum.

    A table holds events if it has a time or is one of CUPTI's activity kinds.
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
    """Count in ``ledger`` the tables that are missing from the export.

    nsys leaves out empty tables. A table of activities counts as missing where calls started such
    activities, the table of calls where there are activities. The entries count tables, not events:
    ``kept`` is true. Where the description of the GPUs is missing, the devices have no name.
    """
    missing = [] if has_strings(database) else [STRINGS]
    called = calls["name"].cast(pl.Categorical).unique().drop_nulls().cast(pl.String)
    for table, kind in _EXPECTED.items():
        as_graphs = table == KERNEL and GRAPH in database.tables
        if table not in database.tables and not as_graphs:
            missing += [table] * int(called.str.contains(CALLS_OF[kind]).any())
    if activities.height and not any(table in database.tables for table in CALL_TABLES):
        missing.append(CALL_TABLES[0])
    for table in missing:
        ledger.add("missing_table", 1, table="-", kept=True, detail=table)
