"""What an nsys export says of its recording: versions, machine, time of start, lost events."""

from __future__ import annotations

import re
from typing import Any, Final

from traceana.ingest.dialect import EXPORT_FACTS
from traceana.ingest.tables import TableSource, as_int
from traceana.trace import Ledger

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


def export_facts(database: TableSource) -> dict[str, str]:
    """Return what nsys wrote about the export, by key (``EXPORT_SCHEMA_VERSION`` …)."""
    return {
        str(row.get("name")): str(row.get("value"))
        for table in EXPORT_FACTS
        for row in database.records(table)
    }


def producer(facts: dict[str, str]) -> str:
    """Return the program that exported, with its version where it is told."""
    name = facts.get("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems")
    return f"{name} {facts.get('EXPORT_PRODUCT_VERSION', '')}".strip()


def epoch_ns(database: TableSource, facts: dict[str, str], first_ns: int) -> int | None:
    """Return the Unix time of the moment ``first_ns`` on the file's clock, None if not told.

    That clock starts with the session, or is Unix time already where the export was normalized
    (``nsys export --ts-normalize``); ``--ts-shift`` comes on top.
    """
    shift = as_int(facts.get("EXPORT_PARAM_TIME_SHIFT", 0)) or 0
    starts = [row.get("utcEpochNs") for row in database.records("TARGET_INFO_SESSION_START_TIME")]
    start = as_int(starts[0]) if starts else None
    if facts.get("EXPORT_PARAM_TIME_NORMALIZE") == "true":
        start = 0
    # A sum beyond int64 is of damaged facts.
    return None if start is None else as_int(start + first_ns - shift)


def properties(database: TableSource, processes: set[int]) -> dict[str, Any]:
    """Return further facts: versions, machine, command, processes with events, warnings.

    Environment variables are in the file and are left there: they hold secrets.
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
    """Count in ``ledger`` what nsys says that it lost; a message without a number counts 1.

    These events are not in the file, and no part of the conservation law: ``kept`` is true.
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
