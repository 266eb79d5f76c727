"""MXNet's profiles: small ones with known values, and a recorded one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceana
from traceana.errors import NotATraceError
from traceana.readers import read
from traceana.readers.detect import detect

FIXTURE = Path(__file__).parents[3] / "fixtures" / "legacy" / "alexnet-cpu-mxnet.json.gz"
DEVICES = ("cpu/0", "cpu/1", "cpu pinned/", "cpu shared/")
OF_OPERATORS, OF_API, OF_FRAMES = 900, 901, 18_446_744_073_709_551_615
ENGINE, MAIN = 17_609_640_201_219_353_610, 7_893_044_451_751_600_190

Event = dict[str, Any]


def labels() -> list[Event]:
    names = dict(enumerate(DEVICES)) | {
        OF_OPERATORS: "operator", OF_API: "MXNET_C_API", OF_FRAMES: "train,frame",
    }  # fmt: skip
    return [
        {"ph": "M", "args": {"name": name}, "pid": pid, "name": "process_name"}
        for pid, name in names.items()
    ]


def pair(
    name: str, start: int, end: int, category: str, pid: int, tid: int = ENGINE, phases: str = "BE"
) -> list[Event]:
    common = {"name": name, "cat": category, "pid": pid, "tid": tid}
    return [
        {**common, "ph": phase, "ts": time}
        for phase, time in zip(phases, (start, end), strict=True)
    ]


def operator(name: str, start: int, end: int) -> list[Event]:
    """Return an operator as MXNet writes it: on its device, and again as a task."""
    return [
        *pair(name, start, end, "operator", 0),
        *pair(name, start, end, "operator", OF_OPERATORS, phases="be"),
    ]


def frame(name: str, start: int, end: int) -> list[Event]:
    return pair(name, start, end, "train,frame", OF_FRAMES, MAIN, phases="()")


def write(path: Path, events: list[Event]) -> Path:
    path.write_text(json.dumps({"traceEvents": [*labels(), *events]}, indent=4))
    return path


def test_every_event_is_in_a_table_or_in_the_ledger(tmp_path: Path) -> None:
    api = pair("MXNDArrayWaitAll", 1100, 1500, "MXNET_C_API", OF_API, MAIN, phases="be")
    counter = {"ph": "C", "name": "Memory: cpu/0", "ts": 5, "args": {"Memory: cpu/0": 1}, "pid": 9}
    events = [*operator("Convolution", 1010, 1030), *api, counter, *frame("epoch", 1000, 1500)]
    trace = read(write(tmp_path / "profile.json", events))
    assert trace.meta.format == "mxnet"
    assert trace.tables.ops.select("name", "start", "duration").rows() == [
        ("Convolution", 10_000, 20_000)
    ]
    assert trace.tables.ranges.sort("start", descending=True).select(
        "text", "kind", "start", "duration"
    ).rows() == [
        ("MXNDArrayWaitAll", "runtime", 100_000, 400_000),
        ("epoch", "annotation", 0, 500_000),
    ]
    assert trace.tables.ops["thread"].item() != trace.tables.ranges["thread"].unique().item()
    counted = dict(trace.tables.ledger.select("reason", "count").iter_rows())
    assert counted == {"metadata": 7, "counter": 1, "range_end": 4, "repeated": 1}
    kept = trace.tables.ops.height + trace.tables.ranges.height
    assert kept + sum(counted.values()) == trace.meta.events == 7 + len(events)
    assert trace.meta.epoch_ns == 1_000_000


def test_spans_that_touch_and_nest_in_one_microsecond_keep_their_own_ends(tmp_path: Path) -> None:
    events = [
        *operator("inner", 10, 12),
        *operator("outer", 10, 20),
        *operator("inner", 12, 15),
        *operator("inner", 15, 15),
    ]
    ops = read(write(tmp_path / "p.json", events)).tables.ops.sort("start", "duration")
    assert ops.select("name", "start", "duration").rows() == [
        ("inner", 0, 2_000),
        ("outer", 0, 10_000),
        ("inner", 2_000, 3_000),
        ("inner", 5_000, 0),
    ]


def test_steps_and_the_backward_pass_of_each_layer(tmp_path: Path) -> None:
    events: list[Event] = []
    for step in range(2):
        at = 1000 * (step + 1)
        names = ["Convolution", "Activation", "Convolution", "Pooling"]
        gradients = ["_backward_Convolution", "_backward_Activation", "_backward_Convolution"]
        for number, name in enumerate([*names, *gradients, "sgd_mom_update"]):
            events += operator(name, at + 10 * number, at + 10 * number + number + 1)
        events += frame(f"iteration {step}", at - 5, at + 100)
    trace = traceana.open(write(tmp_path / "p.json", events))
    assert trace.tables.steps.select("number", "duration").rows() == [(0, 105_000), (1, 105_000)]
    first = trace.tables.activities.filter(pl.col("step") == 0)
    paths = trace.tables.layers["path"].gather(first["layer"])
    assert list(zip(paths, first["direction"], strict=True)) == [
        ("Convolution_0", "forward"),
        ("Activation_0", "forward"),
        ("Convolution_1", "forward"),
        ("Pooling_0", "forward"),
        ("Convolution_1", "backward"),
        ("Activation_0", "backward"),
        ("Convolution_0", "backward"),
        ("sgd_mom_update", "optimizer"),
    ]


def test_gradients_that_are_fewer_than_their_operators_are_given_to_none(tmp_path: Path) -> None:
    names = ["Convolution", "Convolution", "_backward_Convolution"]
    events = [e for i, name in enumerate(names) for e in operator(name, 10 * i + 1, 10 * i + 5)]
    trace = traceana.open(write(tmp_path / "p.json", [*events, *frame("iteration 0", 1, 90)]))
    paths = trace.tables.layers["path"].gather(trace.tables.activities["layer"]).to_list()
    assert paths == ["Convolution_0", "Convolution_1", "(outside all layers)"]


def test_the_recorded_profile() -> None:
    assert detect(FIXTURE).name == "mxnet"
    events = json.loads(gzip.decompress(FIXTURE.read_bytes()))["traceEvents"]
    begun = [event for event in events if event["ph"] == "B"]
    ended = [event for event in events if event["ph"] == "E"]
    trace = traceana.open(FIXTURE)
    # In whole microseconds, so the sums are exact.
    total = sum(event["ts"] for event in ended) - sum(event["ts"] for event in begun)
    assert trace.tables.ops.height == len(begun) == len(ended)
    assert trace.tables.activities["duration"].sum() == 1000 * total
    assert trace.tables.steps["number"].to_list() == [0, 1, 2]
    assert trace.tables.ledger.filter(pl.col("severity") == "problem").is_empty()
    both = trace.tables.activities.with_columns(
        trace.tables.layers["path"].gather(trace.tables.activities["layer"]).alias("path")
    ).filter(pl.col("path").str.contains("^(?:Convolution|FullyConnected)_"))
    per_layer = both.group_by("path").agg(pl.col("direction").value_counts().struct.field("count"))
    assert per_layer.height == 8
    assert all(set(counts) == {3} and len(counts) == 2 for counts in per_layer["count"].to_list())
    category = trace.tables.names["category"].gather(both["name_id"])
    assert set(category) == {"conv", "gemm"}


def test_a_cut_file_is_read_up_to_there(tmp_path: Path) -> None:
    whole = write(tmp_path / "p.json", [*operator("a", 1, 2), *operator("b", 3, 9)])
    text = whole.read_text()
    cut = tmp_path / "cut.json"
    cut.write_text(text[: text.rindex('"b"')])
    trace = read(cut)
    assert trace.meta.truncated
    assert "a" in trace.tables.ops["name"].to_list()
    begun = text[: text.index("cpu pinned/") + 20]
    cut.write_text(begun[: begun.index("[")] + "[" + " " * 10 + '{"ph": "M", "name": "cpu pinned/"')
    with pytest.raises(NotATraceError, match="without a valid trace event"):
        read(cut)
