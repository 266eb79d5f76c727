"""``diff --plan``: how many runs and steps would show a change of a given size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import Final

import numpy as np
import polars as pl

from traceana.comparison.diff import Diff
from traceana.comparison.resampling import statistic, variance_of_statistic
from traceana.comparison.verdicts import Criteria
from traceana.errors import UsageError
from traceana.result import Result
from traceana.settings import ENOUGH_RUNS, PLANNED_POWER
from traceana.table import COUNT, SHARE, TIME, Column, conformed, laid_out

RUNS: Final = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50)
STEPS: Final = (5, 10, 20, 50, 100, 200, 500, 1000)

COLUMNS: Final = laid_out(
    (
        Column("runs", COUNT, "number of runs of each program"),
        Column(
            "steps",
            COUNT,
            "fewest steps in each run that show the change; null where no number of them does",
            title="steps in each",
        ),
        Column(
            "found",
            SHARE,
            "smallest change that is found with so many runs and steps, relative to the baseline",
            title="smallest change found",
        ),
        Column("found_ns", TIME, "the same in time per step", title="in time"),
    )
)


def planned(diff: Diff, change: float) -> Result:
    """Return the numbers of runs of each program and of steps in each that show ``change``.

    A relative ``change`` of the step time is shown where its verdict is ``slower`` with probability
    :data:`~traceana.settings.PLANNED_POWER`, at the level of ``diff``. The variance is what the
    runs have: from step to step by resampling, between runs measured where there are several of
    each, else usual. The rows end with the first that needs no more steps than the compared runs
    have. Raises ``UsageError`` if the change is not above 0, and where the runs have too few steps.
    """
    if change <= 0:
        raise UsageError("--plan: the change must be above 0: --plan 2%")
    a, b = ([steps.to_numpy().astype(np.float64) for steps in side] for side in diff.walls)
    fewest = min(len(steps) for steps in (*a, *b))
    if not diff.baseline.steps.marked or not diff.criteria.enough(fewest, fewest):
        raise UsageError("--plan needs 4 or more marked steps in each run")
    of, several = diff.criteria.statistic, len(a) > 1
    of_step = float(np.mean([variance_of_statistic(steps, of) * len(steps) for steps in (*a, *b)]))
    time = float(np.mean([statistic(steps, of) for steps in a]))
    usual = time * math.sqrt((diff.spreads[0] ** 2 + diff.spreads[1] ** 2) / 2)
    between = usual
    if several:
        # The variance of the runs' medians has that of their steps in it.
        of_runs = [np.array([statistic(steps, of) for steps in side]) for side in (a, b)]
        freedom = sum(len(side) - 1 for side in of_runs)
        pooled = sum(float(((side - side.mean()) ** 2).sum()) for side in of_runs) / freedom
        mean_steps = float(np.mean([len(steps) for steps in (*a, *b)]))
        between = math.sqrt(max(pooled - of_step / mean_steps, 0.0))
    rows = []
    for runs in RUNS:
        reachable = [
            smallest_found(
                *(runs, steps, diff.criteria),
                within=of_step / steps,
                between=between,
                usual=usual,
                of_cost=diff.of_cost,
            )
            for steps in STEPS
        ]
        enough = [place for place, found in enumerate(reachable) if found <= change * time]
        place = enough[0] if enough else len(STEPS) - 1
        steps = STEPS[place] if enough else None
        rows.append((runs, steps, reachable[place] / time, round(reachable[place])))
        if steps is not None and steps <= fewest:
            break
    frame = pl.DataFrame(rows, schema=["runs", "steps", "found", "found_ns"], orient="row")
    notes = tuple(_notes(diff, change, rows, of_step, between, time))
    return Result(conformed(frame, COLUMNS), notes=notes, columns=COLUMNS)


def smallest_found(
    runs: int,
    steps: int,
    criteria: Criteria,
    *,
    within: float,
    between: float,
    usual: float,
    of_cost: float,
) -> float:
    """Return the smallest change in ns that ``runs`` of each program with ``steps`` each show.

    ``within`` is the variance of a run's statistic over its steps (ns²), ``between`` the standard
    deviation of runs, ``usual`` the one that is assumed of few runs, ``of_cost`` that of the
    change by the profiler's cost. The interval is as wide as
    :func:`traceana.comparison.verdicts.step_verdict` makes it, on average; the change exceeds it
    by the deviate of the power (Cohen, "Statistical Power Analysis", 1988, 2.4).
    """
    from scipy.special import stdtrit

    if not criteria.enough(steps, steps):
        return math.inf
    error = math.sqrt(2 * (between**2 + within) / runs)
    deviate = -NormalDist().inv_cdf((1 - criteria.level) / 2)
    if runs == 1:
        half = deviate * math.hypot(error, of_cost)
    else:
        least = math.hypot(usual * math.sqrt(2 / runs) if runs < ENOUGH_RUNS else 0.0, of_cost)
        student = -float(stdtrit(2 * runs - 2, (1 - criteria.level) / 2))
        half = max(student * error, deviate * least)
    return half + NormalDist().inv_cdf(PLANNED_POWER) * error


def _notes(
    diff: Diff,
    change: float,
    rows: list[tuple[int, int | None, float, int]],
    of_step: float,
    between: float,
    time: float,
) -> Iterator[str]:
    if rows[-1][1] is None:
        yield f"{RUNS[-1]} runs of each with {STEPS[-1]:,} steps do not show {100 * change:g} %"
    runs = max(diff.runs)
    measured = f"of {diff.runs[0]} and {diff.runs[1]} runs" if runs > 1 else "usual, of 1 run each"
    yield (
        f"standard deviation: {100 * math.sqrt(of_step) / time:.1f} % from step to step, "
        f"{100 * between / time:.1f} % from run to run ({measured})"
    )
    yield (
        f"a change is found where its verdict is slower with probability {PLANNED_POWER:g}, at "
        f"{100 * diff.criteria.level:g} % confidence"
    )
    if runs == 1:
        yield "give several runs of each (A1,A2,A3 B1,B2,B3) to measure the variance between runs"
    if diff.of_cost:
        yield (
            "the profiler's cost is known to "
            f"{100 * diff.of_cost / time:.1f} % only, which no number of runs changes"
        )
