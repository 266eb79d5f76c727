"""Writes small nsys exports with known values."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from traceana.readers import read
from traceana.readers.source import silent
from traceana.trace import Trace

Row = dict[str, Any]
Tables = dict[str, list[Row]]

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"

STRINGS: list[Row] = [
    {"id": 1, "value": "void conv<float>(int)"},
    {"id": 2, "value": "conv"},
    {"id": 3, "value": "cudaLaunchKernel_v7000"},
    {"id": 4, "value": "cudaMemcpyAsync_v3020"},
    {"id": 5, "value": "layer1"},
    {"id": 6, "value": "cuMemcpyHtoDAsync_v2"},
]
EXPORT: list[Row] = [
    {"name": "EXPORT_PRODUCT_NAME", "value": "NVIDIA Nsight Systems"},
    {"name": "EXPORT_PRODUCT_VERSION", "value": "2024.5.1.113"},
    {"name": "EXPORT_SCHEMA_VERSION", "value": "3.13.2"},
]


def gid(pid: int, tid: int = 0) -> int:
    """Return the global id of a process or thread on the first machine."""
    return (1 << 48) | (pid << 24) | tid


def kernel(start: int, end: int, **columns: Any) -> Row:
    """Return a kernel of process 7 on device 0."""
    base = {
        "start": start,
        "end": end,
        "deviceId": 0,
        "contextId": 1,
        "streamId": 7,
        "correlationId": 100,
        "globalPid": gid(7),
        "demangledName": 1,
        "shortName": 2,
        "mangledName": None,
        "registersPerThread": 32,
        "gridX": 2,
        "gridY": 3,
        "gridZ": 4,
        "blockX": 128,
        "blockY": 1,
        "blockZ": 1,
        "staticSharedMemory": 1024,
        "dynamicSharedMemory": 512,
        "graphNodeId": None,
    }
    return {**base, **columns}


def copy(start: int, end: int, kind: int, **columns: Any) -> Row:
    """Return a copy of ``kind`` (CUpti_ActivityMemcpyKind) of 4096 bytes, pageable to device."""
    base = {
        "start": start,
        "end": end,
        "deviceId": 0,
        "contextId": 1,
        "streamId": 7,
        "correlationId": 101,
        "globalPid": gid(7),
        "bytes": 4096,
        "copyKind": kind,
        "srcKind": 0,
        "dstKind": 2,
        "graphNodeId": None,
    }
    return {**base, **columns}


def call(start: int, end: int, **columns: Any) -> Row:
    """Return a runtime call of thread 8 in process 7."""
    base = {
        "start": start,
        "end": end,
        "eventClass": 0,
        "globalTid": gid(7, 8),
        "correlationId": 100,
        "nameId": 3,
        "returnValue": 0,
    }
    return {**base, **columns}


def nvtx(start: int, end: int | None, **columns: Any) -> Row:
    """Return a push/pop range of thread 8 in process 7, its text registered."""
    base = {
        "start": start,
        "end": end,
        "eventType": 59,
        "text": None,
        "globalTid": gid(7, 8),
        "endGlobalTid": None,
        "textId": 5,
        "domainId": 0,
    }
    return {**base, **columns}


def write(path: Path, tables: Tables) -> Path:
    """Write ``tables``; a table's columns are the keys of its first row, typed by its values."""
    with closing(sqlite3.connect(path)) as connection:
        for table, rows in tables.items():
            kinds = {
                key: "TEXT" if any(isinstance(row[key], str) for row in rows) else "INTEGER"
                for key in rows[0]
            }
            columns = ", ".join(f'"{key}" {kind}' for key, kind in kinds.items())
            connection.execute(f'CREATE TABLE "{table}" ({columns})')
            connection.executemany(
                f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(kinds))})',
                [tuple(row[key] for key in kinds) for row in rows],
            )
        connection.commit()
    return path


def export(path: Path, tables: Tables) -> Path:
    """Write ``tables`` with the texts and the facts of an export beside them."""
    return write(path, {"StringIds": STRINGS, "META_DATA_EXPORT": EXPORT, **tables})


def trace_of(path: Path) -> Trace:
    """Read ``path`` and check the conservation law."""
    trace = read(path, silent)
    tables = ("activities", "calls", "ops", "ranges", "links", "memory", "samples")
    kept = sum(trace.tables[table].height for table in tables)
    ledger = trace.tables.ledger
    assert kept + ledger.filter(~ledger["kept"])["count"].sum() == trace.meta.events
    return trace


def ledger_of(trace: Trace) -> dict[tuple[str, str | None], int]:
    """Return the ledger's counts by reason and detail."""
    return {(row["reason"], row["detail"]): row["count"] for row in trace.tables.ledger.to_dicts()}
