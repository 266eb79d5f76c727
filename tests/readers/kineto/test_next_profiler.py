"""PyTorch's own CUDA profiler, as its source writes JSON: ``torch/profiler/_cuspy/trace.py``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import traceana
from tests.readers.kineto.writing import Event, call, kernel, write
from tests.support.manifest import TRACES
from tests.support.synthetic.cnn import cnn_training
from tests.support.synthetic.kineto import write_kineto
from traceana.readers import read
from traceana.readers.kineto import decode, reader
from traceana.readers.source import silent
from traceana.timeline.graph import EVENT, graphs
from traceana.timeline.waits import all_waits
from traceana.trace.schema import TABLES

FIELD = TRACES.parent / "cases" / "field" / "torch_next_alexnet_b128.json.gz"
ALEXNET = TRACES.parent / "gpu" / "variants" / "alexnet_b128.json.gz"
COPY = re.compile(r"Memcpy (\w+) \((.+) -> (.+)\)")


def as_next_profiler(event: Event) -> Event:
    """Return an event of Kineto as PyTorch's own profiler writes it."""
    args = dict(event["args"])
    args.pop("est. achieved occupancy %", None)
    if described := COPY.fullmatch(event["name"]):
        words = [word.lower().replace(" ", "_") for word in described.groups()[1:]]
        names = ("copy kind", "src kind", "dst kind")
        args |= dict(zip(names, (described[1], *words), strict=True))
        return event | {"name": "Memcpy", "args": args}
    if event["name"] == "Memset (Device)":
        return event | {"name": "Memset", "args": args | {"memory kind": 3}}
    if event["cat"] == "cuda_sync" and args["stream"] == 0xFFFFFFFF:
        args["stream"] = -1
    return event | {"args": args}


def assert_equal_tables(path: Path, other: Path) -> None:
    """Assert that two files are read into equal tables, from which all figures are made."""
    tables, other_tables = read(path).tables, read(other).tables
    assert (tables.activities["kind"] == "memcpy").any()
    for name in TABLES:
        assert tables[name].equals(other_tables[name]), name


def test_a_program_in_both_dialects_has_equal_tables(tmp_path: Path) -> None:
    kineto = write_kineto(cnn_training(), tmp_path / "kineto.json")
    document = json.loads(kineto.read_text())
    events = [as_next_profiler(event) for event in document.pop("traceEvents")]
    assert any(event["name"] == "Memcpy" for event in events)
    assert_equal_tables(kineto, write(tmp_path / "next.json", events, **document))


@pytest.mark.skipif(not FIELD.exists(), reason="no shared traces")
def test_a_recording_in_both_dialects_has_equal_tables() -> None:
    assert_equal_tables(ALEXNET, FIELD)


@pytest.mark.parametrize(
    ("args", "name", "direction", "memories"),
    [
        ({"copy kind": "HtoD", "src kind": "pageable", "dst kind": "device"},
         "Memcpy HtoD (Pageable -> Device)", "HtoD", ("pageable", "device")),
        ({"copy kind": "DtoH", "src kind": "device_static", "dst kind": "pinned"},
         "Memcpy DtoH (Device Static -> Pinned)", "DtoH", ("device_static", "pinned")),
        # The exporter has no text for CUPTI's copies from host to host.
        ({"copy kind": 9, "src kind": "pinned", "dst kind": "pinned"},
         "Memcpy HtoH (Pinned -> Pinned)", "HtoH", ("pinned", "pinned")),
        ({}, "Memcpy", "unknown", ("unknown", "unknown")),
    ],
)  # fmt: skip
def test_copies_described_in_args(
    tmp_path: Path, args: dict[str, Any], name: str, direction: str, memories: tuple[str, str]
) -> None:
    described = {**kernel("Memcpy", 2, 1, bytes=8, **args), "cat": "gpu_memcpy"}
    tables = read(write(tmp_path / "t.json", [described, kernel("k", 5, 1)])).tables
    row = tables.activities.row(0, named=True)
    assert tables.names["name"][row["name_id"]] == name
    assert row["copy_kind"] == direction
    assert (row["source_memory"], row["destination_memory"]) == memories


