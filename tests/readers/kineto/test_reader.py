"""The tables of all generations of Kineto's format."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceana
from tests.readers.kineto.writing import call, kernel, op, write
from traceana.readers import read
from traceana.readers.chrome.event_decoder import EventDecoder
from traceana.readers.kineto import decode, reader, scan

FIXTURES = Path(__file__).parents[3] / "fixtures"


def test_times_are_exact_and_counted_from_the_first_event(tmp_path: Path) -> None:
    events = [kernel("b", 1712195495519690.001, 0.7), kernel("a", 1712195495519689.5, 1)]
    text = (
        '{"traceEvents": [{"ph":"X","cat":"kernel","name":"b","pid":0,"tid":7,'
        '"ts":1712195495519690.001,"dur":0.7},{"ph":"X","cat":"kernel","name":"a","pid":0,"tid":7,'
        '"ts":1712195495519689.123,"dur":1.25}]}'
    )
    path = tmp_path / "t.json"
    path.write_text(text)
    trace = read(path)
    assert trace.tables.activities["start"].to_list() == [878, 0]
    assert trace.tables.activities["duration"].to_list() == [700, 1250]
    assert trace.meta.epoch_ns == 1712195495519689123
    assert len(events) == trace.meta.events


def test_base_time_is_the_epoch_of_relative_times(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.json", [kernel("k", 12.5, 1)], baseTimeNanoseconds=1_700_000_000 * 10**9
    )
    assert read(path).meta.epoch_ns == 1_700_000_000 * 10**9 + 12_500


def test_without_an_epoch_it_is_null(tmp_path: Path) -> None:
    assert read(write(tmp_path / "t.json", [kernel("k", 12.5, 1)])).meta.epoch_ns is None


@pytest.mark.parametrize("category", ["xpu_runtime", "privateuse1_driver", "mtia_runtime"])
def test_calls_of_other_runtimes_launch_their_kernels(tmp_path: Path, category: str) -> None:
    launch = call("urEnqueueKernelLaunch", 12, 3, correlation=9)
    events = [op("aten::mm", 10, 8), {**launch, "cat": category}, kernel("k", 20, 5, correlation=9)]
    trace = traceana.open(write(tmp_path / "t.json", events))
    assert trace.tables.calls["name"].to_list() == ["urEnqueueKernelLaunch"]
    assert trace.tables.ops["name"].gather(trace.tables.activities["op"]).to_list() == ["aten::mm"]
    assert trace.tables.ledger.is_empty()


def test_the_oldest_spelling(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "Operator", "name": "aten::conv2d", "pid": 5, "tid": "42", "ts": 10,
         "dur": 20, "args": {"Input dims": [[1, 3, 8, 8]], "External id": 2}},
        {"ph": "X", "cat": "Operator", "name": "ProfilerStep#3", "pid": 5, "tid": "42", "ts": 9,
         "dur": 90, "args": {"Input dims": []}},
        {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 5, "tid": "42", "ts": 12,
         "dur": 3, "args": {"correlation": 2**60 + 1, "external id": 2, "external ts": 11}},
        {"ph": "X", "cat": "Kernel", "name": "sgemm", "pid": 0, "tid": "stream 7", "ts": 20,
         "dur": 4, "args": {"device": 0, "context": 1, "stream": 7, "correlation": 2**60 + 1,
                            "grid": [8, 2, 1], "block": [128, 1, 1], "registers per thread": 90,
                            "shared memory": 4096, "external id": 2}},
    ]  # fmt: skip
    trace = read(write(tmp_path / "t.json", events))
    assert trace.tables.ops["thread"].to_list() == [42]
    assert trace.tables.ops["input_shapes"].to_list() == ["[[1, 3, 8, 8]]"]
    assert trace.tables.ranges["kind"].cast(str).to_list() == ["step"]
    row = trace.tables.activities.row(0, named=True)
    # Above 2**53 a float would have joined the wrong launch.
    assert row["correlation"] == trace.tables.calls["correlation"][0] == 2**60 + 1
    assert (row["grid_x"], row["grid_y"], row["block_x"]) == (8, 2, 128)
    assert (row["registers"], row["shared_memory"], row["stream"]) == (90, 4096, 7)


@pytest.mark.parametrize(
    ("name", "kind", "source", "destination"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "HtoD", "pinned", "device"),
        ("Memcpy DtoH (Device -> Pageable)", "DtoH", "device", "pageable"),
        ("Memcpy DtoD (Device -> Device)", "DtoD", "device", "device"),
        ("Memcpy PtoP (Device -> Device)", "PtoP", "device", "device"),
        ("Memcpy HtoD (Host -> Device)", "HtoD", "unknown", "device"),
        ("Memcpy M2D (MEMORY(Unknown) -> DEVICE)", "HtoD", "unknown", "device"),
        ("Memcpy D2M (DEVICE -> MEMORY(Unknown))", "DtoH", "device", "unknown"),
        ("Memcpy H2D (HOST -> DEVICE)", "HtoD", "pinned", "device"),
        ("Memcpy D2D", "DtoD", "device", "device"),
        ("Memcpy DtoA (Device Static -> Array)", "DtoA", "device_static", "array"),
        ("CopyHostToDevice", "unknown", "unknown", "unknown"),
    ],
)
def test_copies(tmp_path: Path, name: str, kind: str, source: str, destination: str) -> None:
    event = {**kernel(name, 5, 1, bytes=64), "cat": "gpu_memcpy"}
    row = read(write(tmp_path / "t.json", [event])).tables.activities.row(0, named=True)
    assert row["kind"] == "memcpy"
    assert (row["copy_kind"], row["source_memory"], row["destination_memory"]) == (
        kind, source, destination,
    )  # fmt: skip


def test_amd_prints_the_size_on_the_call(tmp_path: Path) -> None:
    events = [
        {**call("hipMemcpyWithStream", 1, 2, 117), "args": {"correlation": 117, "size": "2560"}},
        {**kernel("Memcpy HtoD (Host -> Device)", 2, 1, correlation=117), "cat": "gpu_memcpy"},
    ]
    assert read(write(tmp_path / "t.json", events)).tables.activities["bytes"].to_list() == [2560]


@pytest.mark.parametrize("stream", [4294967295, -1])
def test_a_synchronization_of_the_context_has_no_stream(tmp_path: Path, stream: int) -> None:
    event = {**kernel("Context Sync", 5, 1), "cat": "cuda_sync"}
    event["args"]["stream"] = stream
    row = read(write(tmp_path / "t.json", [event])).tables.activities.row(0, named=True)
    assert row["kind"] == "sync"
    assert row["stream"] is None


def test_a_wait_has_the_stream_and_call_of_its_event(tmp_path: Path) -> None:
    known = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 5169}
    unknown = {"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1}
    waits = [
        {**kernel("Stream Wait Event", start, 1), "cat": "cuda_sync", "args": args}
        for start, args in ((5, known), (6, unknown), (7, {}))
    ]
    activities = read(write(tmp_path / "t.json", waits)).tables.activities
    rows = activities.select("event_stream", "event_correlation").rows()
    assert rows == [(7, 5169), (None, None), (None, None)]


def test_forward_backward_flows_become_links(tmp_path: Path) -> None:
    flow = {"cat": "fwdbwd", "name": "fwdbwd", "pid": 1}
    events = [
        {**flow, "ph": "f", "id": 9, "tid": 2, "ts": 30, "bp": "e"},
        {**flow, "ph": "s", "id": 9, "tid": 1, "ts": 10},
        {**flow, "ph": "s", "id": 8, "tid": 1, "ts": 11},
        {**flow, "cat": "ac2g", "ph": "s", "id": 1, "tid": 1, "ts": 12},
    ]
    trace = read(write(tmp_path / "t.json", events))
    assert trace.tables.links.select("from_thread", "from_time", "to_thread", "to_time").rows() == [
        (1, 0, 2, 20_000)
    ]
    counted = dict(trace.tables.ledger.group_by("reason").agg(pl.col("count").sum()).iter_rows())
    assert counted == {"flow": 2, "launch_flow": 1}
    assert trace.meta.events == 4


def test_graph_nodes_devices_and_ranks(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.json",
        [kernel("k", 1, 1, **{"graph node id": 77}), {**kernel("k", 2, 1), "args": {"device": 3}}],
        deviceProperties=[
            {"id": i, "name": name, "computeMajor": 8, "computeMinor": 6, "numSms": 84}
            for i, name in enumerate(["NVIDIA A", "NVIDIA B", "NVIDIA C", "NVIDIA D"])
        ],
        distributedInfo={"rank": 3, "world_size": 4},
    )
    trace = read(path)
    assert trace.tables.activities["graph_node"].to_list() == [77, None]
    assert trace.tables.devices.select("device", "name", "compute_capability").rows() == [
        (0, "NVIDIA A", "8.6"),
        (3, "NVIDIA D", "8.6"),
    ]
    assert (trace.meta.rank, trace.meta.world_size) == (3, 4)
    assert trace.meta.properties["devices_present"] == 4


def test_lost_and_impossible_times_are_in_the_ledger_and_in_no_sum(tmp_path: Path) -> None:
    events = [
        kernel("good", 100, 5),
        kernel("lost", 0, 0),
        kernel("backwards", 50, -3),
        kernel("twice", 120, 5, correlation=4),
        kernel("twice", 120, 5, correlation=4),
        {"ph": "X", "cat": "kernel", "name": "endless", "pid": 0, "tid": 7, "ts": 7},
    ]
    trace = read(write(tmp_path / "t.json", events))
    assert trace.tables.activities["duration"].sum() == 10_000
    assert sorted(trace.tables.ledger.select("reason", "count").iter_rows()) == [
        ("duplicate", 1), ("missing_time", 1), ("negative_duration", 1), ("zero_timestamp", 1),
    ]  # fmt: skip
    assert trace.tables.activities["start"].min() == 0


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        ("void at::native::vectorized_elementwise_kernel<4>()", "PyTorch"),
        ("cupy_add__float32_float32_float32", None),
    ],
)
def test_pytorch_is_recognized_without_operators(
    tmp_path: Path, name: str, framework: str | None
) -> None:
    trace = read(write(tmp_path / "t.json", [kernel(name, 1, 5)], record_shapes=1))
    assert trace.meta.framework == framework


def test_calls_of_a_function_within_a_microsecond_are_several_calls(tmp_path: Path) -> None:
    events = [kernel("k", 1, 5)]
    for number, category in enumerate(("python_function", "python_function", "user_annotation")):
        named = {"cat": category, "name": "<built-in function len>", "args": {"Python id": number}}
        events.append({"ph": "X", "pid": 1, "tid": 1, "ts": 34, "dur": 0, **named})
    events.append(events[-1])  # an annotation twice is the same one
    trace = read(write(tmp_path / "t.json", events))
    assert trace.tables.ranges["kind"].to_list() == ["python", "python", "annotation"]
    assert trace.tables.ledger.select("reason", "count").rows() == [("duplicate", 1)]


def test_hostile_names_come_out_as_they_are(tmp_path: Path) -> None:
    names = ["\x1b[31mred\x1b[0m", "[bold]x[/bold]", "a\nb", "\u202egnirts", "<script>", 'q"\\']
    trace = read(write(tmp_path / "t.json", [kernel(n, i + 1, 1) for i, n in enumerate(names)]))
    assert trace.tables.names["name"].to_list() == names


def test_concatenated_gzip_members_are_one_file(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [kernel(f"k{i}", i + 1, 1) for i in range(50)])
    text = path.read_bytes()
    path.write_bytes(gzip.compress(text[:777]) + gzip.compress(text[777:]) + b"\0" * 100)
    trace = read(path)
    assert trace.tables.activities.height == 50
    assert not trace.meta.truncated


def test_progress_ends_at_the_size_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [kernel("k", 1, 1)], compress=True)
    seen: list[tuple[int, int]] = []
    read(path, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


@pytest.mark.parametrize("fixture", sorted(FIXTURES.glob("*.json.gz")), ids=lambda path: path.name)
def test_our_own_recordings(fixture: Path) -> None:
    trace = read(fixture)
    kept = sum(
        trace.tables[name].height
        for name in ("activities", "calls", "ops", "ranges", "links", "memory", "samples")
    )
    assert kept + trace.tables.ledger.filter(~pl.col("kept"))["count"].sum() == trace.meta.events
    assert trace.tables.ledger.filter(pl.col("severity") == "problem").is_empty()
    assert trace.meta.epoch_ns is not None
    assert trace.tables.ops.height > 0


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def _in_group(name: str, ranks: str | None, size: int | None, **others: Any) -> dict[str, Any]:
    listed = {"Process Group Name": name, "Process Group Ranks": ranks, "Group size": size}
    return {key: value for key, value in listed.items() if value is not None} | others


def test_collectives_have_their_process_group(tmp_path: Path) -> None:
    message = {"dtype": "Half", "In msg nelems": 10, "Out msg nelems": 20, "Seq": 7}
    described = {"Process Group Description": "mesh_tp"}
    events = [
        kernel(NCCL, 1, 1, **_in_group("1", "[0, 1]", 2, **described, **message)),
        kernel(NCCL, 3, 1, **_in_group("1", "[0, 1]", 2, **described, Seq=8)),
        kernel("ncclDevKernel_SendRecv(x)", 5, 1, **_in_group("2", "[0, 2]", 2, **{"Dst Rank": 2})),
        kernel("ncclDevKernel_SendRecv(x)", 7, 1, **_in_group("2", "[0, 2]", 2, **{"Src Rank": 2})),
        kernel("gemm", 9, 1),
    ]
    trace = read(write(tmp_path / "t.json", events))
    assert trace.tables.process_groups.rows() == [
        ("1", "mesh_tp", "[0,1]", 2, None),
        ("2", None, "[0,2]", 2, None),
    ]
    rows = trace.tables.activities.sort("start")
    assert rows["process_group"].to_list() == [0, 0, 1, 1, None]
    assert rows["collective_sequence"].to_list() == [7, 8, None, None, None]
    assert rows["peer"].to_list() == [None, None, 2, 2, None]
    assert rows["bytes"].to_list()[:2] == [20, None]
    assert rows["output_bytes"].to_list()[:2] == [40, None]


def test_annotated_kernels_of_a_graph_have_their_module_and_message(tmp_path: Path) -> None:
    """As torch.cuda.graph's annotations write them: numbers and types as text."""
    message = {"dtype": "bfloat16", "In msg nelems": "10", "Out msg nelems": "40"}
    events = [
        call("cudaGraphLaunch", 1, 5, 1),
        kernel("gemm", 10, 1, annotation="layers.0.attention.wq", correlation=1),
        kernel("gemm", 12, 2, **{"str": "layers.0.feed_forward.w1", "correlation": 1}),
        kernel("gemm", 15, 1, annotation='{"note": 1}', correlation=1),
        kernel(NCCL, 17, 3, **_in_group("fsdp", None, 0, **message) | {"Group size": "4"}),
    ]
    trace = traceana.open(write(tmp_path / "t.json", events))
    rows = trace.tables.activities.sort("start")
    path = trace.tables.layers["path"].gather(rows["layer"]).to_list()
    assert path[:2] == ["layers.0.attention.wq", "layers.0.feed_forward.w1"]
    assert path[2].startswith("(")
    assert rows["direction"].to_list()[:2] == [None, None]
    assert rows.select("group_size", "bytes", "output_bytes").row(3) == (4, 20, 80)


