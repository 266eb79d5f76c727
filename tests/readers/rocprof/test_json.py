"""rocprofv3's JSON has the rows of its CSV."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traceana import open as open_trace
from traceana.readers.rocprof.json_tables import json_tables
from traceana.trace import Trace


def timed(kind: int, operation: int, start: int, end: int, correlation: int) -> dict[str, Any]:
    return {
        "kind": kind, "operation": operation, "thread_id": 7, "start_timestamp": start,
        "end_timestamp": end, "correlation_id": {"internal": correlation, "external": 0},
    }  # fmt: skip


DISPATCH = {
    "agent_id": {"handle": 500}, "queue_id": {"handle": 2}, "kernel_id": 9, "dispatch_id": 1,
    "group_segment_size": 1024, "workgroup_size": {"x": 64, "y": 2, "z": 1},
    "grid_size": {"x": 640, "y": 4, "z": 1},
}  # fmt: skip
TOOL: dict[str, Any] = {
    "metadata": {"pid": 42},
    "agents": [
        {"id": {"handle": 400}, "node_id": 0, "logical_node_id": 0, "type": 1, "name": "EPYC"},
        {
            "id": {"handle": 500}, "node_id": 1, "logical_node_id": 1, "type": 2, "cu_count": 304,
            "name": "gfx942", "product_name": "AMD Instinct MI300X", "wave_front_size": 64,
        },
    ],
    "kernel_symbols": [
        {"kernel_id": 9, "kernel_name": "_Z3addv.kd", "formatted_kernel_name": "add(float*)",
         "arch_vgpr_count": 24},
    ],
    "counters": [{"id": {"handle": 77}, "name": "SQ_WAVES"}],
    "strings": {
        "buffer_records": [
            {"kind": "NONE", "operations": []},
            {"kind": "KERNEL_DISPATCH", "operations": ["NONE", "KERNEL_DISPATCH_COMPLETE"]},
            {"kind": "MEMORY_COPY", "operations": ["NONE", "MEMORY_COPY_HOST_TO_DEVICE"]},
            {"kind": "HIP_RUNTIME_API", "operations": ["hipMemcpy", "hipLaunchKernel"]},
            {"kind": "MARKER_CORE_API", "operations": ["roctxThreadRangeA"]},
        ],
        "marker_api": [{"key": 30, "value": "step 1"}],
    },
    "buffer_records": {
        "kernel_dispatch": [{**timed(1, 1, 1_200, 1_500, 20), "dispatch_info": DISPATCH}],
        "memory_copy": [
            {**timed(2, 1, 1_050, 1_150, 10), "src_agent_id": {"handle": 400},
             "dst_agent_id": {"handle": 500}, "bytes": 4096},
        ],
        "hip_api": [timed(3, 0, 1_000, 1_160, 10), timed(3, 1, 1_170, 1_180, 20)],
        "marker_api": [timed(4, 0, 1_000, 1_600, 30)],
    },
    "callback_records": {
        "counter_collection": [
            {
                "arch_vgpr_count": 24,
                "dispatch_data": {"dispatch_info": DISPATCH, "correlation_id": {"internal": 20}},
                "records": [{"counter_id": {"handle": 77}, "value": 20.0}],
            }
        ]
    },
}  # fmt: skip


def opened(folder: Path, *tools: object) -> Trace:
    path = folder / "42_results.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": tools}))
    return open_trace(path)


def test_dispatches_copies_calls_ranges_and_counters(tmp_path: Path) -> None:
    trace = opened(tmp_path, TOOL)
    names = trace.tables.names.with_row_index("name_id")
    rows = trace.tables.activities.join(names, on="name_id").sort("start")
    columns = ("name", "kind", "start", "duration", "device", "process", "correlation", "bytes")
    assert rows.select(*(pl.col(one).cast(pl.String) for one in columns)).rows() == [
        ("Memcpy HtoD (Unknown -> Device)", "memcpy", "50", "100", "1", "42", "10", "4096"),
        ("add(float*)", "kernel", "200", "300", "1", "42", "20", None),
    ]
    kernel = rows.row(1, named=True)
    assert [kernel[f"grid_{axis}"] for axis in "xyz"] == [10, 2, 1]
    assert [kernel[f"block_{axis}"] for axis in "xyz"] == [64, 2, 1]
    assert (kernel["shared_memory"], kernel["registers"]) == (1024, 24)
    assert trace.tables.calls["name"].to_list() == ["hipMemcpy", "hipLaunchKernel"]
    assert trace.tables.ranges["text"].to_list() == ["step 1"]
    assert trace.tables.counters["name"].to_list() == ["add(float*)"]
    (device,) = trace.tables.devices.to_dicts()
    assert (device["name"], device["multiprocessors"]) == ("AMD Instinct MI300X", 304)


def test_what_is_no_record_is_counted(tmp_path: Path) -> None:
    records = {**TOOL["buffer_records"], "hip_api": [3, None, *TOOL["buffer_records"]["hip_api"]]}
    trace = opened(tmp_path, {**TOOL, "buffer_records": records})
    assert trace.tables.ledger.filter(reason="malformed")["count"].to_list() == [2]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([*TOOL]), JSON)
def test_a_part_of_any_shape_is_survived(part: str, value: object) -> None:
    document = {"rocprofiler-sdk-tool": [{**TOOL, part: value}]}
    json_tables(json.dumps(document).encode())


@pytest.mark.parametrize("cut", [30, 400, 1_500])
def test_a_file_that_is_cut_has_no_tables(cut: int) -> None:
    content = json.dumps({"rocprofiler-sdk-tool": [TOOL]}).encode()[:cut]
    found = json_tables(content)
    assert not found.tables
    assert found.cut
