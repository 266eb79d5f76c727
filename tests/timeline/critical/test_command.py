"""``traceana critical`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.support.command_line import run
from tests.support.synthetic import Scenario, write_kineto
from tests.support.traces import TraceBuilder
from traceana.errors import ExitCode
from traceana.report.page import Notes, Table
from traceana.report.pages.idle import critical

DOCS = (Path(__file__).parents[3] / "docs" / "json.md").read_text(encoding="utf-8")
WAYS = ("class", "kernel", "layer", "operator", "segment")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    run = Scenario()
    run.step(4, 0, 2_000)
    run.operator("aten::mm", 50, 400)
    run.launch(at=100, begins=300, duration=1_000)
    run.sync(420, 1_400, "stream", stream=7)
    return write_kineto(run, tmp_path / "run.json")


@pytest.mark.parametrize("by", WAYS)
def test_each_way_adds_up_and_is_documented(file: Path, by: str) -> None:
    result = run("critical", file, "--by", by, "-f", "json", "--as-recorded")
    assert result.exit_code == 0, result.output
    whole = json.loads(result.stdout)
    assert whole["meta"]["total_ns"] == 2_000
    assert sum(row["time_ns"] for row in whole["rows"]) == 2_000
    section = DOCS.split("### critical\n")[1].split("\n### ")[0]
    for key in whole["rows"][0]:
        assert f"`{key}`" in section


@pytest.mark.parametrize("by", WAYS)
def test_each_way_is_shown(file: Path, by: str) -> None:
    result = run("critical", file, "--by", by)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "sync" in result.stdout


def test_the_screen_has_means_per_step_that_add_up(tmp_path: Path) -> None:
    two = Scenario()
    for number, kernel in enumerate((1_000, 400)):
        at = 5_000 * number
        two.step(number, at, at + 2_000)
        two.launch(at=at + 100, begins=at + 300, duration=kernel)
        two.sync(at + 420, at + 400 + kernel, "stream", stream=7)
    page = critical(traceana.open(write_kineto(two, tmp_path / "two.json"))).page(limit=1)
    (shown,) = (one for one in page.blocks if isinstance(one, Table))
    assert [column.title for column in shown.columns][-3:] == [
        "segments per step", "time per step", "of path",
    ]  # fmt: skip
    whole = critical(traceana.open(tmp_path / "two.json")).frame
    assert shown.totals == {"step_ns": 2_000}
    assert whole["step_ns"].sum() == 2_000
    assert whole.filter(pl.col("class") == "kernel")["step_ns"].item() == 700
    assert shown.hidden is not None
    assert shown.hidden.time_ns == 2_000 - whole["step_ns"][0]


def notes(run: Scenario, file: Path) -> list[str]:
    page = critical(traceana.open(write_kineto(run, file))).page(limit=None)
    return [text for one in page.blocks if isinstance(one, Notes) for _, text in one.rows]


def test_time_outside_the_capture_is_a_note(tmp_path: Path) -> None:
    run = Scenario()
    run.malloc(0, 50_000)
    run.launch(at=60_000, begins=60_300, duration=1_000)
    shown = notes(run, tmp_path / "run.json")
    assert "60.30 µs before the first activity, outside the capture" in shown


def test_a_trace_without_work_has_a_note(tmp_path: Path) -> None:
    bundle = TraceBuilder().build().save(tmp_path / "empty")
    result = run("critical", bundle)
    assert result.exit_code == ExitCode.EMPTY_SELECTION
    assert result.stderr.startswith("traceana: nothing to show for ")
    assert result.stderr.endswith(": no device activities in the file\n")
