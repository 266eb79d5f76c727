"""Scenarios of the ranks of a job, in closed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import traceana
from tests.job import jobs
from tests.job.operations import BACKWARD, FORWARD, Job
from traceana.errors import NoSuchSelectionError, UsageError
from traceana.whatif.equal_ranks import is_of_ranks


def predicted(trace: Any, *scenarios: str) -> dict[str, dict[str, Any]]:
    frame = trace.whatif(list(scenarios)).frame
    return {row["scenario"]: row for row in frame.iter_rows(named=True)}


def test_a_slow_rank_takes_the_typical_time(tmp_path: Path) -> None:
    job = Job(dp=4, pp=1, steps=6, micro_batches=3, noise=0)
    job.passes[:, 2] *= 1.5
    trace = traceana.open(job.write(tmp_path / "job.parquet"))
    passes = 3 * (FORWARD + BACKWARD) * 1e9
    rows = predicted(trace, "straggler", "rank:2", "equal ranks", "rank:1", "straggler + rank:1")
    # The others are faster than the mean.
    assert rows["straggler"]["saving_ns"] == pytest.approx(0.375 * passes, rel=1e-6)
    assert rows["rank:2"] == {**rows["straggler"], "scenario": "rank:2"}
    assert rows["equal ranks"] == {**rows["straggler"], "scenario": "equal ranks"}
    assert rows["rank:1"]["saving_ns"] == 0
    assert rows["rank:1"]["relative"] == pytest.approx(0, abs=1e-9)
    step = rows["straggler"]["step_ns"]
    assert rows["straggler"]["predicted_ns"] == pytest.approx(step - 0.375 * passes, rel=1e-6)
    usual = [*predicted(trace)]
    assert {*usual} == {
        *("equal ranks", "straggler", "collectives typical", "equal sequence lengths")
    }


def test_stages_and_sequence_lengths(tmp_path: Path) -> None:
    job = Job(dp=2, pp=3, steps=3, micro_batches=6, noise=0)
    job.passes[:, :, 1] *= 1.5
    trace = traceana.open(job.write(tmp_path / "job.parquet"))
    rows = predicted(trace, "stage:1", "equal sequence lengths")
    assert rows["stage:1"]["saving_ns"] > 0.1 * rows["stage:1"]["step_ns"]
    # Each stage keeps its own time.
    assert rows["equal sequence lengths"]["saving_ns"] == 0


def test_ranks_of_a_folder(tmp_path: Path) -> None:
    compute = jobs.even(4, 8, 1, spread=0)
    compute[2] += 1_000_000
    jobs.Job(compute).write(tmp_path / "job")
    trace = traceana.open(tmp_path / "job")
    (row,) = predicted(trace, "rank:2").values()
    assert row["saving_ns"] == pytest.approx(750_000, rel=0.02)


def test_wrong_scenarios(tmp_path: Path) -> None:
    trace = traceana.open(Job(dp=2, pp=2, steps=2).write(tmp_path / "job.parquet"))
    with pytest.raises(NoSuchSelectionError, match="no stage 7; it has 0, 1"):
        trace.whatif("stage:7")
    with pytest.raises(UsageError, match="not about ranks"):
        trace.whatif(["straggler", "conv x 0.5"])
    assert not is_of_ranks("stage:x")
    assert not is_of_ranks("straggler + conv x 0.5")
