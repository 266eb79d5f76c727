"""Perfetto traces of PyTorch's own CUDA profiler, against its JSON of the same events."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.readers.kineto.test_next_profiler import as_next_profiler
from tests.readers.kineto.writing import Event, annotation, call, kernel, op
from tests.readers.perfetto.writing import (
    BASE,
    BEGIN,
    CLEARED,
    END,
    INSTANT,
    Texts,
    Writer,
    nanoseconds,
    write_pytorch,
)
from tests.readers.rocprof.perfetto import message
from tests.support.synthetic.cnn import cnn_training
from tests.support.synthetic.kineto import write_kineto
from traceana import open as open_trace
from traceana.readers import read
from traceana.trace import Trace
from traceana.trace.schema import TABLES

LAUNCH: dict[str, Any] = {
    "grid": [2, 3, 4],
    "block": [64, 2, 1],
    "registers per thread": 32,
    "context": 1,
}


def write_json(path: Path, events: list[Event]) -> Path:
    """Write events as JSON without spaces and escapes, so that lists of shapes are equal texts."""
    path.write_bytes(msgspec.json.encode({"traceEvents": events}))
    return path


def notes(trace: Trace, reason: str) -> int:
    """Return how many events the ledger has under a reason."""
    return int(trace.tables.ledger.filter(pl.col("reason") == reason)["count"].sum())


def activities(trace: Trace) -> pl.DataFrame:
    """Return the activities with their names, by start, without what PyTorch's packets lack.

    These are directions of copies, and static shared memory.
    """
    lacking = ("shared_memory", "copy_kind", "source_memory", "destination_memory", "name_id")
    frame = trace.tables.activities
    name = trace.tables.names["name"].gather(frame["name_id"]).cast(pl.String)
    return (
        frame.drop(lacking)
        .with_columns(pl.coalesce(name.str.extract(r"^(Memcpy)\b"), name).alias("name"))
        .sort("start", "kind", "stream")
    )


def training(folder: Path) -> list[Event]:
    """Return the events of a training, as PyTorch's own profiler writes them as JSON."""
    document = json.loads(write_kineto(cnn_training(), folder / "kineto.json").read_text())
    return [as_next_profiler(event) for event in document["traceEvents"]]


def test_a_training_as_packets_has_the_tables_of_its_json(tmp_path: Path) -> None:
    events = training(tmp_path)
    as_json = read(write_json(tmp_path / "next.json", events))
    trace = read(write_pytorch(tmp_path / "next.pftrace.gz", events))
    assert (trace.meta.format, trace.meta.producer) == ("kineto", "torch.profiler")
    assert (trace.meta.framework, trace.meta.truncated) == ("PyTorch", False)
    assert trace.meta.events == as_json.meta.events == len(events)
    assert trace.meta.epoch_ns == BASE + min(nanoseconds(event["ts"]) for event in events)
    for table in set(TABLES) - {"activities", "devices", "names", "ledger"}:
        assert trace.tables[table].equals(as_json.tables[table]), table
    assert activities(trace).equals(activities(as_json))
    assert trace.tables.devices["compute_capability"].to_list() == ["7.0"]
    problems = trace.tables.ledger.filter(pl.col("severity") == "problem")
    assert problems["reason"].to_list() == ["no_direction"]


def test_a_kernel_has_what_its_render_stage_has(tmp_path: Path) -> None:
    args = {**LAUNCH, "correlation": 9, "graph id": 5, "graph node id": 77, "annotation": "net.fc"}
    events = [
        call("cudaLaunchKernel", 1, 2, correlation=9),
        kernel("gemm", 5, 1.5, **args),
        {**kernel("Memset", 8, 1, bytes=64, **{"memory kind": 3}), "cat": "gpu_memset"},
    ]
    tables = open_trace(write_pytorch(tmp_path / "t.pftrace", events)).tables
    row = tables.activities.row(0, named=True)
    assert [row[f"{size}_{axis}"] for size in ("grid", "block") for axis in "xyz"] == [
        *(2, 3, 4),
        *(64, 2, 1),
    ]
    assert (row["registers"], row["device"], row["stream"], row["duration"]) == (32, 0, 7, 1500)
    assert (row["call"], row["correlation"]) == (0, 9)
    assert row["graph_node"] == (5 << 32) + 77
    # Of two parts of the shared memory PyTorch writes one.
    assert row["shared_memory"] is None
    names = tables.names["name"].gather(tables.activities["name_id"]).to_list()
    assert names == ["gemm", "Memset (Device)"]
    assert tables.activities["bytes"].to_list() == [None, 64]


def test_copies_have_bytes_and_no_direction(tmp_path: Path) -> None:
    args = {"bytes": 4096, "copy kind": "HtoD", "correlation": 3}
    events = [
        call("cudaMemcpyAsync", 1, 2, correlation=3),
        {**kernel("Memcpy", 5, 1, **args), "cat": "gpu_memcpy"},
    ]
    trace = open_trace(write_pytorch(tmp_path / "t.pftrace", events))
    row = trace.tables.activities.row(0, named=True)
    assert (row["kind"], row["copy_kind"], row["bytes"], row["call"]) == (
        *("memcpy", "unknown"),
        *(4096, 0),
    )


