"""Folders of recorded runs: reading, finding, and the errors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import traceana
from tests.support.command_line import Run as Command
from traceana.errors import (
    CorruptError,
    NoSuchSelectionError,
    NotFoundError,
    TraceanaError,
    UnknownFormatError,
)
from traceana.runs import Status, StepTimes, find_runs, read_run, read_sweep
from traceana.runs.run_files import RUN_FILE, SWEEP_FILE

FIXTURE = Path(__file__).parents[2] / "fixtures" / "alexnet-cpu-ranges.json.gz"


def make_run(folder: Path, **changed: Any) -> Path:
    """Write the folder of a run with the trace of a fixture in it."""
    folder.mkdir(parents=True)
    facts: dict[str, Any] = {
        "version": 1,
        "status": "complete",
        "argv": ["python", "train.py"],
        "profiler": "torch",
        "traces": ["trace.json.gz"],
        "started_at": "2026-01-01T00:00:00Z",
        "exit_status": 0,
        **changed,
    }
    for name in facts["traces"]:
        if name == Path(name).name:
            (folder / name).symlink_to(FIXTURE)
    (folder / RUN_FILE).write_text(json.dumps(facts))
    return folder


def make_sweep(folder: Path, batches: list[int], made: list[int]) -> Path:
    folder.mkdir()
    points = [{"folder": f"batch={n}", "values": {"batch": str(n)}} for n in batches]
    axes = [{"name": "batch", "values": [str(n) for n in batches]}]
    facts = {"version": 1, "axes": axes, "points": points, "argv": [], "profiler": "torch"}
    started = {"started_at": "2026-01-01T00:00:00Z"}
    (folder / SWEEP_FILE).write_text(json.dumps({**facts, **started}))
    for number in made:
        make_run(folder / f"batch={number}")
    return folder


def test_a_run_opens_as_its_trace_does(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    assert traceana.open(folder).tables.activities.equals(traceana.open(FIXTURE).tables.activities)
    assert read_run(folder).run.status is Status.COMPLETE
    assert read_run(folder).timing() is None


def test_every_command_opens_a_run(tmp_path: Path, run: Command) -> None:
    folder = make_run(tmp_path / "run")
    for command in ("report", "info", "layers", "kernels"):
        assert run(command, folder).exit_code == 0
    assert run("diff", folder, FIXTURE).exit_code == 0


def test_ranks_of_a_run_are_one_trace(tmp_path: Path) -> None:
    names = ["trace.rank0.json.gz", "trace.rank1.json.gz"]
    trace = traceana.open(make_run(tmp_path / "run", traces=names))
    assert sorted(trace.tables.activities["rank"].unique()) == [0, 1]


def test_what_a_run_leaves_behind_is_in_its_folder_only(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", traces=["../other/trace.json"])
    with pytest.raises(UnknownFormatError, match="outside its folder"):
        read_run(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is damaged"),
        ('{"version": 1}', "is damaged"),
        ('{"version": 7}', "version 7, and this traceana reads 1"),
        ('{"version": 1, "status": "well"}', "is damaged"),
        ("\x80", "is damaged"),
        ('{"version": 1, "x": ' + "[" * 50_000, "is damaged"),
    ],
)
def test_damaged_run(tmp_path: Path, content: str, message: str) -> None:
    (make_run(tmp_path / "run") / RUN_FILE).write_bytes(content.encode("latin-1"))
    with pytest.raises(UnknownFormatError, match=message) as raised:
        traceana.open(tmp_path / "run")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        ("failed", "out of memory", "the run failed \\(out of memory\\)"),
        ("complete", None, "recorded without a profiler"),
    ],
)
def test_run_without_a_trace(tmp_path: Path, status: str, reason: str | None, message: str) -> None:
    folder = make_run(tmp_path / "run", status=status, reason=reason, traces=[])
    with pytest.raises(NoSuchSelectionError, match=message):
        traceana.open(folder)
    assert [one.run.reason for one in find_runs([folder])] == [reason]


def test_a_recording_that_goes_on_is_no_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run.partial")
    for opens in (traceana.open, read_run, lambda path: find_runs([path])):
        with pytest.raises(CorruptError, match="is an unfinished recording"):
            opens(folder)
    make_run(tmp_path / "whole")
    assert [one.folder.name for one in find_runs([tmp_path])] == ["whole"]


def test_runs_of_a_sweep_come_in_its_order(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", [1, 2, 10, 16], made=[1, 2, 10])
    assert [one.folder.name for one in find_runs([sweep])] == ["batch=1", "batch=2", "batch=10"]
    assert [point.values["batch"] for point in read_sweep(sweep).points] == ["1", "2", "10", "16"]


def test_runs_are_found_in_folders_of_runs_and_sweeps_once(tmp_path: Path) -> None:
    make_sweep(tmp_path / "b", [1, 2], made=[1, 2])
    alone = make_run(tmp_path / "a")
    (tmp_path / "notes").mkdir()
    found = find_runs([tmp_path, alone, tmp_path / "b" / "batch=2"])
    assert [one.folder.name for one in found] == ["a", "batch=1", "batch=2"]


def test_a_command_needs_one_run_of_many(tmp_path: Path, run: Command) -> None:
    sweep = make_sweep(tmp_path / "sweep", [1, 2], made=[1, 2])
    for folder in (sweep, tmp_path):
        done = run("report", folder)
        assert done.exit_code == 14
        assert "contains 2 recorded runs" in done.stderr


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda path: None, NotFoundError),
        (lambda path: path.mkdir(), UnknownFormatError),
        (lambda path: path.write_text(""), UnknownFormatError),
    ],
)
def test_folders_without_runs_are_refused(
    tmp_path: Path, make: Any, error: type[TraceanaError]
) -> None:
    make(tmp_path / "x")
    with pytest.raises(error):
        find_runs([tmp_path / "x"])


def test_the_time_of_a_step_is_the_median_unless_only_the_sum_is_right() -> None:
    assert StepTimes(steps_ns=(1, 2, 9)).step_ns == 2
    assert StepTimes(steps_ns=(1, 2, 9), synchronized=False).step_ns == 4
    assert StepTimes(steps_ns=()).step_ns is None


def test_a_trace_that_is_called_run_is_no_recorded_run(tmp_path: Path) -> None:
    trace = Path(__file__).parents[2] / "fixtures" / "alexnet-cpu-ranges.json.gz"
    (tmp_path / "run.json").write_bytes(gzip.decompress(trace.read_bytes()))
    opened = traceana.open(tmp_path)
    assert opened.tables.activities.equals(traceana.open(trace).tables.activities)


@pytest.mark.exhaustive(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("by_file", [False, True], ids=["folder", "file"])
def test_times_of_steps_that_run_ahead_are_not_shown_as_exact(
    by_file: bool, tmp_path: Path, run: Command
) -> None:
    note = "times of single steps not exact: the script did not wait for each step"
    given = []
    for synchronized in (True, False):
        folder = make_run(tmp_path / str(synchronized))
        times = {"steps_ns": [1, 2, 9], "synchronized": synchronized}
        (folder / "timing.json").write_text(json.dumps({"version": 1, "with_profiler": times}))
        given.append(folder / "trace.json.gz" if by_file else folder)
        shown = " ".join(run("report", given[-1]).stdout.split())
        assert (note in shown) == (not synchronized)
        assert (" median " in shown) == synchronized
    shown = " ".join(run("diff", *given).stdout.split())
    assert f"candidate: {note}" in shown
    assert "--statistic mean compares the means" in shown
    assert f"baseline: {note}" not in shown
