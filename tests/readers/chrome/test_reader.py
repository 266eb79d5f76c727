"""TensorFlow's trace.json, and traces of unknown programs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceana
from tests.readers.xplane.writing import accounted
from traceana.enrich import attribute
from traceana.errors import CorruptError, NotATraceError, UnknownFormatError
from traceana.readers import read
from traceana.readers.detect import detect

Event = dict[str, Any]


def named(kind: str, pid: int, name: str, tid: int | None = None) -> Event:
    event: Event = {"ph": "M", "pid": pid, "name": kind, "args": {"name": name}}
    return event if tid is None else {**event, "tid": tid}


def span(name: str, ts: float, dur: float, pid: Any = 1, tid: Any = 1, /, **args: Any) -> Event:
    return {"ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "name": name, "args": args}


def written(path: Path, events: list[Event], *, compress: bool = False) -> Path:
    text = json.dumps({"displayTimeUnit": "ns", "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(text, 1) if compress else text)
    return path


PLANES = [
    named("process_name", 1, "/device:GPU:2"),
    named("thread_name", 1, "Stream #7(Compute,MemcpyH2D)", 70),
    named("thread_name", 1, "XLA Ops", 71),
    named("process_name", 701, "/host:CPU"),
    named("thread_name", 701, "python", 5),
]


@pytest.mark.parametrize(
    ("events", "exporter"),
    [
        (
            [
                span("aten::addmm", 10.5, 100.25, "CPU functions", 1),
                span("aten::addmm", 30.5, 12.25, "CUDA functions", 0),
            ],
            "PyTorch's legacy profiler: 2 times of operators on CPU and GPU, and no kernels",
        ),
        (
            [
                {**span("model_loading_uri", 1, 5), "cat": "Session"},
                {**span("Conv_0_kernel_time", 10, 90, op_name="Conv"), "cat": "Node"},
                {**span("void k<float>(float*)", 12, 20, -1, -1, stream="7"), "cat": "Kernel"},
            ],
            "ONNX Runtime",
        ),
    ],
)
def test_devices_of_old_timelines_are_refused(
    tmp_path: Path, events: list[Event], exporter: str
) -> None:
    """As spans on threads, their kernels would be the host's work."""
    with pytest.raises(UnknownFormatError, match=exporter):
        read(written(tmp_path / "t.json", events))


def operator(kind: str, scope: str, start: int, duration: int, process: int) -> Event:
    return {**span(kind, start, duration, process, 0, name=scope, op=kind), "cat": "Op"}


def test_a_timeline_of_tensorflow_1_has_streams_scopes_and_operators(tmp_path: Path) -> None:
    """The work of each stream is there twice, once more for all streams or all copies."""
    job = "/job:localhost/replica:0/task:0/device:GPU:0 Compute"
    events = [
        named("process_name", 0, "/device:GPU:0/stream:all Compute"),
        named("process_name", 1, "/device:GPU:0/stream:13 Compute"),
        named("process_name", 2, "/device:GPU:0/memcpy Compute"),
        named("process_name", 3, job),
        operator("Conv2D", "net/conv1/Conv2D", 5, 2, 3),
        *(operator("Conv2D", "net/conv1/Conv2D", 10, 120, process) for process in (0, 1)),
        *(operator("MEMCPYHtoD", "edge_116__arg_x_0_0", 2, 7, process) for process in (1, 2)),
        operator("Conv2DBackpropFilter", "gradients/net/conv1/Conv2D_grad/x", 140, 80, 1),
    ]
    trace = traceana.open(written(tmp_path / "timeline.ctf.json", events))
    assert trace.meta.framework == "TensorFlow"
    rows = (
        trace.tables.activities.join(
            trace.tables.names.with_row_index("name_id"), on="name_id", maintain_order="left"
        )
        .join(trace.tables.layers.with_row_index("layer"), on="layer", how="left")
        .sort("start")
    )
    columns = ("name", "kind", "stream", "start", "duration", "direction", "path")
    assert rows.select(pl.col(columns).cast(pl.String)).rows() == [
        ("MemcpyH2D", "memcpy", "13", "0", "7000", None, "(outside all layers)"),
        ("Conv2D", "kernel", "13", "8000", "120000", "forward", "net.conv1"),
        ("Conv2DBackpropFilter", "kernel", "13", "138000", "80000", "backward", "net.conv1"),
    ]
    assert rows["copy_kind"].cast(pl.String).to_list() == ["HtoD", None, None]
    assert rows["category"].cast(pl.String).to_list() == ["memcpy", "conv", "conv"]
    assert trace.tables.ops.select("name", "scope", "duration").rows() == [
        ("Conv2D", "net/conv1/Conv2D", 2000)
    ]
    assert trace.tables.ledger.filter(reason="repeated")["count"].sum() == 2


