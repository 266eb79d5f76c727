"""Writes small nvprof databases with known values."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

from traceana.readers import read
from traceana.readers.source import silent
from traceana.trace import Trace

Row = dict[str, Any]
Tables = dict[str, list[Row]]

CUPTI = "CUPTI_ACTIVITY_KIND_"
KERNEL = f"{CUPTI}CONCURRENT_KERNEL"
SERIAL_KERNEL = f"{CUPTI}KERNEL"
CHILD_KERNEL = f"{CUPTI}CDP_KERNEL"
MEMCPY = f"{CUPTI}MEMCPY"
PEER = f"{CUPTI}MEMCPY2"
MEMSET = f"{CUPTI}MEMSET"
SYNC = f"{CUPTI}SYNCHRONIZATION"
UNIFIED = f"{CUPTI}UNIFIED_MEMORY_COUNTER"
RUNTIME = f"{CUPTI}RUNTIME"
DRIVER = f"{CUPTI}DRIVER"
MARKER = f"{CUPTI}MARKER"
OVERHEAD = f"{CUPTI}OVERHEAD"

TEXTS = {
    0: "-- null --",
    1: "_Z4convIfEvPT_",
    2: "volta_sgemm_32x128_tn",
    3: "layer1",
    4: "cuDNN",
    5: "Tesla V100-SXM2-16GB",
    6: "python train.py",
}
LAUNCH = 211  # cudaLaunchKernel
THREAD = 0xEADC3740
PROCESS = 15938
START, END, INSTANT = 2, 4, 1
NOW = 1_583_978_808_000_000_000


def packed(pid: int = PROCESS, tid: int = THREAD) -> bytes:
    """Return an object id: process and thread, and one word that they do not use."""
    return struct.pack("<III", pid, tid, 0)


def signed(thread: int) -> int:
    """Return a thread's number as nvprof's tables of calls show it."""
    return thread - (1 << 32) if thread >= 1 << 31 else thread


def kernel(start: int, end: int, **columns: Any) -> Row:
    """Return a kernel of context 1 on device 0; times are counted from :data:`NOW`."""
    base: Row = {
        "start": NOW + start,
        "end": NOW + end,
        "deviceId": 0,
        "contextId": 1,
        "streamId": 7,
        "correlationId": 100,
        "name": 1,
        "registersPerThread": 32,
        "staticSharedMemory": 1024,
        "dynamicSharedMemory": 512,
        "cacheConfig": b"\x00",
    }
    sizes = zip(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), range(2, 8), strict=True)
    return {**base, **dict(sizes), **columns}


def copy(start: int, end: int, kind: int, **columns: Any) -> Row:
    """Return a copy of ``kind`` of 4096 bytes, pageable to device."""
    base: Row = {
        "start": NOW + start,
        "end": NOW + end,
        "copyKind": kind,
        "srcKind": 1,
        "dstKind": 3,
        "bytes": 4096,
        "deviceId": 0,
        "contextId": 1,
        "streamId": 7,
        "correlationId": 101,
    }
    return {**base, **columns}


def call(start: int, end: int, **columns: Any) -> Row:
    """Return a call of ``cudaLaunchKernel``."""
    base: Row = {
        "cbid": LAUNCH,
        "start": NOW + start,
        "end": NOW + end,
        "processId": PROCESS,
        "threadId": signed(THREAD),
        "correlationId": 100,
        "returnValue": 0,
    }
    return {**base, **columns}


def marker(time: int, flags: int, **columns: Any) -> Row:
    """Return a marker of id 1; only starts and instants have a name."""
    base: Row = {
        "flags": flags,
        "timestamp": NOW + time,
        "id": 1,
        "objectKind": 2,
        "objectId": packed(),
        "name": 0 if flags == END else 3,
        "domain": 0,
    }
    return {**base, **columns}


def database(path: Path, tables: Tables, version: int = 16) -> Path:
    """Write ``tables``, the texts and the version; rows are numbered in ``_id_``."""
    texts: list[Row] = [{"_id_": number, "value": text} for number, text in TEXTS.items()]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE Version (version INTEGER)")
        connection.execute("INSERT INTO Version VALUES (?)", (version,))
        for table, rows in {"StringTable": texts, **tables}.items():
            columns = [key for key in rows[0] if key != "_id_"]
            listed = ", ".join(f'"{column}"' for column in columns)
            connection.execute(
                f'CREATE TABLE "{table}" (_id_ INTEGER PRIMARY KEY AUTOINCREMENT, {listed})'
            )
            for number, row in enumerate(rows, 1):
                values = [row.get("_id_", number), *(row[column] for column in columns)]
                marks = ", ".join("?" * len(values))
                connection.execute(f'INSERT INTO "{table}" VALUES ({marks})', values)
        connection.commit()
    return path


def trace_of(path: Path) -> Trace:
    """Read ``path`` and check the conservation law."""
    trace = read(path, silent)
    tables = ("activities", "calls", "ops", "ranges", "links", "memory")
    kept = sum(trace.tables[table].height for table in tables)
    ledger = trace.tables.ledger
    assert kept + ledger.filter(~ledger["kept"])["count"].sum() == trace.meta.events
    return trace


def ledger_of(trace: Trace) -> dict[tuple[str, str | None], int]:
    """Return the ledger's counts by reason and detail."""
    return {(row["reason"], row["detail"]): row["count"] for row in trace.tables.ledger.to_dicts()}