@pytest.mark.parametrize(
    ("text", "size", "listed", "ranks", "number"),
    [
        ("[0, 8]", 2, None, "[0,8]", 2),
        ("[0, 8]", None, None, "[0,8]", 2),
        # Of a group of more than 30 ranks Kineto writes the first and the last.
        ("[0, 1, ..., 63]", 64, None, None, 64),
        ("[0, 1, ..., 63]", 64, list(range(64)), "[" + ",".join(map(str, range(64))) + "]", 64),
        ("[0, 1, ..., 63]", 64, [0, 1], None, 64),
        ("[0, 1, ..., 63]", 64, ["0"] * 64, None, 64),
        ("[0, 1]", 3, None, None, 3),
        ("", 0, None, None, None),
        (None, 2, [4, 6], "[4,6]", 2),
    ],
)
def test_ranks_of_a_group_that_are_not_recorded_in_full_are_unknown(
    text: str | None,
    size: int | None,
    listed: list[Any] | None,
    ranks: str | None,
    number: int | None,
    tmp_path: Path,
) -> None:
    groups = [] if listed is None else [{"pg_name": "5", "ranks": listed}]
    path = write(
        tmp_path / "t.json",
        [kernel(NCCL, 1, 1, **_in_group("5", text, size))],
        distributedInfo={"rank": 0, "world_size": 64, "pg_config": [*groups, None, {"ranks": 1}]},
    )
    assert read(path).tables.process_groups.select("ranks", "size").rows() == [(ranks, number)]


