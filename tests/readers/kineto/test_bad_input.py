"""Input without a trace, or damaged: a typed one-line error, or the readable part."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceana
from tests.readers.kineto.writing import kernel, write
from traceana.errors import (
    CorruptError,
    NotATraceError,
    NotFoundError,
    TraceanaError,
    UnknownFormatError,
)
from traceana.readers import read
from traceana.readers.source import silent

EVENTS = [kernel(f"k{i}", 10 * i + 5, 2, correlation=i) for i in range(200)]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", CorruptError),
        (bytes(range(256)) * 20, UnknownFormatError),
        (b"hello, world", UnknownFormatError),
        (b"\x1f\x8b\x08nonsense", CorruptError),
        (b'"just text"', NotATraceError),
        (b"42", NotATraceError),
        (b'{"a": 1}', NotATraceError),
        (b'{"nested": {"traceEvents": [{"ph": "X"}]}}', NotATraceError),
        (b'{"text": "\\"traceEvents\\": ["}', NotATraceError),
        (b"[1, 2, 3]", NotATraceError),
        (b"[]", NotATraceError),
        (b'[{"a": 1}, {"b": 2}]', NotATraceError),
        (b'{"schemaVersion": 1, "devi', CorruptError),
        (b"{", CorruptError),
        (b"   \n ", CorruptError),
    ],
)
def test_no_trace(tmp_path: Path, content: bytes, error: type[TraceanaError]) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(error) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_file_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read(tmp_path / "nothing")
    with pytest.raises(UnknownFormatError):
        read(tmp_path)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.json", EVENTS)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(NotFoundError, match="Permission denied"):
        read(path)


def test_a_trace_of_nothing_is_read(tmp_path: Path) -> None:
    trace = traceana.open(write(tmp_path / "t.json", []))
    assert trace.tables.activities.is_empty()
    assert trace.tables.names.is_empty()
    assert not trace.meta.truncated


@pytest.mark.parametrize("share", [0.4, 0.7, 0.999])
@pytest.mark.parametrize("compress", [False, True])
def test_what_is_whole_before_the_break_is_kept(
    tmp_path: Path, share: float, compress: bool
) -> None:
    whole = write(tmp_path / "whole.json", EVENTS, compress=compress).read_bytes()
    path = tmp_path / "cut.json"
    path.write_bytes(whole[: int(len(whole) * share)])
    trace = read(path)
    assert trace.meta.truncated
    assert 0 < trace.tables.activities.height < len(EVENTS) or share > 0.99
    want = [event["ts"] * 1000 - 5000 for event in EVENTS]
    assert trace.tables.activities["start"].to_list() == want[: trace.tables.activities.height]
    assert (trace.tables.ledger["reason"] == "truncated").sum() == 1
    assert trace.meta.bytes_total == path.stat().st_size
    if compress:
        assert trace.meta.bytes_read == trace.meta.bytes_total
    else:
        last = EVENTS[trace.tables.activities.height - 1]["name"]
        assert json.dumps(last).encode() in whole[: trace.meta.bytes_read][-200:]


def test_damage_in_the_middle_of_a_gzip_is_in_the_ledger(tmp_path: Path) -> None:
    noise = random.Random(1)
    events = [kernel(f"k{noise.random()}", i + 1, 1) for i in range(40_000)]
    path = write(tmp_path / "t.json.gz", events, compress=True)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 400] = b"\xff" * 400
    path.write_bytes(data)
    trace = read(path)
    assert trace.meta.truncated
    assert "damaged" in trace.tables.ledger["reason"].to_list()
    # Deflate may go on inflating nonsense: only what came before the damage is surely right.
    names = trace.tables.names["name"].gather(trace.tables.activities["name_id"]).to_list()
    assert names[:15_000] == [event["name"] for event in events[:15_000]]


def test_only_the_closing_brackets_are_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", EVENTS)
    path.write_bytes(path.read_bytes()[:-2])
    trace = read(path)
    assert trace.tables.activities.height == len(EVENTS)
    assert trace.meta.truncated


@pytest.mark.parametrize("end", [",\n", "", "\n"])
def test_a_bare_array_without_its_bracket_is_truncated(tmp_path: Path, end: str) -> None:
    path = tmp_path / "t.json"
    path.write_text("[\n" + ",\n".join(json.dumps(event) for event in EVENTS) + end)
    trace = read(path)
    assert trace.tables.activities.height == len(EVENTS)
    assert trace.meta.truncated
    assert dict(trace.tables.ledger.select("reason", "severity").rows()) == {"truncated": "problem"}


def test_raw_control_characters_backslashes_and_tokens(tmp_path: Path) -> None:
    text = (
        b'{"traceEvents": [\n'
        b'{"ph":"X","cat":"kernel","name":"C:\\q\x01\n","pid":0,"tid":7,"ts":10,"dur":1},\n'
        b'{"ph":"X","cat":"kernel","name":"n","pid":0,"tid":7,"ts":11,"dur":NaN},\n'
        b'{"ph":"X","cat":"kernel","name":"a","pid":0,"tid":7,"ts":12,"dur":N/A},\n'
        b'{"ph":"X","cat":"kernel","name":"\xff","pid":0,"tid":7,"ts":13,"dur":2}]}'
    )
    path = tmp_path / "t.json"
    path.write_bytes(text)
    trace = read(path)
    assert trace.tables.names["name"].to_list() == ["C:\\q\x01\n", "\ufffd"]
    counted = dict(trace.tables.ledger.select("reason", "count").iter_rows())
    assert counted == {"repaired": 4, "missing_time": 2}
    kept = (
        trace.tables.activities.height + trace.tables.ledger.filter(~pl.col("kept"))["count"].sum()
    )
    assert kept == trace.meta.events == 4


def test_an_argument_of_another_type_is_lost_alone(tmp_path: Path) -> None:
    launch = {
        "ph": "X", "cat": "cpu_op", "name": "triton_poi_fused_add_0", "pid": 5, "tid": 42,
        "ts": 9, "dur": 6, "args": {
            "grid": "grid(4096,)", "Input Dims": [[4, 8]], "External id": {"no": "number"},
            "Sequence number": 7,
        },
    }  # fmt: skip
    odd = kernel("k", 12, 2, grid="(8, 1, 1)", block=[32, 1, 1], correlation=[3])
    other = kernel("k", 15, 2, grid=[8, 1, 1], block=[32, 1, 1])
    trace = read(write(tmp_path / "t.json", [launch, odd, other]))
    assert trace.meta.events == 3
    assert trace.tables.ops.select("input_shapes", "sequence", "external").rows() == [
        ("[[4, 8]]", 7, None)
    ]
    assert trace.tables.activities.select(
        "duration", "grid_x", "block_x", "correlation"
    ).rows() == [
        (2000, None, 32, None),
        (2000, 8, 32, None),
    ]
    lost = trace.tables.ledger.select("reason", "severity", "kept", "count", "detail")
    assert sorted(lost.filter(reason="lost_field").rows()) == [
        ("lost_field", "note", True, 1, "External id"),
        ("lost_field", "note", True, 1, "correlation"),
        ("lost_field", "note", True, 1, "grid"),
    ]
    assert "malformed" not in lost["reason"]


@pytest.mark.parametrize(
    ("name", "keys", "vendor"),
    [
        ("Tesla V100-SXM2-16GB", {}, "NVIDIA"),
        ("NVIDIA H100 80GB HBM3", {}, "NVIDIA"),
        ("AMD Instinct MI300X", {}, "AMD"),
        ("gfx942", {}, "AMD"),
        ("Intel(R) Data Center GPU Max 1550", {}, "Intel"),
        ("Some Accelerator", {}, None),
        ("Some Accelerator", {"hip_runtime_version": 60000000}, "AMD"),
        ("Some Accelerator", {"cuda_driver_version": 12040}, "NVIDIA"),
        (None, {}, None),
    ],
)
def test_the_vendor_by_name_and_by_runtime(
    tmp_path: Path, name: str | None, keys: dict[str, Any], vendor: str | None
) -> None:
    listed = [{"id": 0, "name": name}]
    path = write(tmp_path / "t.json", [kernel("k", 5, 1)], deviceProperties=listed, **keys)
    assert read(path).tables.devices["vendor"].to_list() == [vendor]


def test_a_flow_without_a_time_is_counted_and_no_link(tmp_path: Path) -> None:
    flow = {"cat": "fwdbwd", "name": "fwdbwd", "pid": 1, "tid": 1}
    events = [
        kernel("k", 10, 5),
        {**flow, "ph": "s", "id": 1, "ts": 10},
        {**flow, "ph": "f", "id": 1, "ts": True},
        {**flow, "ph": "s", "id": 2, "ts": 11},
        {**flow, "ph": "f", "id": 2, "ts": 12},
    ]
    trace = traceana.open(write(tmp_path / "run.json", events))
    assert trace.tables.links.height == 1
    counted = (
        trace.tables.ledger.filter(pl.col("table") == "links").select("reason", "count").rows()
    )
    assert sorted(counted) == [("flow", 1), ("flow", 1), ("missing_time", 1)]


@pytest.mark.parametrize(
    "text", ["[[1000, 2000], [[0, 1, 2], [0, 4, 5]]]", "[[1000, 0, 512, 1], [2000, 1, -1024, 2]]"]
)
def test_a_memory_timeline_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "memory.json"
    path.write_text(text)
    with pytest.raises(UnknownFormatError, match="memory timeline"):
        read(path, silent)