def test_calls_and_stages_without_correlations_are_linked_by_the_ids_of_stages(
    tmp_path: Path,
) -> None:
    writer = Writer()
    begin = writer.event(BEGIN, writer.track(100, 1), 10)
    begin.name, begin.categories[:] = "cudaGraphLaunch", ["cuda_runtime"]
    begin.MergeFromString(message((3000, message((1, 41), (1, 42)))))
    writer.event(END, writer.track(100, 1), 20)
    for number, start in ((41, 30), (42, 50), (43, 70)):
        stage = writer.packet(start).gpu_render_stage_event
        stage.event_id, stage.duration, stage.name = number, 10, "gemm"
    tables = open_trace(writer.write(tmp_path / "t.pftrace")).tables
    assert tables.activities["call"].to_list() == [0, 0, None]


def test_collectives_have_their_group(tmp_path: Path) -> None:
    collective = {
        "Collective name": "allreduce", "In msg nelems": 100, "Out msg nelems": 100,
        "dtype": "Float", "Group size": 2, "Process Group Name": "0",
        "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]", "Seq": 7,
    }  # fmt: skip
    events = [kernel("ncclDevKernel_AllReduce", 5, 1, **LAUNCH, **collective), op("a", 1, 1)]
    as_json = read(write_json(tmp_path / "t.json", events)).tables
    tables = read(write_pytorch(tmp_path / "t.pftrace", events)).tables
    assert tables.process_groups.equals(as_json.process_groups)
    columns = ["collective", "collective_sequence", "process_group", "bytes", "output_bytes"]
    assert tables.activities.select(columns).equals(as_json.activities.select(columns))
    assert tables.activities["bytes"].to_list() == [400]


def test_synchronizations_and_overhead_have_no_category_in_the_file(tmp_path: Path) -> None:
    sync = {
        **kernel("Stream Wait Event", 3, 1),
        "cat": "cuda_sync",
        "args": {
            "cuda_sync_kind": "Stream Wait Event", "stream": 7, "correlation": 4, "device": 0,
            "context": 1, "wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": 2,
        },
    }  # fmt: skip
    overhead = {**op("Buffer Flush", 6, 2), "cat": "overhead", "pid": -1, "tid": 0}
    events = [op("aten::mm", 1, 1), kernel("k", 2, 1, **LAUNCH), sync, overhead]
    as_json = read(write_json(tmp_path / "t.json", events))
    trace = read(write_pytorch(tmp_path / "t.pftrace", events))
    assert activities(trace).equals(activities(as_json))
    assert trace.tables.activities["kind"].to_list() == ["sync", "kernel"]
    assert trace.tables.ranges.equals(as_json.tables.ranges)
    assert trace.tables.ranges["kind"].to_list() == ["overhead"]


def test_annotations_of_the_gpu_are_ranges_of_their_device(tmp_path: Path) -> None:
    mirror = {**annotation("forward", 4, 9), "cat": "gpu_user_annotation", "pid": 0, "tid": 7}
    mirror["args"] = {"stream": 7}
    events = [annotation("forward", 1, 2), kernel("k", 5, 1, **LAUNCH), mirror]
    as_json = read(write_json(tmp_path / "t.json", events)).tables
    tables = read(write_pytorch(tmp_path / "t.pftrace", events)).tables
    assert tables.ranges.equals(as_json.ranges)
    assert tables.ranges["device"].to_list() == [None, 0]


def test_ends_that_the_exporter_may_have_cut_are_a_note(tmp_path: Path) -> None:
    starts = {"a": (5, 4), "b": (7, 1), "c": (20, 2)}
    events = [kernel(name, *times, **LAUNCH, correlation=1) for name, times in starts.items()]
    trace = read(write_pytorch(tmp_path / "t.pftrace", events))
    assert trace.tables.activities["duration"].to_list() == [2000, 1000, 2000]
    assert notes(trace, "cut_end") == 1


def test_waits_of_stages_are_the_arrows_between_nodes_of_a_graph(tmp_path: Path) -> None:
    nodes = [
        kernel(name, start, 1, correlation=9, **LAUNCH, **{"graph id": 1, "graph node id": node})
        for node, (name, start) in enumerate((("a", 20), ("b", 30), ("c", 40)), 1)
    ]
    events = [call("cudaGraphLaunch", 1, 5, correlation=9), *nodes]
    path = write_pytorch(tmp_path / "t.pftrace", events, {1: [0], 2: [0, 1]})
    arrows = [
        {"ph": phase, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "id": id_, "ts": ts}
        for id_, (source, target) in enumerate(((21, 30), (21, 40), (31, 40)), 1 << 40)
        for phase, ts in (("s", source), ("f", target))
    ]
    as_json = read(write_json(tmp_path / "t.json", [*events, *arrows]))
    trace = read(path)
    dependencies = trace.tables.graph_dependencies
    assert dependencies.equals(as_json.tables.graph_dependencies)
    first = 1 << 32
    assert dependencies.select("graph_node", "after").rows() == [
        (first + 2, first + 1), (first + 3, first + 1), (first + 3, first + 2)
    ]  # fmt: skip
    assert trace.meta.events == as_json.meta.events
    assert notes(trace, "flow") == notes(as_json, "flow") == 6


