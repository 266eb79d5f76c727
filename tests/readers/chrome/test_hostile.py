"""Hostile documents of the Chrome formats: read, counted in the ledger or refused, in little time
and memory."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import traceana
from tests.readers.chrome.test_mxnet import frame, labels
from tests.readers.chrome.test_reader import PLANES, span
from tests.readers.kineto.writing import kernel
from traceana.errors import TraceanaError
from traceana.readers import read
from traceana.readers.source import ByteSource
from traceana.trace import Trace

Event = dict[str, Any]
KERNELS = [kernel(f"k{i}", 10 * i + 5, 2, correlation=i) for i in range(20)]
FORMATS: dict[str, list[Event]] = {
    "kineto": KERNELS,
    "xplane-json": [*PLANES, *(span(f"k{i}", 10 * i + 5, 2, 1, 70) for i in range(20))],
    "chrome": [span(f"k{i}", 10 * i + 5, 2) for i in range(20)],
    "mxnet": [*labels(), *(one for i in range(20) for one in frame("f", 10 * i + 5, 10 * i + 7))],
}


def text_of(events: list[Event]) -> list[str]:
    return [json.dumps(event) for event in events]


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def timed_rows(trace: Trace) -> int:
    return trace.tables.activities.height + trace.tables.ranges.height


def problems(trace: Trace) -> list[str]:
    return trace.tables.ledger.filter(severity="problem")["reason"].to_list()


def test_both_of_two_arrays_of_events_are_read(tmp_path: Path) -> None:
    first, second = text_of(KERNELS[:5]), text_of(KERNELS[5:])
    path = written(
        tmp_path / "t.json",
        f'{{"schemaVersion": 1, "traceEvents": [{",".join(first)}], "distributedInfo": {{"rank": 3,'
        f'"world_size": 4}}, "traceEvents" : [{",".join(second)}], "cuda_runtime_version": 12040}}',
    )
    trace = read(path)
    assert trace.tables.activities.height == trace.meta.events == len(KERNELS)
    assert (trace.meta.rank, trace.meta.properties["cuda_runtime_version"]) == (3, 12040)
    assert not trace.meta.truncated
    assert trace.tables.ledger.select("reason", "severity", "detail").rows() == [
        ("repaired", "problem", "another traceEvents")
    ]


@pytest.mark.parametrize("extra", ['{"traceEvents": []}', "[]", "x", ', {"ph": "X"}]'])
def test_text_after_the_document_is_a_problem(tmp_path: Path, extra: str) -> None:
    events = ",".join(text_of(KERNELS))
    for text in (f"[{events}]", f'{{"schemaVersion": 1, "traceEvents": [{events}]}}'):
        trace = read(written(tmp_path / "t.json", f"{text}\n{extra}"))
        assert trace.tables.activities.height == len(KERNELS)
        assert problems(trace)


@pytest.mark.parametrize("hole", ["", " ", ", ,", "null,", '"text", 5,'])
def test_a_hole_between_events_is_a_problem(tmp_path: Path, hole: str) -> None:
    events = text_of(KERNELS)
    between = (
        f"{events[0]}, {hole} {events[1]}" if hole.strip() else f"{events[0]}{hole}{events[1]}"
    )
    path = written(tmp_path / "t.json", f'{{"schemaVersion": 1, "traceEvents": [{between}]}}')
    trace = read(path)
    assert trace.tables.activities.height == 2
    assert len(problems(trace)) == 1
    lost = int(trace.tables.ledger.filter(~trace.tables.ledger["kept"])["count"].sum())
    assert trace.tables.activities.height + lost == trace.meta.events


def decoded(text: str) -> bool:
    """Return whether msgspec decodes ``text``: the interpreter limits its recursion.

    Pythons before 3.14 by the number of levels, 3.14 by what is left of the stack.
    """
    try:
        msgspec.json.decode(text)
    except RecursionError:
        return False
    return True


@pytest.mark.parametrize("depth", [500, 3000, 100_000])
@pytest.mark.parametrize("name", FORMATS)
def test_nesting_of_any_depth_in_one_event(tmp_path: Path, name: str, depth: int) -> None:
    events = text_of(FORMATS[name])
    nested = '{"ph": "X", "args": ' + '{"a":[' * depth + "1" + "]}" * depth + "}"
    document = f'{{"traceEvents": [{",".join([*events[:-1], nested, events[-1]])}]}}'
    trace = read(written(tmp_path / "t.json", document))
    assert timed_rows(trace) == 20
    # What is decoded has neither time nor category. 3.14 decodes some of it.
    assert {"malformed", "missing_time", "unknown_category"} & set(trace.tables.ledger["reason"])


@pytest.mark.parametrize("depth", [3000, 20_000])
@pytest.mark.parametrize("name", FORMATS)
def test_nesting_of_any_depth_beside_the_events(tmp_path: Path, name: str, depth: int) -> None:
    events = ",".join(text_of(FORMATS[name]))
    nested = '"deep": ' + "[" * depth + "]" * depth
    for text in (
        f'{{{nested}, "traceEvents": [{events}]}}',
        f'{{"traceEvents": [{events}], {nested}}}',
    ):
        trace = read(written(tmp_path / "t.json", text))
        assert timed_rows(trace) == 20
        assert problems(trace) or decoded(f"{{{nested}}}")


def test_a_head_full_of_nested_traceevents_takes_linear_time(tmp_path: Path) -> None:
    events = ",".join(text_of(KERNELS))
    nested = '{"traceEvents": [' * 30_000
    path = written(
        tmp_path / "t.json",
        f'{{"schemaVersion": 1, "deep": {nested}{"]}" * 30_000}, "traceEvents": [{events}]}}',
    )
    begin = time.process_time()
    trace = read(path)
    assert time.process_time() - begin < 5
    assert trace.tables.activities.height == len(KERNELS)
    with pytest.raises(TraceanaError):
        read(written(tmp_path / "t.json", f'{{"schemaVersion": 1, "deep": {nested}'))


def test_gzip_inflates_in_bounded_blocks_whatever_its_members(tmp_path: Path) -> None:
    tiny = b"".join(gzip.compress(bytes([65 + i % 26])) for i in range(2000))
    text = b"b" * 40_000_000 + bytes(65 + i % 26 for i in range(2000)) + b"c" * 9_000_000
    packed = (
        gzip.compress(text[:40_000_000], 1) + tiny + gzip.compress(text[40_002_000:], 1) + b"\0\0"
    )
    source = ByteSource(written(tmp_path / "t.gz", packed))
    blocks = list(source.blocks())
    assert b"".join(blocks) == text
    assert max(map(len, blocks)) < 6 << 20
    assert len(blocks) < 20
    assert not source.truncated and source.bytes_read == len(packed)
    cut = ByteSource(written(tmp_path / "t.gz", gzip.compress(text)[:-9]))
    assert sum(map(len, cut.blocks())) <= len(text)
    assert cut.truncated


@pytest.mark.slow
@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize("name", FORMATS)
def test_an_event_of_many_megabytes_is_refused_alone(tmp_path: Path, name: str) -> None:
    events = text_of(FORMATS[name])
    huge = '{"ph": "X", "name": "' + "n" * 36_000_000 + '"}'
    document = f'{{"traceEvents": [{",".join([*events[:-1], huge, events[-1]])}]}}'
    path = written(tmp_path / "t.json.gz", gzip.compress(document.encode(), 1))
    trace = read(path)
    assert timed_rows(trace) == 20
    assert trace.tables.ledger.filter(reason="oversized").select("kept", "count").rows() == [
        (False, 1)
    ]


@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize("name", FORMATS)
def test_keys_of_many_megabytes_are_refused(tmp_path: Path, name: str) -> None:
    events = ",".join(text_of(FORMATS[name]))
    huge = '"text": "' + "n" * 36_000_000 + '"'
    after = f'{{"traceEvents": [{events}], {huge}}}'
    trace = read(written(tmp_path / "after.json.gz", gzip.compress(after.encode(), 1)))
    assert timed_rows(trace) == 20
    assert problems(trace) == ["oversized"]
    before = f'{{{huge}, "traceEvents": [{events}]}}'
    with pytest.raises(TraceanaError, match="16 MiB"):
        read(written(tmp_path / "before.json.gz", gzip.compress(before.encode(), 1)))


TIMES = [
    "null", '"text"', "1e400", "NaN", "9223372036854775807", "-9223372036854775808", "1e30",
    "123456789012345678901234567890", '{\n"a":\n1}', "[1,\n2]", "true", "",
]  # fmt: skip


def with_odd_times(name: str, field: str, values: list[str]) -> str:
    """Return 19 sound events and, for each of ``values``, one whose ``field`` it is."""
    events = FORMATS[name]
    odd = {key: part for key, part in events[-1].items() if key != field}
    odd_texts = [
        json.dumps(odd)[:-1] + (f', "{field}": {value}}}' if value else "}") for value in values
    ]
    if field == "dur" and "dur" not in events[-1]:
        pytest.skip("the format has no durations")
    if name == "mxnet":  # the begin of the frame that ends last
        events = events[:-1]
    return f'{{"traceEvents": [{",".join([*text_of(events[:-1]), *odd_texts])}]}}'


@pytest.mark.exhaustive(after=48)
@pytest.mark.parametrize("value", TIMES)
@pytest.mark.parametrize("field", ["ts", "dur"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_time_that_is_none_is_refused_alone(
    tmp_path: Path, name: str, field: str, value: str
) -> None:
    trace = read(written(tmp_path / "t.json", with_odd_times(name, field, [value])))
    assert timed_rows(trace) == 19
    assert problems(trace)
    durations = [*trace.tables.ranges["duration"], *trace.tables.activities["duration"]]
    assert durations == [2000] * 19


@pytest.mark.parametrize("field", ["ts", "dur"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_trace_with_times_that_are_none_is_opened(tmp_path: Path, name: str, field: str) -> None:
    trace = traceana.open(written(tmp_path / "t.json", with_odd_times(name, field, TIMES)))
    # On the CPU, the time of ranges is that of activities, too.
    assert {trace.tables.ranges.height, trace.tables.activities.height} in ({0, 19}, {19})
    assert trace.tables.ledger.filter(severity="problem", kept=False)["count"].sum() == len(TIMES)


def test_integers_beyond_32_and_64_bits(tmp_path: Path) -> None:
    odd = [
        kernel("k", 500 + i, 2, device=number, grid=[number, 1, 1], block=[1, number, 1])
        | {"pid": number, "tid": number}
        for i, number in enumerate([1 << 31, (1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63)])
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "cuda_runtime_version": 1 << 70,
                                "traceEvents": [*KERNELS, *odd]}))  # fmt: skip
    trace = traceana.open(path)
    assert trace.tables.activities.height == 25
    assert trace.tables.activities["grid_x"].null_count() == 25
    assert trace.tables.activities["device"].to_list()[:20] == [0] * 20
    assert {"device", "grid_x", "block_y"} <= set(trace.tables.ledger["detail"].drop_nulls())
