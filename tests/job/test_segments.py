"""Steps of recorded jobs, cut where their ranks wait: the replay has every wait."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.job.jobs import TRANSFER_NS, Grid, Turns, even
from tests.support.command_line import Run
from traceana.job import segments

pytestmark = pytest.mark.usefixtures("in_threads")

EXTRA_NS = 3_000_000


def ranks_of(folder: Path, run: Run) -> Any:
    """Return the JSON of ``ranks`` of the job in ``folder / "job"``."""
    words = ("ranks", folder / "job", "--keep", folder / "kept", "--workers", 1, "-f", "json")
    return json.loads(run(*words).stdout)


def in_turns(ranks: int, steps: int, turns: int) -> Any:
    return np.full((ranks, steps, turns), 10_000_000, dtype=np.int64)


def test_a_rank_that_waits_twice_in_a_step_waits_twice_in_the_replay(
    tmp_path: Path, run: Run
) -> None:
    compute = in_turns(3, 4, 2)
    # Each rank computes as long as the others in a step, but waits for another one in its middle.
    compute[0, :, 0] += EXTRA_NS
    compute[1, :, 1] += EXTRA_NS
    job = Turns(compute, clock_ns={2: 700_000})
    job.write(tmp_path / "job")
    summary = ranks_of(tmp_path, run)["summary"]
    assert summary["recorded_step_ns"] == job.step_ns().mean()
    assert summary["replayed_step_ns"] == pytest.approx(summary["recorded_step_ns"], rel=1e-6)
    typical = 2 * (10_000_000 + EXTRA_NS / 3 + TRANSFER_NS)
    assert summary["typical_step_ns"] == pytest.approx(typical, rel=1e-6)


def test_groups_of_a_step_meet_on_their_own(tmp_path: Path, run: Run) -> None:
    compute = even(8, 6, 3, spread=0.1)
    Grid(compute, clock_ns={3: 400_000}).write(tmp_path / "job")
    document = ranks_of(tmp_path, run)
    summary = document["summary"]
    assert summary["replayed_step_ns"] == pytest.approx(summary["recorded_step_ns"], rel=1e-3)
    # Equal ranks compute the mean of a step, without the wait for the slowest of eight.
    assert summary["typical_step_ns"] == pytest.approx(compute.mean() + 400_000, rel=1e-2)


def test_a_large_job_is_cut_where_most_time_is_waited(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = in_turns(2, 4, 2)
    compute[0, :, 0] += EXTRA_NS
    compute[1, :, 1] += EXTRA_NS // 3
    job = Turns(compute)
    job.write(tmp_path / "job")
    monkeypatch.setattr(segments, "MOST_TIMES", 1)
    summary = ranks_of(tmp_path, run)["summary"]
    assert summary["replayed_step_ns"] == pytest.approx(job.step_ns().mean(), rel=1e-6)
    # The second wait of rank 0 is a part of its transfer: the median of both ranks'.
    last = 10_000_000 + EXTRA_NS / 6 + EXTRA_NS / 6 + TRANSFER_NS
    typical = 10_000_000 + EXTRA_NS / 2 + TRANSFER_NS + last
    assert summary["typical_step_ns"] == pytest.approx(typical, rel=1e-6)


def test_steps_with_other_collectives_are_replayed_as_recorded(tmp_path: Path, run: Run) -> None:
    compute = in_turns(2, 4, 2)
    compute[0, :, 0] += EXTRA_NS
    # Step 2 has no collective in its middle: the faster rank goes on.
    missing: dict[tuple[int, int, int], dict[str, Any] | None] = {(0, 2, 0): None, (1, 2, 0): None}
    Turns(compute, of_rank=missing).write(tmp_path / "job")
    summary = ranks_of(tmp_path, run)["summary"]
    assert summary["steps"] == 4
    assert summary["replayed_step_ns"] == pytest.approx(summary["recorded_step_ns"], rel=1e-6)