def test_memsets_described_in_args(tmp_path: Path) -> None:
    sets = [
        {**kernel("Memset", start, 1, **args), "cat": "gpu_memset"}
        for start, args in enumerate([{"memory kind": 3}, {"memory kind": 5}, {}], 1)
    ]
    tables = read(write(tmp_path / "t.json", sets)).tables
    names = tables.names["name"].gather(tables.activities["name_id"]).to_list()
    assert names == ["Memset (Device)", "Memset (Managed)", "Memset"]


def test_a_kernel_on_the_lane_of_its_graph_has_its_stream_and_the_whole_id_of_its_node(
    tmp_path: Path,
) -> None:
    args = {"stream": 1_000_003, "original_stream": 21, "graph id": 5, "graph node id": 77}
    packed = {"graph id": 5, "graph node id": (5 << 32) + 77}
    events = [kernel("k", 1, 1, **args), kernel("k", 3, 1, **packed)]
    rows = read(write(tmp_path / "t.json", events)).tables.activities
    assert rows["stream"].to_list() == [21, 7]
    assert rows["graph_node"].to_list() == [(5 << 32) + 77] * 2


def test_arrows_between_nodes_of_a_graph_are_no_launches(tmp_path: Path) -> None:
    flow = {"cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "id": 1 << 40}
    nodes = [kernel(name, start, 1, correlation=9) for name, start in (("a", 20), ("b", 30))]
    arrows = [{**flow, "ph": "s", "ts": 21}, {**flow, "ph": "f", "ts": 30, "bp": "e"}]
    events = [call("cudaGraphLaunch", 1, 5, correlation=9), *nodes, *arrows]
    trace = traceana.open(write(tmp_path / "t.json", events))
    assert trace.tables.activities["call"].to_list() == [0, 0]
    assert trace.tables.calls["name"].to_list() == ["cudaGraphLaunch"]
    assert trace.tables.links.is_empty()


def replay(correlation: int, at: float) -> list[Event]:
    """Return a launch of a graph, whose node 4 waits for 2 by a recorded event (node 3), and for
    the callback 5, not for node 9, which ends last before it on a third stream."""

    def node(number: int, stream: int, start: float, dur: float, **more: Any) -> Event:
        args = {"correlation": correlation, "graph id": 6, "graph node id": number}
        lane = {"stream": 70 + stream, "original_stream": stream}
        return {**kernel(f"k{number}", at + start, dur, **args, **lane), "tid": 70 + stream, **more}

    def arrow(place: int, before: Event, after: Event) -> list[Event]:
        flow = {"cat": "ac2g", "name": "ac2g", "id": (1 << 40) + 10 * correlation + place}
        ends = (("s", before, before["ts"] + before["dur"]), ("f", after, after["ts"]))
        return [{**flow, "ph": ph, "pid": 0, "tid": of["tid"], "ts": ts} for ph, of, ts in ends]

    first, second = node(1, 1, 10, 10), node(2, 2, 20, 20)
    record = node(3, 2, 40, 0, cat="graph_event_node", name="EventRecord")
    callback = node(5, 3, 20, 5, cat="graph_host_node", name="HostNode: done")
    other, last = node(9, 3, 25, 20), node(4, 1, 50, 10)
    arrows = [
        (first, second),
        (second, record),
        (record, last),
        (first, callback),
        (callback, last),
    ]
    launch = {**call("cudaGraphLaunch", at, 5, correlation)}
    plain = {"cat": "ac2g", "name": "ac2g", "id": correlation, "pid": 100, "tid": 1, "ts": at}
    return [launch, {**plain, "ph": "s"}, first, second, record, callback, other, last] + [
        flow for place, (a, b) in enumerate(arrows) for flow in arrow(place, a, b)
    ]


def awaited_nodes(trace: traceana.Trace) -> dict[int, int]:
    """Return the node of another stream that each node waits for, the same in all replays."""
    waits, node = all_waits(trace), trace.tables.activities["graph_node"] - (6 << 32)
    pairs = {
        (node[activity], node[int(waits.activity[before])])
        for activity, before in zip(waits.activity.tolist(), waits.by_event, strict=True)
        if before >= 0
    }
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def test_dependencies_of_a_graph_are_waits_of_its_replays(tmp_path: Path) -> None:
    trace = traceana.open(write(tmp_path / "t.json", replay(11, 0) + replay(12, 100)))
    node = 6 << 32
    assert trace.tables.graph_dependencies.select("graph_node", "after").rows() == [
        (node + 2, node + 1), (node + 4, node + 1), (node + 4, node + 2)
    ]  # fmt: skip
    work = trace.tables.activities.filter(kind="kernel")
    assert work.height == 8
    assert awaited_nodes(trace) == {2: 1, 4: 2}
    ledger = trace.tables.ledger.filter(table="graph_dependencies")
    assert ledger.select("reason", "count", "severity").rows() == [("flow", 20, "note")]
    assert trace.tables.ledger.filter(reason="launch_flow")["count"].sum() == 2


def test_without_dependencies_the_last_node_is_taken(tmp_path: Path) -> None:
    events = [e for e in replay(11, 0) + replay(12, 100) if e.get("id", 0) < 1 << 40]
    trace = traceana.open(write(tmp_path / "t.json", events))
    assert awaited_nodes(trace)[4] == 9


def test_both_decoders_read_dependencies(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", replay(11, 0))
    with mock.patch.object(reader, "DECODER", decode.DECODER):
        tables = reader.read(path, silent).tables
    for name in TABLES:
        assert tables[name].equals(read(path).tables[name]), name


def test_arrows_without_nodes_are_counted(tmp_path: Path) -> None:
    flow = {"cat": "ac2g", "name": "ac2g", "id": 1 << 40, "ph": "s", "pid": 0, "tid": 7, "ts": 99}
    trace = read(write(tmp_path / "t.json", [*replay(11, 0), flow]))
    ledger = trace.tables.ledger.filter(table="graph_dependencies")
    assert sorted(ledger.select("detail", "count").rows()) == [
        ("between nodes of CUDA graphs", 10), ("without their nodes", 1)
    ]  # fmt: skip


def test_groups_and_annotations_of_kernels(tmp_path: Path) -> None:
    """Kernels have the process group and what torch.cuda.graph annotates in their args."""
    group = {
        **{"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 256, "Seq": 5},
        **{"Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"},
    }
    events = [
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1, 5, **group),
        kernel("k", 10, 5, annotation="model.layers.0"),
        kernel("k", 20, 5, str="model.layers.1"),
    ]
    tables = read(write(tmp_path / "t.json", events)).tables
    first = tables.activities.row(0, named=True)
    assert (first["collective"], first["group_size"], first["bytes"]) == ("allreduce", 2, 1024)
    assert tables.process_groups.select("name", "ranks").rows() == [("0", "[0,1]")]
    assert tables.activities["scope"].to_list()[1:] == [
        "nn.Module: model.layers.0", "nn.Module: model.layers.1"
    ]  # fmt: skip


def test_prediction_keeps_all_dependencies_of_a_graph(tmp_path: Path) -> None:
    """Node 4 waits for nodes 1 and 2: without 2 it follows the callback's node, not its launch."""
    events = replay(11, 0) + replay(12, 100) + replay(13, 200)
    (graph,) = graphs(traceana.open(write(tmp_path / "t.json", events)))
    node = traceana.open(tmp_path / "t.json").tables.activities["graph_node"] - (6 << 32)
    of_work = (graph.activity[graph.edges.source] >= 0) & (graph.edges.kind == EVENT)
    edges = {
        (node[int(graph.activity[source])], node[int(graph.activity[target])])
        for source, target in zip(
            graph.edges.source[of_work], graph.edges.target[of_work], strict=True
        )
    }
    assert edges == {(1, 2), (1, 4), (2, 4)}