@pytest.mark.parametrize("name", ["/gpu:1/stream:7 Compute", "/device:GPU:1/stream:all"])
def test_other_names_of_a_stream(tmp_path: Path, name: str) -> None:
    events = [named("process_name", 0, name), operator("MatMul", "fc/MatMul", 1, 3, 0)]
    (row,) = read(written(tmp_path / "t.json", events)).tables.activities.iter_rows(named=True)
    assert (row["device"], row["duration"]) == (1, 3000)


def test_a_profile_of_onnx_runtime_on_the_cpu_is_read(tmp_path: Path) -> None:
    events = [
        {**span("model_loading_uri", 1, 5), "cat": "Session"},
        {**span("Conv_0_kernel_time", 10, 90), "cat": "Node"},
    ]
    trace = read(written(tmp_path / "t.json", events))
    assert (trace.meta.format, trace.tables.ranges.height) == ("chrome", 2)


def test_a_timeline_of_the_host_alone_is_read(tmp_path: Path) -> None:
    name = "/job:localhost/replica:0/task:0/device:CPU:0 Compute"
    events = [named("process_name", 3, name), span("MatMul", 1, 2, 3, 0)]
    assert read(written(tmp_path / "t.json", events)).tables.ranges["duration"].to_list() == [2000]


def test_planes_of_a_tensorflow_trace(tmp_path: Path) -> None:
    events = [
        *PLANES,
        span("k", 10.5, 3.0000001, 1, 70, correlation_id="9", kernel_details="regs:8 grid:2,1,1"),
        span("MemcpyH2D", 20, 1, 1, 70, memcpy_details="size:4 dest:0 async:1"),
        span("fusion.1", 10.5, 3, 1, 71),
        span("Conv2D", 1, 5, 701, 5, long_name="net/conv1/Conv2D:Conv2D"),
        span("cuLaunchKernel", 2, 1, 701, 5, correlation_id="9"),
        span("train", 0.5, 20, 701, 5, step_num="4"),
        {},
    ]
    path = written(tmp_path / "t.json.gz", events, compress=True)
    assert detect(path).name == "xplane-json"
    trace = read(path)
    kernel, copy = trace.tables.activities.rows(named=True)
    assert (kernel["device"], kernel["stream"], kernel["correlation"]) == (2, 7, 9)
    assert (kernel["start"], kernel["duration"], kernel["registers"]) == (10_000, 3000, 8)
    assert (copy["kind"], copy["copy_kind"], copy["bytes"]) == ("memcpy", "HtoD", 4)
    assert trace.tables.ops.select("name", "scope").rows() == [("Conv2D", "net/conv1/Conv2D")]
    assert trace.tables.calls["correlation"].to_list() == [9]
    assert trace.tables.ranges.select("text", "kind").rows() == [
        ("train#4", "step"),
        ("fusion.1", "device"),
    ] or (
        trace.tables.ranges.select("text", "kind").rows()
        == [("fusion.1", "device"), ("train#4", "step")]
    )
    assert trace.meta.format == "xplane-json"
    assert accounted(trace) == trace.meta.events == len(events)


