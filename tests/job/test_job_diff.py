"""``diff --by rank``: two jobs with a known difference."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.job.jobs import Grid, Job, even
from tests.support.command_line import Run
from traceana.errors import ExitCode

pytestmark = pytest.mark.usefixtures("in_threads")

RANKS, STEPS, LATE_NS = 4, 12, 1_000_000


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def kept_summaries(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Keep summaries for the tests of this file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Write two jobs; in the second, rank 2 computes for ``LATE_NS`` more in each step."""
    folder = tmp_path_factory.mktemp("jobs")
    baseline, candidate = even(RANKS, STEPS, 1), even(RANKS, STEPS, 1)
    candidate[2] += LATE_NS
    Grid(baseline).write(folder / "a")
    Grid(candidate).write(folder / "b")
    return folder / "a", folder / "b"


def document(run: Run, *words: object) -> Any:
    result = run("diff", *words, "--by", "rank", "-f", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.slow
def test_the_rank_that_became_slower(jobs: tuple[Path, Path], run: Run) -> None:
    a, b = jobs
    found = document(run, a, b)
    rows = {row["rank"]: row for row in found["rows"]}
    assert found["rows"][0]["rank"] == 2
    assert rows[2]["own_delta_ns"] == LATE_NS
    assert (rows[2]["straggler_a"], rows[2]["straggler_b"]) == (False, True)
    for rank, row in rows.items():
        assert rank == 2 or row["own_delta_ns"] == 0
        assert row["delta_ns"] == row["step_b_ns"] - row["step_a_ns"]
    assert found["meta"]["step"]["verdict"] == "slower"
    # The figures are those of ``ranks``.
    for folder, side in ((a, "a"), (b, "b")):
        shown = json.loads(run("ranks", folder, "-f", "json").stdout)
        for row in shown["rows"]:
            assert rows[row["rank"]][f"step_{side}_ns"] == row["step_median_ns"]
            assert rows[row["rank"]][f"straggler_{side}"] == row["straggler"]
        parts = sum(part[f"time_{side}_ns"] for part in found["sections"]["parts"])
        spans = sum(row["span_ns"] for row in shown["rows"])
        assert parts == pytest.approx(spans / RANKS / STEPS, abs=10)
    parts = {part["part"]: part["delta_ns"] for part in found["sections"]["parts"]}
    assert parts["compute"] == pytest.approx(LATE_NS / RANKS, abs=1)


@pytest.mark.slow
def test_equal_jobs_are_the_same(jobs: tuple[Path, Path], tmp_path: Path, run: Run) -> None:
    Grid(even(RANKS, STEPS, 1)).write(tmp_path / "again")
    found = document(run, jobs[0], tmp_path / "again")
    assert found["meta"]["step"]["verdict"] == "same"
    assert {row["delta_ns"] for row in found["rows"]} == {0}


@pytest.mark.slow
def test_jobs_of_other_ranks(tmp_path: Path, run: Run) -> None:
    Job(even(3, STEPS, 1)).write(tmp_path / "a")
    Job(even(2, STEPS, 1)).write(tmp_path / "b")
    rows = document(run, tmp_path / "a", tmp_path / "b")["rows"]
    assert [row["rank"] for row in rows][-1] == 2
    assert (rows[-1]["status_a"], rows[-1]["status_b"]) == ("ok", None)
    assert (rows[-1]["step_b_ns"], rows[-1]["delta_ns"]) == (None, None)


def test_the_gate_and_the_page(jobs: tuple[Path, Path], run: Run) -> None:
    a, b = jobs
    shown = run("diff", a, b, "--by", "rank", "--fail-if-slower", "3%")
    assert shown.exit_code == ExitCode.GATE_FAILED
    assert "Stragglers  none → rank 2" in shown.stdout
    parts = document(run, a, b)["sections"]["parts"]
    without_time = {row["part"] for row in parts if row["time_a_ns"] == row["time_b_ns"] == 0}
    assert without_time
    assert not any(part in shown.stdout for part in without_time)
    assert max(map(len, shown.stdout.splitlines())) <= 100
    assert run("diff", b, a, "--by", "rank", "--fail-if-slower", "3%").exit_code == ExitCode.OK


def test_what_is_not_read_and_options_that_do_not_apply(
    jobs: tuple[Path, Path], tmp_path: Path, run: Run
) -> None:
    a, whole = jobs
    b = tmp_path / "b"
    # Links to the same files, so that their summaries are those that are kept.
    shutil.copytree(whole, b, copy_function=os.symlink, ignore=lambda *_: ["rank1.json"])
    (b / "rank1.json").write_bytes(b"")
    shown = run("diff", a, b, "--by", "rank", "--strict")
    assert shown.exit_code == ExitCode.DAMAGED_INPUT
    assert "rank 1 not read: " in shown.stderr
    for words in (("--step", "1"), ("--rank", "1"), ("--device", "0"), ("--map", "x.csv")):
        assert run("diff", a, b, "--by", "rank", *words).exit_code == ExitCode.USAGE
    assert run("diff", a, tmp_path / "none", "--by", "rank").exit_code == ExitCode.NOT_FOUND
    assert run("diff", a, "--by", "rank").exit_code == ExitCode.USAGE


def test_jobs_without_steps(tmp_path: Path, run: Run) -> None:
    for name in "ab":
        for file in Job(even(2, 1, 1)).write(tmp_path / name):
            file.write_text(file.read_text().replace("ProfilerStep#0", "other"))
    shown = run("diff", tmp_path / "a", tmp_path / "b", "--by", "rank", "--fail-if-slower", "3%")
    assert shown.exit_code == ExitCode.OK
    assert "not determined: no common step of all ranks" in shown.stdout
    assert "gate: no common step of all ranks of a job" in shown.stderr
