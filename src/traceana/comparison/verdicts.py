"""The verdict on a difference: faster, slower, same, inconclusive, or not enough steps.

A difference is faster or slower where its interval excludes 0, which is equivalent to a small p
value (:mod:`traceana.comparison.resampling`), and it reaches the minimum relative change. Two runs
are the *same* where the whole interval is within that minimum, for a row within the minimum of the
step: the difference is not significant and cannot matter. Everything else is *inconclusive* (Altman
and Bland, "Absence of evidence is not evidence of absence", BMJ 1995).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.comparison.columns import FIGURES
from traceana.comparison.compared_run import RunSteps
from traceana.comparison.resampling import (
    Floats,
    Interval,
    agreeing,
    alpha,
    between_runs,
    decided,
    family_p,
    mean_intervals,
    smallest_p,
    statistic,
)
from traceana.errors import UsageError
from traceana.settings import (
    CONFIDENCE_LEVEL,
    ENOUGH_RUNS,
    FEWEST_COMPARED,
    MINIMUM_EFFECT,
    NOISE_FLOOR,
)
from traceana.table import conformed
from traceana.vocabulary.option_words import Statistic

Verdict = Literal[
    "faster",
    "slower",
    "same",
    "inconclusive",
    "not enough steps",
    "only in baseline",
    "only in candidate",
]

Gated = Literal["passed", "inconclusive", "failed"]

Times = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Criteria(msgspec.Struct, frozen=True):
    """The confidence level and the minimum relative change of a difference."""

    level: float = CONFIDENCE_LEVEL
    minimum_effect: float = MINIMUM_EFFECT
    statistic: Statistic = "median"

    def __post_init__(self) -> None:
        """Raise ``ValueError`` on values that no difference can meet."""
        level, minimum_effect, statistic = self.level, self.minimum_effect, self.statistic
        if not 0.5 < level < 1 or minimum_effect < 0 or statistic not in ("median", "mean"):
            raise ValueError(
                f"invalid criteria: {level=} {minimum_effect=} {statistic=}: give 0.5 < level < 1, "
                "minimum_effect >= 0, and median or mean"
            )

    def enough(self, a: int, b: int) -> bool:
        """Return whether ``a`` and ``b`` steps can show a difference at this level."""
        return min(a, b) >= FEWEST_COMPARED and smallest_p(a, b) <= self.alpha

    def least(self, a: float, b: float) -> float:
        """Return the minimum change in ns between the values ``a`` and ``b``."""
        return self.minimum_effect * min(a, b)

    @property
    def alpha(self) -> float:
        """The largest p value of a significant difference."""
        return alpha(self.level)


class StatisticVerdict(msgspec.Struct, frozen=True):
    """One statistic of the step times of both runs (ns), their difference and its verdict.

    ``interval`` and ``p`` are null without enough steps.
    """

    a: float
    b: float
    interval: Interval | None
    p: float | None
    verdict: Verdict

    @property
    def relative(self) -> float:
        """The relative change: the difference over ``a``."""
        return self.b / self.a - 1 if self.a else 0.0


def percentage(text: str) -> float:
    """Return ``3%`` or ``0.03`` as a fraction; raises ``UsageError`` on other text."""
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if rest or not 0 <= value < float("inf"):
        raise UsageError(f"{text!r} is not a percentage: use 3% or 0.03")
    return value


def gated(
    step: StatisticVerdict, limit: float, kernels: StatisticVerdict | None = None
) -> tuple[Gated, str]:
    """Return whether the step time, or the time of its ``kernels``, exceeds the baseline's.

    The gate fails where either is slower by more than the fraction ``limit`` of the baseline's
    step. The reason is empty where the gate passes.
    """
    if step.verdict == "slower" and step.relative > limit:
        return "failed", f"candidate slower by {100 * step.relative:.1f} %, limit {100 * limit:g} %"
    if kernels is not None and kernels.verdict == "slower" and step.a:
        share = (kernels.b - kernels.a) / step.a
        if share > limit:
            part = f"{100 * share:.1f} % of the step, limit {100 * limit:g} %"
            return "failed", f"candidate slower by {part}, in GPU kernels"
    # The whole confidence interval lies within the limit.
    if step.interval is not None and step.interval.high <= limit * step.a:
        return "passed", ""
    if step.verdict in ("not enough steps", "inconclusive"):
        return "inconclusive", f"step time {step.verdict}"
    return "passed", ""


class Step(msgspec.Struct, frozen=True):
    """The time of the step, or of its kernels, in both runs; ``statistic`` decides the verdict."""

    median: StatisticVerdict
    mean: StatisticVerdict
    statistic: Statistic

    @property
    def decides(self) -> StatisticVerdict:
        """The statistic that determines the verdict."""
        return self.median if self.statistic == "median" else self.mean

    @property
    def other(self) -> StatisticVerdict:
        """The other statistic."""
        return self.mean if self.statistic == "median" else self.median

    @property
    def verdict(self) -> Verdict:
        """The verdict on the step."""
        return self.decides.verdict


def step_verdict(
    a: Sequence[pl.Series],
    b: Sequence[pl.Series],
    criteria: Criteria,
    *,
    spreads: tuple[float, float] = (0.0, 0.0),
    of_cost: float = 0.0,
    alike: bool = False,
) -> Step:
    """Return the wall times of the steps of two programs, with verdicts.

    ``a`` and ``b`` have the steps of each run of a program. ``spreads`` are the usual standard
    deviations of the programs' step times between runs, relative to them, ``of_cost`` is that of
    the difference by the profiler's cost, in ns. ``alike`` is True where both runs are one
    recording: the verdict is then ``same`` for any number of steps.
    """
    x, y = ([times.to_numpy().astype(np.float64) for times in side] for side in (a, b))
    median = _statistic_verdict(x, y, "median", criteria, spreads, of_cost, alike=alike)
    mean = _statistic_verdict(x, y, "mean", criteria, spreads, of_cost, alike=alike)
    return Step(median, mean, criteria.statistic)


def _statistic_verdict(
    runs_a: Sequence[Floats],
    runs_b: Sequence[Floats],
    of: Statistic,
    criteria: Criteria,
    spreads: tuple[float, float],
    of_cost: float,
    *,
    alike: bool,
) -> StatisticVerdict:
    x, y = (np.array([statistic(times, of) for times in side]) for side in (runs_a, runs_b))
    a, b = float(x.mean()), float(y.mean())
    spread = math.hypot(a * spreads[0] / math.sqrt(len(x)), b * spreads[1] / math.sqrt(len(y)))
    if len(x) > 1:
        least = math.hypot(spread if min(len(x), len(y)) < ENOUGH_RUNS else 0.0, of_cost)
        interval, p = between_runs(x, y, criteria.level, least)
        return StatisticVerdict(a, b, interval, p, verdict_of(interval, False, criteria, a, b))
    x, y = runs_a[0], runs_b[0]
    if not criteria.enough(len(x), len(y)):
        return StatisticVerdict(a, b, None, None, "same" if alike else "not enough steps")
    interval, p = decided(x, y, of, criteria.level, math.hypot(spread, of_cost))
    return StatisticVerdict(
        a, b, interval, p, verdict_of(interval, np.array_equal(x, y), criteria, a, b)
    )


def verdict_of(
    interval: Interval, identical: bool, criteria: Criteria, a: float, b: float
) -> Verdict:
    """Return the verdict on a difference with this ``interval``, of values that were ``a``."""
    least = criteria.least(a, b)
    if identical or max(-interval.low, interval.high) <= least:
        return "same"
    if interval.low <= 0 <= interval.high or abs(interval.difference) < least:
        return "inconclusive"
    return "slower" if interval.difference > 0 else "faster"


class RowTimes(msgspec.Struct, frozen=True):
    """Time (ns) and calls of rows in each step of a run: steps by rows.

    ``spread`` is the standard deviation of each row's mean time between runs (ns).
    """

    times: Times
    calls: Times
    spread: Floats

    @classmethod
    def of(cls, steps: RunSteps, rows: pl.Series, count: int) -> RowTimes:
        """Return the cells of ``steps`` summed by step and row; ``rows`` has the row of a cell.

        Cells without a row are left out.
        """
        kept = rows.is_not_null()
        cells, places = steps.cells.filter(kept), rows.filter(kept).cast(pl.Int64).to_numpy()
        at = (cells["step"].cast(pl.Int64).to_numpy(), places)
        times = np.zeros((steps.count, count), dtype=np.int64)
        calls = np.zeros_like(times)
        spread = np.zeros(count)
        np.add.at(times, at, cells["time_ns"].to_numpy())
        np.add.at(calls, at, cells["calls"].fill_null(0).to_numpy())
        np.add.at(spread, places, cells["spread_ns"].to_numpy() / steps.count)
        return cls(times, calls, spread)

    @classmethod
    def alone(cls, times: Times, spread: float) -> RowTimes:
        """Return a single row without calls."""
        return cls(times[:, None], np.zeros_like(times)[:, None], np.array([spread]))

    @classmethod
    def none(cls, steps: RunSteps) -> RowTimes:
        """Return no row."""
        times = np.zeros((steps.count, 0), dtype=np.int64)
        return cls(times, times, np.zeros(0))

    @classmethod
    def joined(cls, parts: Sequence[RowTimes]) -> RowTimes:
        """Return the rows of ``parts`` one after the other."""
        return cls(
            np.hstack([part.times for part in parts]),
            np.hstack([part.calls for part in parts]),
            np.concatenate([part.spread for part in parts]),
        )


class RowPairs(msgspec.Struct, frozen=True):
    """Rows of two runs.

    ``of_step`` marks rows that are not device work (idle time, data loading, the remainder). They
    may be near zero or negative in a run, so their change is relative to the step, and each is
    tested by itself.
    """

    a: RowTimes
    b: RowTimes
    of_step: Flags

    @property
    def identical(self) -> bool:
        """Whether every row has the same times in both runs, step by step."""
        return np.array_equal(self.a.times, self.b.times)


def step_times(a: RunSteps, b: RunSteps) -> tuple[int, int]:
    """Return the mean device time of the steps of both runs (ns, rounded down)."""
    return mean_available(a), mean_available(b)


def mean_available(steps: RunSteps) -> int:
    """Return the mean device time of the steps (ns, rounded down)."""
    return int(steps.frame["available_ns"].sum()) // steps.count


def verdict_tables(
    groups: Sequence[RowPairs], a: RunSteps, b: RunSteps, criteria: Criteria, *, alike: bool
) -> list[pl.DataFrame]:
    """Return a table of :data:`FIGURES` for each of ``groups``.

    All p values are of one family, so that a row and its change have the same p value and verdict.
    ``alike``: both runs are the same recording.
    """
    every = [RowTimes.joined([getattr(group, side) for group in groups]) for side in "ab"]
    x, y = (run.times for run in every)
    of_step = np.concatenate([group.of_step for group in groups])
    enough = criteria.enough(len(x), len(y))
    low = high = p = np.full(x.shape[1], np.nan)
    if enough:
        mean = sum(int(run.frame["available_ns"].sum()) for run in (a, b)) / (len(x) + len(y))
        spread = np.hypot(every[0].spread, every[1].spread).round().astype(np.int64)
        # Equal columns count once.
        both = np.vstack([x, y, spread, of_step])
        distinct, back = np.unique(both, axis=1, return_inverse=True)
        one_a, one_b, (between,) = np.split(
            distinct[:-1].astype(np.float64), [len(x), len(x) + len(y)]
        )
        alone = distinct[-1].astype(bool)
        p = np.ones(len(alone))
        floor = NOISE_FLOOR * criteria.minimum_effect * mean
        p[~alone] = family_p(one_a[:, ~alone], one_b[:, ~alone], floor)
        for at in np.flatnonzero(alone):
            p[at] = family_p(one_a[:, [at]], one_b[:, [at]])[0]
        low, high, bootstrap_p = mean_intervals(one_a, one_b, criteria.level, between)
        p = np.maximum(p, bootstrap_p)
        low, high = agreeing(low, high, p, criteria.level)
        # Bounds in whole ns: one other than 0 stays other than 0.
        low, high = (
            np.where((bound.round() == 0) & (bound != 0), np.sign(bound), bound.round())
            for bound in (low, high)
        )
        p, low, high = (values[back.reshape(-1)] for values in (p, low, high))
    identical = np.full(x.shape[1], alike)
    if not alike and len(x) == len(y) > 1:  # for a single step an equal time may be chance
        identical = (x == y).all(axis=0)
    steps = step_times(a, b)
    time_a, time_b, work = pl.col("time_a_ns"), pl.col("time_b_ns"), ~pl.col("_of_step")
    shorter = pl.when(work).then(pl.min_horizontal(time_a, time_b)).otherwise(min(steps))
    least = criteria.minimum_effect * shorter
    matters = criteria.least(*steps)
    significant = (pl.col("p") <= criteria.alpha) & ((time_b - time_a).abs() >= least)
    verdict = (
        pl.when(work & (pl.col("calls_a") == 0) & (pl.col("calls_b") > 0))
        .then(pl.lit("only in candidate"))
        .when(work & (pl.col("calls_b") == 0) & (pl.col("calls_a") > 0))
        .then(pl.lit("only in baseline"))
        .when("_identical")
        .then(pl.lit("same"))
        .when(pl.lit(not enough))
        .then(pl.lit("not enough steps"))
        .when(significant & (time_b > time_a))
        .then(pl.lit("slower"))
        .when(significant & (time_b < time_a))
        .then(pl.lit("faster"))
        .when(pl.max_horizontal(-pl.col("low_ns"), "high_ns") <= matters)
        .then(pl.lit("same"))
        .otherwise(pl.lit("inconclusive"))
    )
    table = pl.DataFrame(
        {
            "calls_a": every[0].calls.mean(axis=0),
            "calls_b": every[1].calls.mean(axis=0),
            "time_a_ns": x.sum(axis=0) // len(x),
            "time_b_ns": y.sum(axis=0) // len(y),
            "low_ns": low,
            "high_ns": high,
            "p": p,
            "_of_step": of_step,
            "_identical": identical,
        }
    ).with_columns(pl.col("p", "low_ns", "high_ns").fill_nan(None))
    table = with_deltas(table.with_columns(verdict.alias("verdict")), steps[0])
    ends = np.cumsum([len(group.of_step) for group in groups]).tolist()
    return [table[at:end] for at, end in zip([0, *ends], ends, strict=False)]


def with_deltas(frame: pl.DataFrame, step_a: int) -> pl.DataFrame:
    """Return ``frame`` with the differences of its times, its columns :data:`FIGURES`."""
    delta = pl.col("time_b_ns") - pl.col("time_a_ns")
    of_step = delta / step_a if step_a else pl.lit(None, pl.Float64)
    frame = frame.with_columns(
        delta.alias("delta_ns"),
        pl.when(pl.col("time_a_ns") > 0).then(delta / pl.col("time_a_ns")).alias("relative"),
        of_step.alias("of_step"),
    )
    return conformed(frame, FIGURES)
