"""PyTorch's own CUDA profiler, as its source writes JSON: ``torch/profiler/_cuspy/trace.py``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import traceana
from tests.readers.kineto.writing import Event, call, kernel, write
from tests.support.manifest import TRACES
from tests.support.synthetic.cnn import cnn_training
from tests.support.synthetic.kineto import write_kineto
from traceana.readers import read
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
