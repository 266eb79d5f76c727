"""What is said of a difference: faster, slower, the same within noise, or that nobody can tell."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log
from typing import Final, Literal

import numpy as np
import polars as pl

from traceana.compare.resample import (
    Floats,
    Interval,
    Statistic,
    difference,
    permutation_p,
    smallest_p,
    statistic,
)

Verdict = Literal["faster", "slower", "same", "not enough steps", "only in a", "only in b"]

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
        return min(a, b) >= FEWEST and smallest_p(a, b) <= 1 - self.level + 1e-12

    def effect(self, a: float, b: float) -> bool:
        """Tell whether ``b`` differs from ``a`` by the least effect; alike in both directions."""
        return abs(log_ratio(a, b)) >= log(1 + self.minimum_effect)


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


def judge_step(a: pl.Series, b: pl.Series, criteria: Criteria) -> Step:
    """Return what is said of the wall times of the steps of two runs."""
    x, y = a.to_numpy().astype(np.float64), b.to_numpy().astype(np.float64)
    return Step(
        _judged(x, y, "median", criteria), _judged(x, y, "mean", criteria), criteria.statistic
    )


def _judged(x: Floats, y: Floats, of: Statistic, criteria: Criteria) -> Judged:
    """Return what is said of one statistic.

    It is real if its interval is without 0, no more than 1 - level of the relabellings of the steps
    have as large a difference, and the effect is large enough.
    """
    a, b = statistic(x, of), statistic(y, of)
    if not criteria.enough(len(x), len(y)):
        return Judged(a, b, None, None, "not enough steps")
    interval = difference(x, y, of, criteria.level)
    p = permutation_p(x, y, of)
    apart = interval.low > 0 or interval.high < 0
    if not apart or p > 1 - criteria.level + 1e-12 or not criteria.effect(a, b):
        return Judged(a, b, interval, p, "same")
    return Judged(a, b, interval, p, "slower" if interval.difference > 0 else "faster")


def log_ratio(a: float, b: float) -> float:
    """Return the logarithm of b / a; infinite where one is 0, 0 where both are."""
    if a > 0 and b > 0:
        return log(b / a)
    return 0.0 if a == b else inf if b > a else -inf
