"""Activities of nsys exports: every column, every kind, several processes and devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.readers.nsys.writing import (
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    RUNTIME,
    STRINGS,
    SYNC,
    Tables,
    call,
    copy,
    export,
    gid,
    kernel,
    ledger_of,
    trace_of,
)
from traceana.readers.kernel_names import UNNAMED
from traceana.trace import Trace


def names_of(trace: Trace) -> list[str]:
    return trace.tables.names["name"].gather(trace.tables.activities["name_id"]).to_list()


def test_a_kernel_keeps_every_column(tmp_path: Path) -> None:
    path = export(
        tmp_path / "a.sqlite",
        {KERNEL: [kernel(1_000, 1_900, graphNodeId=1 << 40)], RUNTIME: [call(400, 500)]},
    )
    trace = trace_of(path)
    row = {k: v for k, v in trace.tables.activities.row(0, named=True).items() if v is not None}
    assert row == {
        "name_id": 0,
        "kind": "kernel",
        "start": 600,
        "duration": 900,
        "process": 7,
        "device": 0,
        "context": 1,
        "stream": 7,
        "correlation": 100,
        "grid_x": 2,
        "grid_y": 3,
        "grid_z": 4,
        "block_x": 128,
        "block_y": 1,
        "block_z": 1,
        "registers": 32,
        "shared_memory": 1536,
        "graph_node": 1 << 40,
    }
    assert names_of(trace) == ["void conv<float>(int)"]
    assert trace.tables.ledger.is_empty()


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"demangledName": None}, "conv"),
        ({"demangledName": None, "shortName": None, "mangledName": 5}, "layer1"),
        ({"demangledName": 999}, UNNAMED),
        ({"demangledName": None, "shortName": None}, UNNAMED),
    ],
)
def test_a_kernel_takes_the_best_name_it_has(
    tmp_path: Path, columns: dict[str, Any], name: str
) -> None:
    tables = {KERNEL: [kernel(1, 2, **columns)], RUNTIME: [call(1, 2)]}
    trace = trace_of(export(tmp_path / "a.sqlite", tables))
    assert names_of(trace) == [name]
    assert ledger_of(trace) == ({("unnamed", KERNEL): 1} if name == UNNAMED else {})


def test_a_table_with_few_columns_is_read_for_what_it_has(tmp_path: Path) -> None:
    rows = [{"start": 5, "end": 9, "shortName": 2, "correlationId": 3}]
    tables = {KERNEL: rows, RUNTIME: [call(1, 2, correlationId=3)]}
    trace = trace_of(export(tmp_path / "a.sqlite", tables))
    row = trace.tables.activities.row(0, named=True)
    assert (row["duration"], row["correlation"], row["device"], row["grid_x"]) == (4, 3, None, None)
    assert row["shared_memory"] is None
    assert row["process"] == 7  # the only one that made calls
    assert names_of(trace) == ["conv"]


@pytest.mark.parametrize(
    ("kind", "copy_kind", "name"),
    [
        (1, "HtoD", "Memcpy HtoD (Pageable -> Device)"),
        (2, "DtoH", "Memcpy DtoH (Pageable -> Device)"),
        (3, "HtoA", "Memcpy HtoA (Pageable -> Device)"),
        (4, "AtoH", "Memcpy AtoH (Pageable -> Device)"),
        (5, "AtoA", "Memcpy AtoA (Pageable -> Device)"),
        (6, "AtoD", "Memcpy AtoD (Pageable -> Device)"),
        (7, "DtoA", "Memcpy DtoA (Pageable -> Device)"),
        (8, "DtoD", "Memcpy DtoD (Pageable -> Device)"),
        (9, "HtoH", "Memcpy HtoH (Pageable -> Device)"),
        (10, "PtoP", "Memcpy PtoP (Pageable -> Device)"),
        (0, "unknown", "Memcpy Unknown (Pageable -> Device)"),
        (77, "unknown", "Memcpy Unknown (Pageable -> Device)"),
    ],
)
def test_copies_have_direction_bytes_and_memory(
    tmp_path: Path, kind: int, copy_kind: str, name: str
) -> None:
    tables = {MEMCPY: [copy(10, 14, kind)], RUNTIME: [call(1, 2)]}
    trace = trace_of(export(tmp_path / "a.sqlite", tables))
    row = trace.tables.activities.row(0, named=True)
    assert (row["kind"], row["copy_kind"], row["bytes"]) == ("memcpy", copy_kind, 4096)
    assert (row["source_memory"], row["destination_memory"]) == ("pageable", "device")
    assert names_of(trace) == [name]


def test_every_kind_of_memory_has_its_name(tmp_path: Path) -> None:
    rows = [copy(10 + kind, 11 + kind, 1, srcKind=kind) for kind in range(8)]
    trace = trace_of(export(tmp_path / "a.sqlite", {MEMCPY: rows, RUNTIME: [call(1, 2)]}))
    assert trace.tables.activities["source_memory"].to_list() == [
        *("pageable", "pinned", "device", "array"),
        *("managed", "device_static", "managed_static", "unknown"),
    ]


def test_migrations_of_unified_memory_are_copies_of_managed_memory(tmp_path: Path) -> None:
    rows = [copy(10 * k, 10 * k + 4, k, srcKind=None, dstKind=None) for k in (11, 12, 13)]
    trace = trace_of(export(tmp_path / "a.sqlite", {MEMCPY: rows, RUNTIME: [call(1, 2)]}))
    assert trace.tables.activities["copy_kind"].to_list() == ["HtoD", "DtoH", "DtoD"]
    assert trace.tables.activities["source_memory"].to_list() == ["managed"] * 3
    assert names_of(trace)[0] == "Memcpy HtoD (Managed -> Managed)"


def test_the_enumerations_of_the_file_come_before_the_built_in_ones(tmp_path: Path) -> None:
    tables = {
        MEMCPY: [copy(10, 14, 40, srcKind=41)],
        RUNTIME: [call(1, 2)],
        "ENUM_CUDA_MEMCPY_OPER": [{"id": 40, "name": "CUDA_MEMCPY_KIND_PTOP", "label": "p"}],
        "ENUM_CUDA_MEM_KIND": [{"id": 41, "name": "CUDA_MEMOPR_MEMORY_KIND_PINNED", "label": "p"}],
    }
    row = trace_of(export(tmp_path / "a.sqlite", tables)).tables.activities.row(0, named=True)
    assert (row["copy_kind"], row["source_memory"]) == ("PtoP", "pinned")


def test_sets_and_graphs(tmp_path: Path) -> None:
    place = {"deviceId": 1, "contextId": 2, "streamId": 9, "globalPid": gid(7)}
    tables: Tables = {
        MEMSET: [
            {"start": 5, "end": 9, "correlationId": 1, "bytes": 64, "memKind": 2, **place},
            {"start": 6, "end": 9, "correlationId": 2, "bytes": 64, "memKind": None, **place},
        ],
        GRAPH: [
            {"start": 20, "end": 90, "correlationId": 3, "graphId": 12, "graphExecId": 4, **place}
        ],
        RUNTIME: [call(1, 2)],
    }
    trace = trace_of(export(tmp_path / "a.sqlite", tables))
    assert trace.tables.activities["kind"].to_list() == ["memset", "memset", "graph"]
    assert trace.tables.activities["destination_memory"].to_list() == ["device", None, None]
    assert names_of(trace) == ["Memset (Device)", "Memset (Unknown)", "CUDA graph 12"]
    assert trace.tables.activities["duration"].to_list() == [4, 3, 70]
    # Kernels inside a graph that was recorded whole are not missing.
    assert trace.tables.ledger.is_empty()


def test_a_synchronization_is_on_the_device_of_its_context(tmp_path: Path) -> None:
    def sync(start: int, process: int, context: int, kind: int) -> dict[str, Any]:
        return {
            "start": start,
            "end": start + 5,
            "deviceId": 0,
            "contextId": context,
            "streamId": 0xFFFFFFFF,
            "correlationId": start,
            "globalPid": gid(process),
            "syncType": kind,
        }

    tables = {
        KERNEL: [
            kernel(1, 2),
            kernel(1, 2, deviceId=1, contextId=2, globalPid=gid(8)),
            kernel(3, 4, deviceId=3, contextId=2, globalPid=gid(9)),
            kernel(5, 6, deviceId=4, contextId=2, globalPid=gid(9)),
        ],
        SYNC: [
            sync(10, 7, 1, 1),
            sync(20, 8, 2, 3),
            sync(30, 8, 5, 4),
            sync(40, 9, 2, 2),
            sync(50, 8, 6, 99),
        ],
        RUNTIME: [call(1, 2)],
        "TARGET_INFO_CUDA_CONTEXT_INFO": [{"processId": 8, "deviceId": 6, "contextId": 5}],
    }
    trace = trace_of(export(tmp_path / "a.sqlite", tables))
    syncs = trace.tables.activities.filter(pl.col("kind") == "sync")
    # by work; by work of another process; by the list; work that disagrees; not known at all
    assert syncs["device"].to_list() == [0, 1, 6, 0, 0]
    assert syncs["stream"].to_list() == [None] * 5
    words = ["Event Sync", "Stream Sync", "Context Sync", "Stream Wait Event", "Unknown Sync"]
    assert trace.tables.names["name"].gather(syncs["name_id"]).to_list() == words


def test_processes_keep_their_correlation_ids_apart(tmp_path: Path) -> None:
    tables = {
        KERNEL: [kernel(10, 20), kernel(10, 20, globalPid=gid(8), deviceId=1)],
        RUNTIME: [call(1, 2), call(1, 2, globalTid=gid(8, 0xABCDEF))],
    }
    trace = trace_of(export(tmp_path / "a.sqlite", tables))
    assert trace.tables.activities["process"].to_list() == [7, 8]
    assert trace.tables.calls.select("process", "thread").rows() == [(7, 8), (8, 0xABCDEF)]
    assert trace.tables.activities["device"].to_list() == [0, 1]


def test_impossible_rows_are_in_the_ledger_with_their_reason(tmp_path: Path) -> None:
    rows = [
        kernel(10, 20),
        kernel(10, 20),
        kernel(0, 0, correlationId=1),
        kernel(30, 29, correlationId=2),
        kernel(30, 2**63 - 1, correlationId=3),
        kernel(-(2**63), 5, correlationId=4),
        kernel(40, None, correlationId=5),  # type: ignore[arg-type]
    ]
    trace = trace_of(export(tmp_path / "a.sqlite", {KERNEL: rows, RUNTIME: [call(1, 2)]}))
    assert trace.tables.activities.height == 1
    assert ledger_of(trace) == {
        ("duplicate", None): 1,
        ("zero_timestamp", None): 1,
        ("negative_duration", None): 1,
        ("impossible_time", None): 2,
        ("missing_time", None): 1,
    }


def test_huge_ids_and_cells_of_another_type_do_no_harm(tmp_path: Path) -> None:
    strange = {
        "correlationId": 2**63 - 1,
        "streamId": -1,
        "deviceId": 2**40,
        "gridX": "wide",
        "registersPerThread": 1.5,
        "globalPid": -1,
        "contextId": b"\x01",
    }
    tables = {KERNEL: [kernel(10, 20), kernel(30, 40, **strange)], RUNTIME: [call(1, 2)]}
    row = trace_of(export(tmp_path / "a.sqlite", tables)).tables.activities.row(1, named=True)
    assert row["correlation"] == 2**63 - 1
    assert (row["stream"], row["device"], row["grid_x"], row["registers"]) == (None, None, 0, 1)
    assert row["process"] == 0xFFFFFF


@pytest.mark.parametrize(
    "name",
    ["\x00\x1b[31mred", "</script><b>&amp;", "(.*)+$", "\\u0000", "é" * 5000, "\ud7ff\U0010ffff"],
)
def test_hostile_names_come_through_unchanged(tmp_path: Path, name: str) -> None:
    strings = [*STRINGS, {"id": 50, "value": name}]
    tables = {KERNEL: [kernel(1, 2, demangledName=50)], RUNTIME: [call(1, 2)], "StringIds": strings}
    assert names_of(trace_of(export(tmp_path / "a.sqlite", tables))) == [name]


def test_the_first_of_two_texts_of_one_number_counts(tmp_path: Path) -> None:
    strings = [*STRINGS, {"id": 1, "value": "another"}]
    tables = {KERNEL: [kernel(1, 2)], RUNTIME: [call(1, 2)], "StringIds": strings}
    trace = trace_of(export(tmp_path / "a.sqlite", tables))
    assert names_of(trace) == ["void conv<float>(int)"]
    assert trace.tables.activities.height == 1


@pytest.mark.parametrize("device", [None, -1, 5_000_000_000])
def test_kernels_whose_device_is_unknown_are_in_the_ledger(
    tmp_path: Path, device: int | None
) -> None:
    work = [kernel(10, 20, deviceId=device), kernel(30, 35), copy(40, 47, 1, deviceId=device)]
    path = export(tmp_path / "a.sqlite", {KERNEL: work[:2], MEMCPY: work[2:]})
    trace = trace_of(path)
    assert trace.tables.activities["device"].to_list() == [None, 0, None]
    (entry,) = trace.tables.ledger.filter(reason="no_device").to_dicts()
    assert (entry["count"], entry["time_ns"], entry["severity"]) == (2, 17, "problem")
    assert entry["kept"]
