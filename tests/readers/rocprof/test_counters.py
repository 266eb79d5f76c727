"""Counters of rocprof: a row a dispatch, alone or joined to a timeline."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from tests.readers.rocprof import writing
from tests.readers.rocprof.test_csv import problems, written
from tests.readers.rocprof.writing import Kernel
from tests.support.command_line import Run

MEASURED = tuple(
    Kernel(
        number,
        10_000 * number,
        10_000 * number + 2_000,
        ("void k<int, 2>(float*)", "other")[number % 2],
        counters={
            "FETCH_SIZE": 2.0 * number,
            "OccupancyPercent": 25.5,
            "SQ_INSTS_VALU_MFMA_MOPS_BF16": 3.0,
            "SQ_INSTS_VALU_MFMA_MOPS_F16": 10.0 * number,
            "WRITE_SIZE": 1.0,
            "Wavefronts": 64.0,
        },
    )
    for number in (1, 2, 3)
)


@pytest.mark.parametrize(
    "text",
    [
        writing.counter_collection(MEASURED),
        writing.counter_collection(MEASURED, all_quoted=True),
        writing.results_v1(MEASURED),
        writing.kernel_trace_v2(MEASURED),
    ],
    ids=["rocprofv3", "quoted", "rocprof", "rocprofv2"],
)
def test_a_dispatch_is_one_row_in_every_layout(tmp_path: Path, text: str) -> None:
    trace = written(tmp_path / "a.csv", text)
    counters = trace.tables.counters
    assert counters["name"].to_list() == ["other", "void k<int, 2>(float*)", "other"]
    assert counters["duration"].to_list() == [2_000] * 3
    assert counters["dram_read_bytes"].to_list() == [2048, 4096, 6144]
    assert counters["dram_bytes"].to_list() == [3072, 5120, 7168]
    assert counters["achieved_occupancy_percent"].to_list() == [25.5] * 3
    # An MFMA_MOPS counter counts one for 512 operations; the types are added.
    assert counters["tensor_ops"].to_list() == [13 * 512, 23 * 512, 33 * 512]
    assert trace.meta.properties["metrics_not_read"] == ("Wavefronts",)
    assert trace.meta.properties["metric_rows"] == 18
    # A dispatch with start and end and its counters in one row is an activity and a measurement.
    timed = trace.tables.activities.height > 0
    assert counters["activity"].to_list() == ([0, 1, 2] if timed else [None] * 3)
    assert problems(trace) == []


def test_launches_without_times_have_no_duration(tmp_path: Path) -> None:
    trace = written(tmp_path / "a.csv", writing.results_v1(MEASURED, times=False))
    assert trace.tables.activities.is_empty()
    assert trace.tables.counters["duration"].null_count() == 3
    assert trace.tables.counters["dram_read_bytes"].to_list() == [2048, 4096, 6144]


def test_counters_join_the_timeline_of_another_run(tmp_path: Path, run: Run) -> None:
    trace, counters = tmp_path / "trace.csv", tmp_path / "counters.csv"
    trace.write_text(writing.kernel_trace([Kernel(4, 1_000, 9_000), *MEASURED]))
    counters.write_text(writing.counter_collection(MEASURED))
    done = run("kernels", trace, "--counters", counters, "--format", "json")
    assert done.exit_code == 0, done.stderr
    found = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    assert {name: (row["calls"], row["measured"]) for name, row in found.items()} == {
        "void k<int, 2>(float*)": (2, 1),
        "other": (2, 2),
    }
    assert found["other"]["dram_bytes"] == 3072 + 7168
    shown = run("kernels", trace, "--counters", counters)
    assert "measured by rocprofv3: 3 of 4 kernels" in shown.stdout


def test_counters_alone_are_shown(tmp_path: Path, run: Run) -> None:
    for text, note in (
        (writing.counter_collection(MEASURED), "rocprofv3 without a timeline: 3 launches, rates"),
        (
            writing.results_v1(MEASURED, times=False),
            "rocprof without a timeline: 3 launches, no durations",
        ),
    ):
        (tmp_path / "a.csv").write_text(text)
        done = run("kernels", tmp_path / "a.csv")
        assert done.exit_code == 0, done.stderr
        assert note in done.stdout


def test_a_timeline_is_no_table_of_counters(tmp_path: Path, run: Run) -> None:
    (tmp_path / "a.csv").write_text(writing.kernel_trace())
    done = run("kernels", tmp_path / "a.csv", "--counters", tmp_path / "a.csv")
    assert done.exit_code != 0
    assert "no counters of kernel launches" in done.stderr


def test_damaged_rows_of_counters_are_counted(tmp_path: Path) -> None:
    text = writing.counter_collection(MEASURED)
    lines = text.splitlines(keepends=True)
    for old, new, found in (
        (",2.0,10000", ",2.x,10000", ("lost_field", "note")),
        (",2.0,10000", ",-2.0,10000", ("lost_field", "note")),
        (lines[3], lines[3].replace('"other"', '"another"'), ("damaged", "problem")),
        (lines[3], lines[3] * 2, ("repeated", "note")),
        (lines[3], lines[3][:70] + "\n", ("malformed", "problem")),
        (lines[-1], lines[-1][:70], ("truncated", "problem")),
    ):
        trace = written(tmp_path / "a.csv", text.replace(old, new, 1))
        assert trace.tables.counters.height == 3
        assert trace.tables.ledger.select("reason", "severity").rows() == [found], (old, new)


def test_values_of_a_dispatch_that_another_run_repeats_are_apart(tmp_path: Path) -> None:
    second = writing.counter_collection(MEASURED).replace(",800,801,", ",900,901,")
    trace = written(tmp_path / "a.csv", writing.counter_collection(MEASURED) + second)
    assert trace.tables.counters["process"].to_list() == [800] * 3 + [900] * 3
    assert trace.tables.counters.select(pl.col("dram_read_bytes").sum()).item() == 2 * 12_288
