"""``diff --plan``: how many runs and steps show a change."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.comparison.shared import diff
from tests.support.command_line import Run
from tests.support.training import training
from traceana.comparison.planning import STEPS, planned, smallest_found
from traceana.comparison.verdicts import Criteria, step_verdict
from traceana.errors import ExitCode, UsageError
from traceana.settings import PLANNED_POWER

TIME = 1_000_000
MEAN = Criteria(statistic="mean")


@pytest.mark.parametrize(
    ("runs", "steps", "of_step", "between"),
    [(1, 20, 0.05, 0.0), (1, 10, 0.02, 0.03), (3, 10, 0.05, 0.02), (6, 5, 0.1, 0.05)],
)
def test_a_planned_change_is_found_as_often_as_said(
    runs: int, steps: int, of_step: float, between: float
) -> None:
    """Drawn runs with these standard deviations, relative to the step, are judged by ``diff``."""
    rng = np.random.default_rng(runs)
    change = smallest_found(
        *(runs, steps, MEAN),
        within=(of_step * TIME) ** 2 / steps,
        between=between * TIME,
        usual=between * TIME,
        of_cost=0.0,
    )

    def program(time: float) -> list[pl.Series]:
        of_runs = time + rng.normal(0, between * TIME, runs)
        drawn = of_runs[:, None] + rng.normal(0, of_step * TIME, (runs, steps))
        return [pl.Series(times.round().astype(np.int64)) for times in drawn]

    rounds = 150
    found = [
        step_verdict(program(TIME), program(TIME + change), MEAN, spreads=(between, between))
        for _ in range(rounds)
    ]
    share = sum(step.verdict == "slower" for step in found) / rounds
    # Three standard deviations of the share, and what the widening of small samples takes.
    assert PLANNED_POWER - 0.15 < share < PLANNED_POWER + 0.1


def test_more_runs_and_more_steps_find_smaller_changes() -> None:
    def found(runs: int, steps: int) -> float:
        given = {"within": 1e8 / steps, "between": 2_000.0, "usual": 2_000.0, "of_cost": 0.0}
        return smallest_found(runs, steps, MEAN, **given)

    assert [found(5, steps) for steps in STEPS] == sorted(
        (found(5, steps) for steps in STEPS), reverse=True
    )
    assert found(50, 10) < found(10, 10) < found(5, 10)
    # However many steps a run has, the variance between runs stays.
    assert found(5, 1_000) > 2.8 * 2_000 * math.sqrt(2 / 5)


def test_few_steps_show_nothing() -> None:
    nothing = {"within": 0.0, "between": 0.0, "usual": 0.0, "of_cost": 0.0}
    assert smallest_found(1, 3, MEAN, **nothing) == math.inf


def test_the_rows_end_where_the_runs_have_enough_steps() -> None:
    rows = planned(diff(training(seed=1), training(seed=2)), 0.5).frame
    assert rows.height == 1
    assert rows["found"].item() < 0.5
    none = planned(diff(training(seed=1), training(seed=2)), 1e-5)
    assert none.frame["steps"].null_count() == none.frame.height
    assert "do not show 0.001 %" in none.notes[0]


@pytest.mark.parametrize("change", [0.0, -0.1])
def test_a_change_that_is_none_is_refused(change: float) -> None:
    with pytest.raises(UsageError, match="above 0"):
        planned(diff(training(seed=1), training(seed=2)), change)


def test_runs_with_few_steps_cannot_be_planned() -> None:
    with pytest.raises(UsageError, match="4 or more"):
        planned(diff(training(steps=1), training(steps=1, seed=2)), 0.02)


def test_the_command_prints_runs_and_steps(run: Run, tmp_path: Path) -> None:
    a, b = (training(seed=seed).save(tmp_path / str(seed)) for seed in (1, 2))
    shown = run("diff", a, b, "--plan", "10%").stdout
    assert shown.startswith("Runs that show a change of 10 %")
    printed = json.loads(run("diff", a, b, "--plan", "10%", "--format", "json").stdout)
    assert [*printed["rows"][0]] == ["runs", "steps", "found", "found_ns"]
    for options in (("--by", "layer"), ("--fail-if-slower", "3%")):
        assert run("diff", a, b, "--plan", "10%", *options).exit_code == ExitCode.USAGE
    assert run("diff", a, b, "--plan", "much").exit_code == ExitCode.USAGE