def test_jax_writes_the_scope_of_a_kernel_as_its_name(tmp_path: Path) -> None:
    scope = "jit(step)/transpose(jvp(net))/conv1/conv_general_dilated"
    xla = {"tf_op": "XlaModule:", "hlo_module": "jit_step"}
    events = [
        *PLANES,
        span("k", 10, 3, 1, 70, hlo_op="cudnn-conv.1", name=scope, **xla),
        span("k", 20, 3, 1, 70, hlo_op="fusion", name="state['conv1']", **xla),
        span("k", 30, 3, 1, 70, tf_op="net/fc/MatMul:MatMul", name="a/b"),
    ]
    trace = read(written(tmp_path / "t.json", events))
    assert trace.tables.activities["scope"].to_list() == [scope, None, "net/fc/MatMul"]
    assert {"net.fc", "net.conv1"} <= set(attribute(trace).tables.layers["path"])


def test_any_other_trace_is_read_generically(tmp_path: Path) -> None:
    events: list[Event] = [
        span("load", 0, 10, "loader", "main"),
        {"ph": "B", "pid": 4, "tid": 1, "ts": 1, "name": "outer"},
        {"ph": "B", "pid": 4, "tid": 1, "ts": 2, "name": "inner"},
        {"ph": "E", "pid": 4, "tid": 1, "ts": 5},
        {"ph": "E", "pid": 4, "tid": 1, "ts": 9},
        {"ph": "B", "pid": 4, "tid": 1, "ts": 10, "name": "never closed"},
        {"ph": "i", "pid": 4, "tid": 1, "ts": 3, "name": "mark"},
        {"ph": "C", "pid": 4, "ts": 3, "name": "memory", "args": {"bytes": 1}},
        {"ph": "X", "pid": 4, "tid": 2, "ts": 4, "dur": 1, "name": None, "args": ["odd"]},
        {"ph": "b", "pid": 4, "ts": 4, "name": "async"},
    ]
    path = written(tmp_path / "t.json", events)
    assert detect(path).name == "chrome-json"
    trace = read(path)
    found = trace.tables.ranges.select("text", "process", "thread", "start", "duration").rows()
    assert sorted(found, key=str) == sorted(
        [
            ("load", -2, -2, 0, 10_000),
            (None, 4, 2, 4000, 1000),
            ("inner", 4, 1, 2000, 3000),
            ("outer", 4, 1, 1000, 8000),
        ],
        key=str,
    )
    assert trace.tables.activities.is_empty()
    assert trace.meta.format == "chrome"
    assert "unknown profiler" in trace.meta.properties["read_as"]
    reasons = dict(trace.tables.ledger.select("reason", "count").iter_rows())
    assert reasons == {
        "instant": 1, "counter": 1, "unknown_category": 1, "range_end": 2, "malformed": 1,
    }  # fmt: skip
    assert accounted(trace) == trace.meta.events == len(events)


def test_threads_with_names_are_distinct_from_each_other_and_from_numbers(tmp_path: Path) -> None:
    threads = ["main", "loader", "writer", "pool", 0, 1, 2]
    events = [span("work", 0, 10, 1, thread) for thread in threads]
    found = read(written(tmp_path / "t.json", events)).tables.ranges["thread"]
    assert found.n_unique() == len(threads)
    assert {0, 1, 2} <= {*found}


def test_a_kineto_trace_stays_with_its_own_reader(tmp_path: Path) -> None:
    event = {**span("k", 1, 2), "cat": "kernel"}
    assert detect(written(tmp_path / "t.json", [event])).name == "kineto"


def test_cut_in_the_middle_is_read_up_to_there(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", [*PLANES, span("k", 1, 2, 1, 70), span("l", 4, 2, 1, 70)])
    path.write_bytes(path.read_bytes()[:-30])
    trace = read(path)
    assert trace.meta.truncated
    assert trace.tables.activities.height == 1
    assert accounted(trace) == trace.meta.events


def test_cut_before_the_first_event(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b'{"displayTimeUnit": "ns", "trace')
    with pytest.raises(CorruptError):
        read(path)


def test_invalid_events(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b'{"traceEvents": [{"ph": "X", "ts": [}, {"ph": "Q" "ts": 1}]}')
    with pytest.raises((NotATraceError, CorruptError)):
        read(path)