def test_groups_that_the_file_lists_and_no_kernel_has(tmp_path: Path) -> None:
    listed = [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]},
        {"pg_name": "7", "ranks": [1]},
    ]
    path = write(
        tmp_path / "t.json",
        [kernel(NCCL, 1, 1, **_in_group("0", "[0, 1]", 2))],
        distributedInfo={"rank": 0, "world_size": 2, "pg_config": listed},
    )
    assert read(path).tables.process_groups.rows() == [
        ("0", "default_pg", "[0,1]", 2, None),
        ("7", None, "[1]", 1, None),
    ]


def test_a_kernel_has_the_group_of_its_launch(tmp_path: Path) -> None:
    """Some versions record groups and sequence numbers on the operator alone."""
    launch = _in_group("3", "[0, 1]", 2, **{"External id": 5, "Seq": 9, "Dst Rank": 1})
    events = [
        op("record_param_comms", 1, 1, **launch),
        op("record_param_comms", 2, 1, **{**launch, "External id": 6}),
        kernel(NCCL, 3, 1, **{"External id": 5}),
        kernel(NCCL, 5, 1, **_in_group("4", "[1, 2]", 2, **{"External id": 6})),
        kernel("gemm", 7, 1, **{"External id": 5}),
        kernel(NCCL, 9, 1),
    ]
    trace = read(write(tmp_path / "t.json", events))
    rows = trace.tables.activities.sort("start")
    names = trace.tables.process_groups["name"].gather(rows["process_group"])
    assert names.to_list() == ["3", "4", None, None]
    assert rows["collective_sequence"].to_list() == [9, 9, None, None]
    assert rows["peer"].to_list() == [1, 1, None, None]
    assert trace.tables.ops.height == 2


