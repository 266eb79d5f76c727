"""The verdict on a difference: faster, slower, same, inconclusive, or not enough steps.

A difference is faster or slower where its interval excludes 0, which is equivalent to a small p
value (:mod:`traceana.comparison.resampling`), and it reaches the minimum relative change. Two runs
are the *same* where the whole interval is within that minimum. Everything else is *inconclusive*
(Altman and Bland, "Absence of evidence is not evidence of absence", BMJ 1995).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.comparison.compared_run import RunSteps
from traceana.comparison.resampling import (
    Floats,
    Interval,
    Statistic,
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
SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "calls_a": pl.Float64,
    "calls_b": pl.Float64,
    "time_a_ns": pl.Int64,
    "time_b_ns": pl.Int64,
    "delta_ns": pl.Int64,
    "low_ns": pl.Int64,
    "high_ns": pl.Int64,
    "relative": pl.Float64,
    "of_step": pl.Float64,
    "p": pl.Float64,
    "verdict": pl.String,
}
"""The columns of :func:`verdict_tables`, per step: mean calls and times, ``delta_ns`` (b less a)
and the bounds of its interval, ``relative`` (delta over the time of a), ``of_step`` (delta over the
device time of a's step), ``p`` (corrected for all rows of work together; rows relative to the step
are tested one by one) and the verdict. Without enough steps bounds and ``p`` are null."""


class Criteria(msgspec.Struct, frozen=True):
    """The confidence level and the minimum relative change of a difference."""

    level: float = CONFIDENCE_LEVEL
    minimum_effect: float = MINIMUM_EFFECT
    statistic: Statistic = "median"

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
    """Return whether the step time, or that of its ``kernels``, exceeds the baseline's.

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
    alike: bool = False,
) -> Step:
    """Return the wall times of the steps of two programs, with verdicts.

    ``a`` and ``b`` have the steps of each run of a program. ``spreads`` are the usual standard
    deviations of the programs' step times between runs, relative to them. ``alike`` is True where
    both runs are one recording: the verdict is then ``same`` for any number of steps.
    """
    x, y = ([one.to_numpy().astype(np.float64) for one in side] for side in (a, b))
    median = _statistic_verdict(x, y, "median", criteria, spreads, alike=alike)
    mean = _statistic_verdict(x, y, "mean", criteria, spreads, alike=alike)
    return Step(median, mean, criteria.statistic)


def _statistic_verdict(
    runs_a: Sequence[Floats],
    runs_b: Sequence[Floats],
    of: Statistic,
    criteria: Criteria,
    spreads: tuple[float, float],
    *,
    alike: bool,
) -> StatisticVerdict:
    x, y = (np.array([statistic(one, of) for one in side]) for side in (runs_a, runs_b))
    a, b = float(x.mean()), float(y.mean())
    spread = math.hypot(a * spreads[0] / math.sqrt(len(x)), b * spreads[1] / math.sqrt(len(y)))
    if len(x) > 1:
        least = spread if min(len(x), len(y)) < ENOUGH_RUNS else 0.0
        interval, p = between_runs(x, y, criteria.level, least)
        return StatisticVerdict(a, b, interval, p, _verdict(interval, False, criteria, a, b))
    x, y = runs_a[0], runs_b[0]
    if not criteria.enough(len(x), len(y)):
        return StatisticVerdict(a, b, None, None, "same" if alike else "not enough steps")
    interval, p = decided(x, y, of, criteria.level, spread)
    return StatisticVerdict(
        a, b, interval, p, _verdict(interval, np.array_equal(x, y), criteria, a, b)
    )


def _verdict(
    interval: Interval, identical: bool, criteria: Criteria, a: float, b: float
) -> Verdict:
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
    def spread(self) -> Floats:
        """The standard deviation of each difference between runs (ns)."""
        return np.hypot(self.a.spread, self.b.spread)

    @property
    def identical(self) -> bool:
        """Whether every row has the same times in both runs, step by step."""
        return np.array_equal(self.a.times, self.b.times)


def step_times(a: RunSteps, b: RunSteps) -> tuple[int, int]:
    """Return the mean device time of the steps of both runs (ns, rounded down)."""
    return mean_available(a), mean_available(b)


def mean_available(one: RunSteps) -> int:
    """Return the mean device time of the steps (ns, rounded down)."""
    return int(one.frame["available_ns"].sum()) // one.count