def test_slices_that_touch_keep_their_ends(tmp_path: Path) -> None:
    # By time alone, b would begin within a and end at once.
    events = [op("outer", 0, 40), op("a", 1, 9), op("b", 10, 5), op("c", 15, 1), kernel("k", 50, 1)]
    tables = read(write_pytorch(tmp_path / "t.pftrace", events)).tables
    assert tables.ops["duration"].to_list() == [40_000, 9_000, 5_000, 1_000]


def test_a_trace_of_the_cpu_alone(tmp_path: Path) -> None:
    shapes: dict[str, Any] = {
        "Input Dims": [[2, 3], [], [[1]]],
        "Input type": ["float", ""],
        "Concrete Inputs": [],
    }
    events = [op("aten::mm", 1, 9, **shapes), op("aten::add", 2, 1, **{"Sequence number": 4})]
    as_json = read(write_json(tmp_path / "t.json", events)).tables
    tables = read(write_pytorch(tmp_path / "t.pftrace", events)).tables
    assert tables.ops.equals(as_json.ops)
    assert tables.ops["input_shapes"].to_list() == ["[[2,3],[],[[1]]]", None]


_TEXT = st.text(max_size=8)
_VALUE = st.recursive(
    st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
    | _TEXT
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, min_size=1, max_size=3)
    ),
    max_leaves=6,
)
_ARGS = st.dictionaries(
    st.sampled_from(
        ["correlation", "stream", "device", "bytes", "External id", "Sequence number", "Input Dims",
         "Concrete Inputs", "Fwd thread id", "Addr", "Device Type", "Device Id", "copy kind",
         "graph node id", "grid", "Module Hierarchy", "annotation"]
    ) | _TEXT,
    st.integers(0, 2**40) | _VALUE,
    max_size=5,
)  # fmt: skip
_EVENTS = st.lists(
    st.builds(
        lambda category, name, pid, tid, start, duration, args: {
            "ph": "i" if category == "cpu_instant_event" else "X",
            "cat": category, "name": name, "pid": pid, "tid": tid,
            "ts": start / 1000, "dur": duration / 1000, "args": args,
        },
        st.sampled_from(
            ["cpu_op", "kernel", "gpu_memcpy", "cuda_runtime", "user_annotation", "cuda_sync",
             "cpu_instant_event", "python_function", "", "mtia_ccp_events", "Trace"]
        ),
        st.sampled_from(["aten::mm", "[memory]", "Memcpy", "nccl:all_reduce", "ProfilerStep#3"])
        | _TEXT,
        st.integers(0, 2),
        st.integers(0, 3),
        st.integers(1, 10**6),
        st.integers(0, 10**5),
        _ARGS,
    ),
    max_size=12,
)  # fmt: skip


@pytest.mark.slow
@given(_EVENTS)
def test_events_on_tracks_have_the_tables_of_their_json(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event]
) -> None:
    folder = tmp_path_factory.mktemp("equal")
    # The first two are written as PyTorch does, begins before ends: time alone pairs no others.
    events = [op("outer", 1, 5), op("inner", 2, 1), *events]
    writer = Writer()
    writer.clocks()
    texts = Texts(writer.packet(flags=CLEARED))
    writer.slices((event for event in events if event["ph"] == "X"), texts)
    for event in events:
        if event["ph"] == "i":
            track = writer.track(event["pid"], event["tid"])
            mark = writer.event(INSTANT, track, BASE + nanoseconds(event["ts"]))
            texts.describe(mark, event)
    for event in events:
        if event["cat"] == "cuda_sync" and "cuda_sync_kind" not in event["args"]:
            event["cat"] = ""  # It is known by this argument.
    as_json = read(write_json(folder / "t.json", events))
    trace = read(writer.write(folder / "t.pftrace"))
    assert trace.meta.events == as_json.meta.events
    for table in set(TABLES) - {"ledger"}:
        assert trace.tables[table].equals(as_json.tables[table]), table
    assert left_out(trace) == left_out(as_json)


def left_out(trace: Trace) -> Counter[str]:
    """Return the counts of the ledger by reason.

    Whether events of no category look like device work depends on those that are decoded at once.
    """
    counts: Counter[str] = Counter()
    for row in trace.tables.ledger.to_dicts():
        reason = "unknown_category" if row["reason"] == "unread_work" else row["reason"]
        counts[reason] += row["count"] * (reason != "cut_end")
    return +counts