@pytest.mark.parametrize("decoder", [decode.DECODER, scan.DECODER])
def test_the_ledger_has_one_order_however_the_file_is_cut(
    decoder: EventDecoder[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocation = {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 2, "ts": 1.0}
    allocation["args"] = {"Device Type": 0, "Device Id": -1, "Addr": 5, "Bytes": 64}
    span = {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "ts": 1.0, "dur": 90.0}
    end = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 99.0}
    path = write(tmp_path / "t.json", [allocation, *[kernel("k", 12.5, 1)] * 50, span, end])
    monkeypatch.setattr(reader, "DECODER", decoder)
    found = []
    for block in (1 << 10, 1 << 20):
        monkeypatch.setattr(type(decoder), "block", block)
        found.append(read(path).tables.ledger["reason"].to_list())
    assert found[0] == found[1]
    assert found[0][:2] == ["instant", "span"]


@pytest.mark.parametrize("behind", ["{again}", "\n{again}", "\ndone in 3 s\n"])
def test_text_behind_the_trace_is_a_problem_and_no_truncation(tmp_path: Path, behind: str) -> None:
    path = write(tmp_path / "t.json", [kernel("k", 12, 1)])
    text = path.read_text()
    path.write_text(text + behind.replace("{again}", text))
    trace = read(path)
    assert trace.tables.activities.height == 1
    assert not trace.meta.truncated
    columns = ("reason", "count", "detail")
    assert trace.tables.ledger.select(columns).rows() == [("malformed", 1, "text after the trace")]
