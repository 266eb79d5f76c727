"""A scenario as Nsight Systems exports it to SQLite (schema 3)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from tests.support.synthetic.records import Copy, Kernel, Memset, Work
from tests.support.synthetic.scenario import Scenario

Row = dict[str, Any]

ORIGIN = 5_000_000_000
"""The profiler's clock when the run begins."""

_CUPTI = "CUPTI_ACTIVITY_KIND_"
_NO_STREAM = 0xFFFFFFFF
_COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "HtoH": 9, "PtoP": 10}
_MIGRATIONS = {"HtoD": 11, "DtoH": 12, "DtoD": 13}
_MEMORY = {"pageable": 0, "pinned": 1, "device": 2, "managed": 4}
_SYNCS = {"event": 1, "stream_wait": 2, "stream": 3, "context": 4}
_PUSH_POP = 59

_Work = TypeVar("_Work", bound=Work)


class _Strings:
    """Numbers for texts, as ``StringIds`` holds them."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __getitem__(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers) + 1)

    def rows(self) -> list[Row]:
        return [{"id": number, "value": text} for text, number in self._numbers.items()]


def write_nsys(scenario: Scenario, path: Path, *others: Scenario) -> Path:
    """Write ``scenario``, and other processes that ran beside it, to an SQLite database.

    Tables that would be empty are left out.
    """
    strings = _Strings()
    tables: dict[str, list[Row]] = {}
    for one in (scenario, *others):
        for table, rows in _records(one, strings).items():
            tables.setdefault(table, []).extend(rows)
    tables["TARGET_INFO_GPU"] = _gpus(scenario)
    tables["META_DATA_EXPORT"] = [
        {"name": "EXPORT_PRODUCT_NAME", "value": "NVIDIA Nsight Systems"},
        {"name": "EXPORT_SCHEMA_VERSION", "value": "3.13.2"},
    ]
    tables["StringIds"] = strings.rows()
    with closing(sqlite3.connect(path)) as connection:
        for table, rows in tables.items():
            if rows:
                _write(connection, table, rows)
        connection.commit()
    return path


def _records(scenario: Scenario, strings: _Strings) -> dict[str, list[Row]]:
    return {
        f"{_CUPTI}RUNTIME": _calls(scenario, strings),
        f"{_CUPTI}KERNEL": _kernels(scenario, strings),
        f"{_CUPTI}MEMCPY": _copies(scenario),
        f"{_CUPTI}MEMSET": _memsets(scenario),
        f"{_CUPTI}SYNCHRONIZATION": _syncs(scenario),
        f"{_CUPTI}CUDA_EVENT": _events(scenario),
        "NVTX_EVENTS": _ranges(scenario, strings),
        "PROFILER_OVERHEAD": _overheads(scenario, strings),
    }


def _write(connection: sqlite3.Connection, table: str, rows: list[Row]) -> None:
    texts = {key for row in rows for key, value in row.items() if isinstance(value, str)}
    columns = ", ".join(f'"{key}" {"TEXT" if key in texts else "INTEGER"}' for key in rows[0])
    connection.execute(f'CREATE TABLE "{table}" ({columns})')
    marks = ", ".join("?" * len(rows[0]))
    connection.executemany(
        f'INSERT INTO "{table}" VALUES ({marks})', [tuple(row.values()) for row in rows]
    )


def _calls(scenario: Scenario, strings: _Strings) -> list[Row]:
    return [
        {
            "start": ORIGIN + call.start,
            "end": ORIGIN + call.end,
            "eventClass": 0,
            "globalTid": _global(scenario, call.thread),
            "correlationId": call.correlation,
            "nameId": strings[f"{call.name}_v3020"],
            "returnValue": 0,
        }
        for call in scenario.calls
    ]


def _of(scenario: Scenario, work: Work) -> Row:
    return {
        "start": ORIGIN + work.start,
        "end": ORIGIN + work.end,
        "deviceId": work.device,
        "contextId": work.device + 1,
        "streamId": work.stream,
        "correlationId": work.correlation,
        "globalPid": _global(scenario),
    }


def _kernels(scenario: Scenario, strings: _Strings) -> list[Row]:
    extents = {f"{what}{axis}": 1 for what in ("grid", "block") for axis in "XYZ"}
    return [
        {
            **_of(scenario, kernel),
            "demangledName": strings[kernel.name],
            "shortName": strings[kernel.name.split("(")[0]],
            "registersPerThread": 32,
            **extents,
            "gridX": kernel.blocks,
            "staticSharedMemory": 0,
            "dynamicSharedMemory": 0,
        }
        for kernel in _only(scenario, Kernel)
    ]


def _copies(scenario: Scenario) -> list[Row]:
    return [
        {
            **_of(scenario, copy),
            "bytes": copy.bytes,
            "copyKind": (_MIGRATIONS if copy.unified else _COPY_KINDS)[copy.direction],
            "srcKind": None if copy.unified else _MEMORY[copy.source],
            "dstKind": None if copy.unified else _MEMORY[copy.destination],
        }
        for copy in _only(scenario, Copy)
    ]


def _memsets(scenario: Scenario) -> list[Row]:
    return [
        {
            **_of(scenario, memset),
            "value": 0,
            "bytes": memset.bytes,
            "memKind": _MEMORY["device"],
        }
        for memset in _only(scenario, Memset)
    ]


def _syncs(scenario: Scenario) -> list[Row]:
    return [
        {
            "start": ORIGIN + sync.start,
            "end": ORIGIN + sync.end,
            "deviceId": 0,
            "contextId": sync.device + 1,
            "streamId": _NO_STREAM if sync.stream is None else sync.stream,
            "correlationId": sync.correlation,
            "globalPid": _global(scenario),
            "syncType": _SYNCS[sync.waiting],
            "eventId": _NO_STREAM if sync.event is None else sync.event.number,
            "eventSyncId": 0 if sync.event is None else sync.event.correlation,
        }
        for sync in scenario.syncs
    ]


def _events(scenario: Scenario) -> list[Row]:
    return [
        {
            "timestamp": ORIGIN + event.completed,
            "deviceId": event.device,
            "contextId": event.device + 1,
            "streamId": event.stream,
            "correlationId": event.correlation,
            "globalPid": _global(scenario),
            "eventId": event.number,
            "eventSyncId": event.correlation,
        }
        for event in scenario.events
    ]


def _ranges(scenario: Scenario, strings: _Strings) -> list[Row]:
    rows = []
    for number, found in enumerate(scenario.ranges):
        # As torch.autograd.profiler.emit_nvtx writes an operator.
        text = f"{found.text}, op_id = {number}" if found.operator else found.text
        rows.append(
            {
                "start": ORIGIN + found.start,
                "end": ORIGIN + found.end,
                "eventType": _PUSH_POP,
                "text": None,
                "globalTid": _global(scenario, found.thread),
                "endGlobalTid": None,
                "textId": strings[text],
                "domainId": 0,
            }
        )
    return rows


def _overheads(scenario: Scenario, strings: _Strings) -> list[Row]:
    return [
        {
            "start": ORIGIN + overhead.start,
            "end": ORIGIN + overhead.end,
            "globalTid": _global(scenario, overhead.thread),
            "nameId": strings[overhead.text],
            "returnValue": 0,
        }
        for overhead in scenario.overheads
    ]


def _gpus(scenario: Scenario) -> list[Row]:
    return [
        {
            "id": number,
            "cuDevice": number,
            "name": gpu.name,
            "totalMemory": gpu.memory_bytes,
            "memoryBandwidth": gpu.bandwidth,
            "clockRate": 1_410_000_000,
            "smCount": gpu.multiprocessors,
            "threadsPerWarp": 32,
            "computeMajor": gpu.capability[0],
            "computeMinor": gpu.capability[1],
        }
        for number, gpu in enumerate(scenario.gpus)
    ]


def _only(scenario: Scenario, kind: type[_Work]) -> Iterable[_Work]:
    return (work for work in scenario.work if isinstance(work, kind))


def _global(scenario: Scenario, thread: int = 0) -> int:
    """Return the global id of the process, or of a thread of it, on the first machine."""
    return (1 << 48) | (scenario.process << 24) | thread
