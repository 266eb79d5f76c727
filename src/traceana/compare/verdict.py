"""What is said of a difference: faster, slower, the same, inconclusive, or not enough steps.

A difference is real where its interval excludes 0, which is where its p value is small
(:mod:`traceana.compare.resample`), and it is as large as the least effect. Two sides are the *same*
where the whole interval lies within the least effect. What is neither is *inconclusive*: that a
difference is not proved does not prove that there is none (Altman and Bland, "Absence of evidence
is not evidence of absence", BMJ 1995).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import polars as pl

from traceana.compare.resample import (
    Floats,
    Interval,
    Statistic,
    alpha,
    decided,
    smallest_p,
    statistic,
)

Verdict = Literal[
    "faster", "slower", "same", "inconclusive", "not enough steps", "only in a", "only in b"
]

LEVEL: Final = 0.95
MINIMUM_EFFECT: Final = 0.01
FEWEST: Final = 2
"""Of one step nothing is known of how much steps differ."""


@dataclass(frozen=True, slots=True)
class Criteria:
    """When a difference counts as real: its confidence level and the least relative effect."""

    level: float = LEVEL
    minimum_effect: float = MINIMUM_EFFECT
    statistic: Statistic = "median"

    def enough(self, a: int, b: int) -> bool:
        """Tell whether so many steps on both sides can show any difference at this level."""
        return min(a, b) >= FEWEST and smallest_p(a, b) <= self.alpha

    def least(self, a: float, b: float) -> float:
        """Return the least effect in ns, of a side's value ``a`` and the other's ``b``."""
        return self.minimum_effect * min(a, b)

    @property
    def alpha(self) -> float:
        """The largest p value of a real difference."""
        return alpha(self.level)


@dataclass(frozen=True, slots=True)
class Judged:
    """What is said of one statistic of the steps' times: its values (ns), and their difference.

    ``interval`` and ``p`` are null without enough steps.
    """

    a: float
    b: float
    interval: Interval | None
    p: float | None
    verdict: Verdict

    @property
    def relative(self) -> float:
        """The difference over a."""
        return self.b / self.a - 1 if self.a else 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """The wall time of the step on both sides; ``statistic`` is the one that decides."""

    median: Judged
    mean: Judged
    statistic: Statistic

    @property
    def decides(self) -> Judged:
        """What is said of the statistic that decides."""
        return self.median if self.statistic == "median" else self.mean

    @property
    def other(self) -> Judged:
        """What is said of the other one."""
        return self.mean if self.statistic == "median" else self.median

    @property
    def verdict(self) -> Verdict:
        """What is said of the step."""
        return self.decides.verdict


def judge_step(a: pl.Series, b: pl.Series, criteria: Criteria, *, alike: bool = False) -> Step:
    """Return what is said of the wall times of the steps of two runs.

    ``alike`` tells that both sides are one recording: they are then the same, however few steps.
    """
    x, y = a.to_numpy().astype(np.float64), b.to_numpy().astype(np.float64)
    median = _judged(x, y, "median", criteria, alike=alike)
    return Step(median, _judged(x, y, "mean", criteria, alike=alike), criteria.statistic)


def _judged(x: Floats, y: Floats, of: Statistic, criteria: Criteria, *, alike: bool) -> Judged:
    a, b = statistic(x, of), statistic(y, of)
    if not criteria.enough(len(x), len(y)):
        return Judged(a, b, None, None, "same" if alike else "not enough steps")
    interval, p = decided(x, y, of, criteria.level)
    return Judged(a, b, interval, p, _verdict(interval, np.array_equal(x, y), criteria, a, b))


def _verdict(
    interval: Interval, identical: bool, criteria: Criteria, a: float, b: float
) -> Verdict:
    least = criteria.least(a, b)
    if identical or max(-interval.low, interval.high) <= least:
        return "same"
    if interval.low <= 0 <= interval.high or abs(interval.difference) < least:
        return "inconclusive"
    return "slower" if interval.difference > 0 else "faster"