def verdict_tables(
    groups: Sequence[RowPairs], a: RunSteps, b: RunSteps, criteria: Criteria, *, alike: bool
) -> list[pl.DataFrame]:
    """Return a table of :data:`SCHEMA` for each of ``groups``.

    All p values are of one family, so that a row and its change have the same p value and verdict.
    ``alike``: both runs are the same recording.
    """
    x, y = (np.hstack([getattr(one, column).times for one in groups]) for column in ("a", "b"))
    enough = criteria.enough(len(x), len(y))
    mean = sum(int(one.frame["available_ns"].sum()) for one in (a, b)) / (len(x) + len(y))
    columns = x.shape[1]
    low = high = p = np.full(columns, np.nan)
    if enough:
        of_step = np.concatenate([one.of_step for one in groups])
        spread = np.concatenate([one.spread for one in groups])
        floor = NOISE_FLOOR * criteria.minimum_effect * mean
        p, low, high = _figures(x, y, of_step, spread, criteria, floor)
    found, at = [], 0
    for one in groups:
        cut = slice(at, at + len(one.of_step))
        at = cut.stop
        figures = pl.DataFrame(
            {
                "calls_a": one.a.calls.mean(axis=0),
                "calls_b": one.b.calls.mean(axis=0),
                "time_a_ns": one.a.times.sum(axis=0) // len(x),
                "time_b_ns": one.b.times.sum(axis=0) // len(y),
                "low_ns": _whole(low[cut]),
                "high_ns": _whole(high[cut]),
                "p": p[cut],
                "_of_step": one.of_step,
                "_identical": _identical(one, always=alike),
            }
        ).with_columns(pl.col("p", "low_ns", "high_ns").fill_nan(None))
        found.append(_with_verdict(figures, step_times(a, b), criteria, enough=enough))
    return found


def with_deltas(frame: pl.DataFrame, step_a: int) -> pl.DataFrame:
    """Return ``frame`` with the differences of its times, its columns those of :data:`SCHEMA`."""
    delta = pl.col("time_b_ns") - pl.col("time_a_ns")
    of_step = delta / step_a if step_a else pl.lit(None, pl.Float64)
    return frame.with_columns(
        delta.alias("delta_ns"),
        pl.when(pl.col("time_a_ns") > 0).then(delta / pl.col("time_a_ns")).alias("relative"),
        of_step.alias("of_step"),
    ).select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())


def _figures(
    x: Times, y: Times, of_step: Flags, spread: Floats, criteria: Criteria, floor: float
) -> tuple[Floats, Floats, Floats]:
    """Return the p value and the interval's bounds of each column; equal columns count once."""
    both = np.vstack([x, y, spread.round().astype(np.int64), of_step])
    distinct, back = np.unique(both, axis=1, return_inverse=True)
    back = back.reshape(-1)
    a, b, (between,) = np.split(distinct[:-1].astype(np.float64), [len(x), len(x) + len(y)])
    alone = distinct[-1].astype(bool)
    p = np.ones(len(alone))
    p[~alone] = family_p(a[:, ~alone], b[:, ~alone], floor)
    for at in np.flatnonzero(alone):
        p[at] = family_p(a[:, [at]], b[:, [at]])[0]
    low, high, own = mean_intervals(a, b, criteria.level, between)
    p = np.maximum(p, own)
    low, high = agreeing(low, high, p, criteria.level)
    return p[back], low[back], high[back]


def _whole(bounds: Floats) -> Floats:
    """Return the bounds in whole ns; a bound other than 0 stays other than 0."""
    rounded = bounds.round()
    return np.where((rounded == 0) & (bounds != 0), np.sign(bounds), rounded)


def _identical(one: RowPairs, *, always: bool) -> Flags:
    a, b = one.a.times, one.b.times
    if always or len(a) != len(b):
        return np.full(a.shape[1], always)
    # For a single step an equal time may be chance.
    return np.asarray((a == b).all(axis=0) & (len(a) > 1))


def _with_verdict(
    frame: pl.DataFrame, steps: tuple[int, int], criteria: Criteria, *, enough: bool
) -> pl.DataFrame:
    a, b = pl.col("time_a_ns"), pl.col("time_b_ns")
    work = ~pl.col("_of_step")
    least = criteria.minimum_effect * pl.when(work).then(pl.min_horizontal(a, b)).otherwise(
        min(steps)
    )
    low, high = pl.col("low_ns"), pl.col("high_ns")
    real = (pl.col("p") <= criteria.alpha) & ((b - a).abs() >= least) & (b != a)
    verdict = (
        pl.when(work & (pl.col("calls_a") == 0) & (pl.col("calls_b") > 0))
        .then(pl.lit("only in candidate"))
        .when(work & (pl.col("calls_b") == 0) & (pl.col("calls_a") > 0))
        .then(pl.lit("only in baseline"))
        .when("_identical")
        .then(pl.lit("same"))
        .when(pl.lit(not enough))
        .then(pl.lit("not enough steps"))
        .when(pl.max_horizontal(-low, high) <= least)
        .then(pl.lit("same"))
        .when(real & (b > a))
        .then(pl.lit("slower"))
        .when(real)
        .then(pl.lit("faster"))
        .otherwise(pl.lit("inconclusive"))
    )
    return with_deltas(frame.with_columns(verdict.alias("verdict")), steps[0])
