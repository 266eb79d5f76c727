"""Activities, calls and properties of nvprof databases with known values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.readers.nvprof.writing import (
    CHILD_KERNEL,
    CUPTI,
    DRIVER,
    KERNEL,
    MEMCPY,
    MEMSET,
    NOW,
    PEER,
    PROCESS,
    RUNTIME,
    SERIAL_KERNEL,
    SYNC,
    THREAD,
    UNIFIED,
    Row,
    Tables,
    call,
    copy,
    database,
    kernel,
    ledger_of,
    packed,
    trace_of,
)
from traceana.enrich import attribute
from traceana.trace import Trace


def read(path: Path, tables: Tables, version: int = 16) -> Trace:
    return trace_of(database(path / "a.nvvp", tables, version))


def named(trace: Trace) -> list[tuple[str, str, int]]:
    names = trace.tables.names["name"]
    return [
        (names[row["name_id"]], row["kind"], row["duration"])
        for row in trace.tables.activities.to_dicts()
    ]


def test_kernels_are_in_two_tables_and_their_children_in_a_third(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        {
            SERIAL_KERNEL: [kernel(10, 11)],
            KERNEL: [kernel(20, 25, name=2)],
            CHILD_KERNEL: [kernel(26, 29, name=2)],
            RUNTIME: [call(1, 2)],
        },
    )
    assert named(trace) == [
        ("void conv<float>(float*)", "kernel", 1),
        ("volta_sgemm_32x128_tn", "kernel", 5),
        ("volta_sgemm_32x128_tn", "kernel", 3),
    ]


def test_all_columns_of_a_kernel(tmp_path: Path) -> None:
    trace = read(tmp_path, {KERNEL: [kernel(10, 14)], RUNTIME: [call(1, 2)]})
    row = trace.tables.activities.row(0, named=True)
    reported: dict[str, Any] = {key: value for key, value in row.items() if value is not None}
    assert reported == {
        "name_id": 0,
        "kind": "kernel",
        "start": 9,
        "duration": 4,
        "process": PROCESS,
        "device": 0,
        "context": 1,
        "stream": 7,
        "correlation": 100,
        "grid_x": 2,
        "grid_y": 3,
        "grid_z": 4,
        "block_x": 5,
        "block_y": 6,
        "block_z": 7,
        "registers": 32,
        "shared_memory": 1536,
    }
    assert trace.meta.epoch_ns == NOW + 1


def test_copies_by_direction_and_memory(tmp_path: Path) -> None:
    rows = [
        copy(1, 2, 1),
        copy(3, 4, 2, srcKind=3, dstKind=2),
        copy(5, 6, 8, srcKind=3),
        copy(7, 8, 77, srcKind=0, dstKind=88),
    ]
    peer = copy(9, 11, 10, srcKind=3, srcDeviceId=0, dstDeviceId=1)
    trace = read(tmp_path, {MEMCPY: rows, PEER: [peer]})
    assert [name for name, _, _ in named(trace)] == [
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy DtoH (Device -> Pinned)",
        "Memcpy DtoD (Device -> Device)",
        "Memcpy Unknown (Unknown -> Unknown)",
        "Memcpy PtoP (Device -> Device)",
    ]
    assert trace.tables.activities["copy_kind"].to_list() == [
        "HtoD",
        "DtoH",
        "DtoD",
        "unknown",
        "PtoP",
    ]
    assert trace.tables.activities["destination_memory"].to_list()[:3] == [
        "device",
        "pinned",
        "device",
    ]
    assert trace.tables.activities["bytes"].sum() == 5 * 4096


def test_sets_and_synchronizations(tmp_path: Path) -> None:
    memset = copy(1, 2, 0, memoryKind=3)
    times = {"start": NOW + 3, "end": NOW + 9, "contextId": 4, "correlationId": 5}
    rows = [
        {"type": 3, **times, "streamId": 13},
        {"type": 4, **times, "streamId": -1},
        {"type": 99, **times, "streamId": 0xFFFFFFFF, "contextId": 8},
    ]
    contexts: list[Row] = [{"contextId": 4, "deviceId": 2}, {"contextId": None, "deviceId": 1}]
    trace = read(tmp_path, {MEMSET: [memset], SYNC: rows, f"{CUPTI}CONTEXT": contexts})
    assert [name for name, _, _ in named(trace)] == [
        "Memset (Device)",
        "Stream Sync",
        "Context Sync",
        "Unknown Sync",
    ]
    assert trace.tables.activities["device"].to_list() == [0, 2, 2, None]
    assert trace.tables.activities["stream"].to_list() == [7, 13, None, None]


def test_migrations_of_unified_memory_are_copies_and_faults_are_not(tmp_path: Path) -> None:
    base = {"processId": 5, "srcId": 3, "dstId": 1, "streamId": 7, "value": 65536}
    rows = [
        {"counterKind": kind, "start": NOW + kind, "end": NOW + 2 * kind, **base}
        for kind in (1, 2, 8, 4)
    ]
    trace = read(tmp_path, {UNIFIED: rows})
    assert [name for name, _, _ in named(trace)] == [
        "Memcpy HtoD (Managed -> Managed)",
        "Memcpy DtoH (Managed -> Managed)",
        "Memcpy DtoD (Managed -> Managed)",
    ]
    assert trace.tables.activities["device"].to_list() == [1, 3, 3]
    assert trace.tables.activities["process"].to_list() == [5, 5, 5]
    assert trace.tables.activities["bytes"].to_list() == [65536] * 3
    assert ledger_of(trace) == {("counter", f"{UNIFIED}: faults and hints"): 1}


def test_the_sums_of_the_first_unified_memory_records_are_counted(tmp_path: Path) -> None:
    rows = [{"counterKind": 1, "scope": 1, "deviceId": 0, "value": 9, "timestamp": NOW}]
    trace = read(tmp_path, {UNIFIED: rows})
    assert trace.tables.activities.is_empty()
    assert ledger_of(trace) == {("counter", UNIFIED): 1}


def test_calls_by_their_number(tmp_path: Path) -> None:
    runtime = [call(1, 2), call(3, 5, cbid=31, correlationId=0), call(6, 7, cbid=99999)]
    driver = [call(8, 9, cbid=307, threadId=12), call(10, 11, cbid=None)]
    trace = read(tmp_path, {RUNTIME: runtime, DRIVER: driver, KERNEL: [kernel(1, 2)]})
    calls = trace.tables.calls
    assert calls["name"].cast(str).to_list() == [
        "cudaLaunchKernel",
        "cudaMemcpy",
        "runtime call 99999",
        "cuLaunchKernel",
        None,
    ]
    assert calls["thread"].to_list() == [THREAD, THREAD, THREAD, 12, THREAD]
    assert calls["duration"].to_list() == [1, 2, 1, 1, 1]
    assert calls["correlation"].to_list() == [100, None, 100, 100, 100]


def test_a_kernel_is_of_the_call_that_launched_it(tmp_path: Path) -> None:
    tables: Tables = {
        KERNEL: [kernel(10, 14), kernel(20, 21, correlationId=7)],
        RUNTIME: [call(1, 2, correlationId=7), call(3, 4)],
    }
    trace = attribute(read(tmp_path, tables))
    assert trace.tables.activities["call"].to_list() == [1, 0]
    assert trace.tables.ledger.is_empty()


@pytest.mark.parametrize("version", [8, 12, 17])
def test_facts(tmp_path: Path, version: int) -> None:
    device = {
        "id": 0,
        "name": 5,
        "globalMemoryBandwidth": 898048000,
        "globalMemorySize": 16914055168,
        "coreClockRate": 1530000,
        "numMultiprocessors": 80,
        "numThreadsPerWarp": 32,
        "computeCapabilityMajor": 7,
        "computeCapabilityMinor": 0,
    }
    name = {"objectKind": 1, "objectId": packed(), "name": 6}
    tables: Tables = {
        f"{CUPTI}DEVICE": [device, {**device, "id": 1}],
        f"{CUPTI}NAME": [name],
        KERNEL: [kernel(1, 2)],
        RUNTIME: [call(1, 2)],
    }
    trace = read(tmp_path, tables, version)
    (gpu,) = trace.tables.devices.to_dicts()
    assert {key: value for key, value in gpu.items() if value is not None} == {
        "device": 0,
        "name": "Tesla V100-SXM2-16GB",
        "vendor": "NVIDIA",
        "compute_capability": "7.0",
        "multiprocessors": 80,
        "clock_khz": 1530000,
        "memory_bytes": 16914055168,
        "bandwidth_bytes_per_s": 898_048_000_000,
        "warp_size": 32,
    }
    assert trace.meta.format == "nvprof"
    assert trace.meta.format_version == str(version)
    assert trace.meta.properties == {"processes": {str(PROCESS): "python train.py"}}


def test_events_that_no_table_is_for_are_counted_by_table(tmp_path: Path) -> None:
    tables: Tables = {
        f"{CUPTI}ENVIRONMENT": [{"timestamp": 1, "environmentKind": 2}] * 3,
        f"{CUPTI}METRIC": [{"id": 1, "value": b""}],
        f"{CUPTI}MARKER_DATA": [{"flags": 1, "id": 1}],
        f"{CUPTI}CUDA_EVENT": [{"eventId": 1}],
        f"{CUPTI}DEVICE_ATTRIBUTE": [{"deviceId": 0}],
        f"{CUPTI}STREAM": [{"streamId": 0}],
    }
    trace = read(tmp_path, tables)
    assert ledger_of(trace) == {
        ("counter", f"{CUPTI}ENVIRONMENT"): 3,
        ("counter", f"{CUPTI}METRIC"): 1,
        ("metadata", f"{CUPTI}MARKER_DATA"): 1,
        ("unknown_category", f"{CUPTI}CUDA_EVENT"): 1,
    }
    assert trace.meta.events == 6
