"""The generated trace is the source so many times over: by plain json and by our own reader."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from benchmarks.generate_kineto import NotRepeatableError, generate, read_source
from traceana.readers import read
from traceana.trace import Trace

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"
SHARED = ROOT.parent / "shared" / "traces" / "kineto"
TRACES = [
    FIXTURES / "alexnet-cpu-stack.json.gz",
    SHARED / "cnn_train_ns_resolution_v100.json.gz",
    SHARED / "eager_b200.json.gz",
]
REPEATS = 3

# Kineto's own layout, of Kineto's vintage: a step, an operator, its call, its kernel and two flows.
SMALL = """{
  "schemaVersion": 1,
  "deviceProperties": [ { "id": 0, "name": "GPU" } ],
  "traceEvents": [
  {
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "pid": 11, "tid": 12,
    "ts": 1712195495000000.125, "dur": 50.500,
    "args": {
      "External id": 5,"Ev Idx": 0
    }
  },
  {
    "ph": "X", "cat": "cpu_op", "name": "aten::conv2d \\"id\\": 3", "pid": 11, "tid": 12,
    "ts": 1712195495000001, "dur": 40,
    "args": {
      "External id": 6,"Sequence number": 130, "Fwd thread id": 0, "Ev Idx": 1
    }
  },
  {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 11, "tid": 12,
    "ts": 1712195495000002.001, "dur": 3.999,
    "args": { "External id": 6, "cbid": 211, "correlation": 9007199254740993 }
  },
  {
    "ph": "s", "id": 9007199254740993, "pid": 11, "tid": 12, "ts": 1712195495000002.001,
    "cat": "ac2g", "name": "ac2g"
  },
  {
    "ph": "X", "cat": "kernel", "name": "scudnn", "pid": 0, "tid": 7,
    "ts": 1712195495000010.100, "dur": 0.704,
    "args": {
      "External id": 6, "device": 0, "context": 1, "stream": 7, "correlation": 9007199254740993,
      "grid": [1, 2, 3], "block": [128, 1, 1]
    }
  },
  {
    "ph": "f", "id": 9007199254740993, "pid": 0, "tid": 7, "ts": 1712195495000010.100,
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }
  ],
  "traceName": "small.json"
}
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.json.gz"
    path.write_bytes(gzip.compress(SMALL.encode()))
    return path


def _events(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text(), parse_float=Decimal)["traceEvents"]
    return events


def _repeated(path: Path, folder: Path) -> Path:
    source = read_source(path)
    made, repeats = generate(source, REPEATS * source.body_bytes, folder)
    assert repeats == REPEATS
    return made


def test_the_result_is_the_document_with_more_events(small: Path, tmp_path: Path) -> None:
    made = _repeated(small, tmp_path / "made")
    original, result = json.loads(SMALL), json.loads(made.read_text())
    assert len(result.pop("traceEvents")) == REPEATS * len(original.pop("traceEvents"))
    assert result == original


def test_the_first_repetition_is_the_source_to_the_byte(small: Path) -> None:
    body = SMALL[SMALL.index('"traceEvents": [') + len('"traceEvents": [') : SMALL.rindex("\n  ],")]
    assert read_source(small).repetition(0).decode() == body


def test_times_are_shifted_by_whole_microseconds_beyond_the_end(
    small: Path, tmp_path: Path
) -> None:
    events = _events(_repeated(small, tmp_path))
    each = len(events) // REPEATS
    first, second = events[:each], events[each : 2 * each]
    shifts = {after["ts"] - before["ts"] for before, after in zip(first, second, strict=True)}
    assert len(shifts) == 1
    assert shifts.pop() % 1 == 0
    assert second[0]["ts"] > max(event["ts"] + event.get("dur", 0) for event in first)
    assert [event.get("dur") for event in first] == [event.get("dur") for event in second]


def test_ids_stay_joined_within_a_repetition_and_are_distinct_between_them(
    small: Path, tmp_path: Path
) -> None:
    events = _events(_repeated(small, tmp_path))
    each = len(events) // REPEATS
    seen: list[tuple[int, int]] = []
    for begin in range(0, len(events), each):
        _step, op, call, start, kernel, end = events[begin : begin + each]
        joined = {
            call["args"]["correlation"],
            kernel["args"]["correlation"],
            start["id"],
            end["id"],
        }
        assert len(joined) == 1
        assert op["args"]["External id"] == kernel["args"]["External id"]
        seen.append((joined.pop(), op["args"]["External id"]))
    assert seen[0] == (9007199254740993, 6)  # no float on the way
    assert len({number for pair in seen for number in pair}) == 2 * REPEATS


def test_what_is_no_id_is_not_touched(small: Path, tmp_path: Path) -> None:
    events = _events(_repeated(small, tmp_path))
    ops = [event for event in events if event.get("cat") == "cpu_op"]
    assert {op["name"] for op in ops} == {'aten::conv2d "id": 3'}
    assert {op["args"]["Fwd thread id"] for op in ops} == {0}
    assert [op["args"]["Sequence number"] for op in ops] == [130, 131, 132]
    steps = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert steps == ["ProfilerStep#7", "ProfilerStep#8", "ProfilerStep#9"]


def test_a_finished_file_is_used_again(small: Path, tmp_path: Path) -> None:
    made = _repeated(small, tmp_path)
    made.write_text("kept")
    assert _repeated(small, tmp_path) == made
    assert made.read_text() == "kept"


@pytest.mark.parametrize("text", ['{"schemaVersion": 1}', SMALL.replace("000001,", "000001e0,")])
def test_a_source_that_cannot_be_repeated_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(NotRepeatableError):
        read_source(path)


@pytest.mark.exhaustive(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_counts_and_durations_are_those_of_the_source_so_many_times(
    path: Path, tmp_path: Path
) -> None:
    if not path.exists():
        pytest.skip("no shared traces")
    made = _repeated(path, tmp_path)
    before, after = read(path), read(made)
    assert after.meta.events == REPEATS * (before.meta.events or 0)
    assert _totals(after) == {key: REPEATS * value for key, value in _totals(before).items()}
    assert set(after.tables.names["name"]) == set(before.tables.names["name"])
    _is_joined_like(before, after)


def _totals(trace: Trace) -> Counter[str]:
    totals: Counter[str] = Counter()
    for kind, count, duration in (
        trace.tables.activities.group_by("kind").agg(pl.len(), pl.col("duration").sum()).iter_rows()
    ):
        totals[f"{kind}s"] = count
        totals[f"{kind}_ns"] = duration
    for name in ("calls", "ops", "ranges", "links", "memory"):
        totals[name] = trace.tables[name].height
    totals["calls_ns"] = int(trace.tables.calls["duration"].sum())
    totals["ops_ns"] = int(trace.tables.ops["duration"].sum())
    totals["ledger"] = int(trace.tables.ledger["count"].sum())
    return totals


def _is_joined_like(before: Trace, after: Trace) -> None:
    """Device work finds as many calls by correlation, and no call of another repetition."""
    pairs = [
        trace.tables.activities.join(trace.tables.calls, on="correlation", suffix="_call").filter(
            pl.col("correlation") != 0
        )
        for trace in (before, after)
    ]
    assert pairs[1].height == REPEATS * pairs[0].height
    delay = [(pair["start"] - pair["start_call"]).sum() for pair in pairs]
    assert delay[1] == REPEATS * delay[0]
