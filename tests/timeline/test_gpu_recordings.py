"""Recordings of a GPU: one time of a step, one cause, and what a change brought without a profiler.

``fixtures/gpu/variants.jsonl`` has the step times of the same programs without a profiler, before
and after the recording.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

import traceana
from tests.comparison.shared import diff
from tests.support.command_line import run
from tests.support.every_command import as_json
from tests.support.opened import opened
from traceana.advise import advise
from traceana.advise.bottleneck import COPIES, IDLE, KERNELS
from traceana.enrich.launches import GRAPH_LAUNCH
from traceana.errors import ExitCode
from traceana.report import numbers
from traceana.report.page import Facts
from traceana.whatif.program import without_profiler

pytestmark = pytest.mark.profiler_cost

FOLDER: Final = Path(__file__).parents[2] / "fixtures" / "gpu"
TIMES: Final = {
    one["name"]: (one["mean_ns"] + one["mean_after_ns"]) / 2
    for one in map(json.loads, (FOLDER / "variants.jsonl").read_text().splitlines())
}
FILES: Final = [one for one in sorted(FOLDER.glob("*.json.gz")) if one.name[:-8] in TIMES]
each_recording = pytest.mark.parametrize(
    "file",
    [
        pytest.param(one, marks=pytest.mark.exhaustive if number % 3 else (), id=one.name[:-8])
        for number, one in enumerate(FILES)
    ],
)
"""A third of them on every change."""


def found(command: str, file: Path) -> dict[str, Any]:
    return json.loads(as_json(command, file))  # type: ignore[no-any-return]


def name_of(file: Path) -> str:
    return file.name.removesuffix(".json.gz")


@pytest.mark.slow
@each_recording
def test_every_command_has_the_same_step_and_the_same_idle_time(file: Path) -> None:
    report = found("report", file)
    summary, every = report["summary"], sum(row["wall_ns"] for row in report["sections"]["steps"])
    step, total = summary["step_time"], sum(summary["step_time"]["each_ns"])
    assert step["mean_ns"] == total // len(step["each_ns"])
    assert sum(row["time_ns"] for row in found("critical", file)["rows"]) == pytest.approx(
        total, abs=len(step["each_ns"])
    )
    (replayed,) = found("whatif --replay", file)["rows"]
    # With the warm-up.
    assert (replayed["measured_ns"], replayed["largest_error_ns"]) == (every, 0)
    compared = found("compare", file)["rows"]
    assert [row["wall_ns"] for row in compared] == [step["median_ns"]] * 2
    scenarios = found("whatif", file)["rows"]
    assert {row["step_ns"] for row in scenarios} == {step["median_ns"]}
    recorded = summary["recorded_ns"]
    if recorded is not None:
        low, high = summary["step_interval_ns"]
        assert low < step["median_ns"] < high
        assert step["median_ns"] <= recorded
    idle = [row for row in found("idle --by step", file)["rows"] if row["step"] in step["steps"]]
    assert sum(row["time_ns"] for row in idle) == pytest.approx(
        (1 - summary["utilization"]) * total, abs=1000
    )
    savings = {row["scenario"]: row["saving_ns"] for row in scenarios}
    for one in found("advise", file)["rows"]:
        if one["scenario"] in savings:
            assert one["saving_ns"] == pytest.approx(savings[one["scenario"]], abs=1), one["rule"]


@each_recording
def test_the_shares_of_the_first_screen_are_of_one_step(file: Path) -> None:
    advice = advise(opened(file))
    limits = advice.bottleneck
    assert limits is not None
    summary = found("report", file)["summary"]
    head = next(block for block in opened(file).report().page().blocks if isinstance(block, Facts))
    facts = dict(head.rows)
    labels = [label for label, value in head.rows if "with the profiler" in value]
    assert labels == ["Step time"] * (summary["recorded_ns"] is not None)
    assert facts["GPU utilization"] == f"{numbers.share(summary['utilization'])} of step time"
    assert limits.shares[IDLE] == pytest.approx(1 - summary["utilization"], abs=0.002)
    assert f"{numbers.share(limits.share)} of the step" in facts["Bottleneck"]
    # Kernels that take more time than what limits the run are explained.
    smaller = "which overlap cannot shorten" in facts["Bottleneck"]
    assert smaller is (limits.by == COPIES and limits.shares[KERNELS] > limits.share)


@each_recording
def test_a_step_is_from_the_end_of_one_to_the_end_of_the_next_on_the_device(file: Path) -> None:
    trace = without_profiler(opened(file))
    of_step = trace.tables.activities.filter(pl.col("step").is_not_null())
    ends = of_step.group_by("step").agg((pl.col("start") + pl.col("duration")).max()).sort("step")
    distances = ends["start"].diff().drop_nulls()
    each = pl.Series(found("report", file)["summary"]["step_time"]["each_ns"])
    assert each.slice(1).median() == pytest.approx(distances.tail(len(each) - 1).median(), rel=0.04)


@each_recording
def test_the_step_without_the_profiler_is_near_the_one_that_was_timed(file: Path) -> None:
    """Within the variation of the copies and of the host, from run to run."""
    step = found("report", file)["summary"]["step_time"]
    # Without the profiler, the host of one program differed by 40 % between two runs, the copies of
    # the other by 150 % between steps.
    near = 0.45 if name_of(file) in ("resnet18_b8", "alexnet_eager") else 0.1
    if name_of(file) == "alexnet_b32_stack":
        near = 0.15  # Two steps alone, with stacks.

    assert step["median_ns"] == pytest.approx(TIMES[name_of(file)], rel=near)


def test_every_step_that_replays_a_graph_has_all_its_kernels() -> None:
    file = FOLDER / "resnet18_b8_graph.json.gz"
    trace = opened(file)
    assert trace.tables.calls["name"].cast(pl.String).str.contains(GRAPH_LAUNCH).any()
    launched = trace.tables.activities.filter(pl.col("step").is_not_null())
    replays = launched.partition_by("step")
    assert [one.height for one in replays] == [360] * 5
    # Each with the same classes, which the neighbours of a kernel decide too.
    (counts,) = {
        tuple(one.group_by("name_id", "class").len().sort(pl.all()).rows()) for one in replays
    }
    assert sum(count for *_, count in counts) == 360


@pytest.mark.parametrize(
    ("before", "scenario", "after"),
    [
        ("alexnet_b128", "pinned", "alexnet_b128_pinned"),
        ("alexnet_b128", "pinned + overlapped-copies", "alexnet_b128_prefetch"),
        ("alexnet_b128_pinned", "overlapped-copies", "alexnet_b128_prefetch"),
        ("alexnet_b128", "tensor-cores", "alexnet_b128_tf32"),
        ("alexnet_b128_tf32", "no layout", "alexnet_b128_nhwc_tf32"),
        ("alexnet_b128", "host x 1", "alexnet_b128_again1"),
        ("alexnet_b128_wait20", "data-ready", "alexnet_b128_nowait"),
        ("resnet18_b8", "cuda-graphs", "resnet18_b8_graph"),
        ("vgg11_b32", "relu x 0", "vgg11_b32_norelu"),
        ("alexnet_b128_inputgrad", "no-input-gradient", "alexnet_b128_noinputgrad"),
    ],
)
def test_what_a_change_brought_is_in_the_interval(before: str, scenario: str, after: str) -> None:
    (row,) = opened(FOLDER / f"{before}.json.gz").whatif(scenario).frame.to_dicts()
    assert row["low_ns"] <= TIMES[after] <= row["high_ns"]
    assert row["predicted_ns"] == pytest.approx(TIMES[after], rel=0.06)


@pytest.mark.parametrize(
    ("name", "rule", "better"),
    [
        ("alexnet_b128", "pageable_copies", "alexnet_b128_pinned"),
        ("alexnet_b128", "tensor_cores_unused", "alexnet_b128_tf32"),
        ("alexnet_b128_wait20", "data_loading", "alexnet_b128_nowait"),
        ("resnet18_b8", "launch_bound", "resnet18_b8_graph"),
    ],
)
def test_advice_saves_what_the_change_saved(name: str, rule: str, better: str) -> None:
    rows = found("advise", FOLDER / f"{name}.json.gz")["rows"]
    place = [row["rule"] for row in rows].index(rule)
    assert place < 2
    saved = TIMES[name] - TIMES[better]
    assert rows[place]["saving_low_ns"] <= saved <= rows[place]["saving_high_ns"]
    if rule != "launch_bound":
        assert rows[place]["saving_ns"] == pytest.approx(saved, rel=1 / 3)


def test_diff_of_two_recordings_of_one_program_finds_nothing() -> None:
    files = [FOLDER / f"alexnet_b128{end}.json.gz" for end in ("", "_again1", "_nowait")]
    for a, b in itertools.permutations(files, 2):
        both = diff(opened(a), opened(b))
        assert both.step.verdict not in ("faster", "slower")
        assert both.kernel_time is not None
        assert both.kernel_time.verdict in ("same", "inconclusive")
        assert both.gated(0.03)[0] != "failed"
        # Pageable copies alone vary by more than 1 % of the step.
        rows = both.by("layer")
        assert set(rows.filter(pl.col("a") != "(data)")["verdict"]) == {"same"}


@pytest.mark.parametrize(
    ("before", "after"),
    [("alexnet_b128", "alexnet_b128_tf32"), ("resnet18_b8", "resnet18_b8_graph")],
)
def test_changes_without_a_verdict_stand_below_those_with_one(before: str, after: str) -> None:
    runs = (opened(FOLDER / f"{name}.json.gz") for name in (before, after))
    changes = traceana.diff(*runs).summary.changes.filter(
        ~pl.col("least"), ~pl.col("number").str.contains(".", literal=True)
    )
    certain = changes["verdict"].is_in(["faster", "slower"]).to_list()
    assert certain == sorted(certain, reverse=True)
    assert len(set(certain)) == 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("vgg11_b32", "vgg11_b32_tf32"),
        ("alexnet_b128", "alexnet_b128_nhwc_tf32"),
        ("alexnet_b64", "alexnet_b128"),
        ("vgg11_b32", "vgg11_b32_norelu"),
    ],
)
def test_each_millisecond_of_a_diff_is_of_one_change(before: str, after: str) -> None:
    compared = traceana.diff(*(opened(FOLDER / f"{name}.json.gz") for name in (before, after)))
    rows = compared.summary.changes.to_dicts()
    numbers = [row["number"] for row in rows]
    assert numbers == sorted(numbers, key=lambda number: [*map(int, number.split("."))])
    times = {"": [int(compared.totals[f"time_{side}_ns"]) for side in "ab"]}
    parts: dict[str, list[list[int]]] = {}
    for row in rows:
        within = row["number"].rpartition(".")[0]
        assert within in times, "a part follows what it is a part of"
        times[row["number"]] = [row["time_a_ns"], row["time_b_ns"]]
        parts.setdefault(within, []).append(times[row["number"]])
    for within, affected in parts.items():
        sums = [sum(side) for side in zip(*affected, strict=True)]
        # Means are rounded down; of the whole step, work of several streams overlaps.
        rest = [whole - part for whole, part in zip(times[within], sums, strict=True)]
        assert min(rest) >= (-len(affected) if within else -0.1 * times[""][0])


def test_the_precision_is_a_part_of_its_convolutions() -> None:
    runs = (opened(FOLDER / f"{name}.json.gz") for name in ("vgg11_b32", "vgg11_b32_tf32"))
    lines = repr(traceana.diff(*runs)).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("1. "))
    assert lines[first].startswith("1. convolution kernels ")
    assert "12.87 ms  convolution precision FP32 → TF32 in" in lines[first + 2]
    assert "algorithm dgrad ALGO_0 → implicit GEMM" in lines[first + 3]


def test_an_overlap_that_did_not_change_is_no_line() -> None:
    runs = (opened(FOLDER / f"{name}.json.gz") for name in ("alexnet_b128", "alexnet_b128_again1"))
    head = next(block for block in traceana.diff(*runs).page().blocks if isinstance(block, Facts))
    assert "Overlap" not in dict(head.rows)


def test_a_gate_names_its_clock() -> None:
    files = [FOLDER / f"{name}.json.gz" for name in ("alexnet_b128_tf32", "alexnet_b128_wait20")]
    labels = {(): "gate (times without the profiler)", ("--as-recorded",): "gate"}
    for options, label in labels.items():
        compared = run("diff", *files, "--fail-if-slower", "3%", *options)
        advised = run("advise", files[1], "--max", "idle=1%", *options)
        assert compared.exit_code == advised.exit_code == ExitCode.GATE_FAILED
        for line in (compared.stderr, advised.stderr):
            assert line.startswith(f"traceana: {label}: ")
