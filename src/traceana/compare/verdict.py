"""What is said of a difference: faster, slower, the same within noise, or that nobody can tell."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log
from typing import Final, Literal

import numpy as np
import polars as pl

from traceana.compare.resample import (
    Interval,
    Statistic,
    difference,
    permutation_p,
    smallest_p,
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
class Step:
    """The step's time on both sides (ns), and what is said of the difference.

    ``median`` and ``mean`` are intervals of the difference, null without enough steps; ``p`` is
    that of the statistic that decides.
    """

    median_a: float
    median_b: float
    mean_a: float
    mean_b: float
    median: Interval | None
    mean: Interval | None
    p: float | None
    verdict: Verdict
    statistic: Statistic = "median"

    @property
    def relative(self) -> float:
        """The difference of the statistic that decides, over that of a."""
        a, b = (
            (self.median_a, self.median_b)
            if self.statistic == "median"
            else (self.mean_a, self.mean_b)
        )
        return b / a - 1 if a else 0.0


def judge_step(a: pl.Series, b: pl.Series, criteria: Criteria) -> Step:
    """Return what is said of the wall times of the steps of two runs.

    The verdict is of the criteria's statistic: real if its interval is without 0, no more than
    1 - level of the relabellings of the steps have as large a difference, and the effect is large
    enough.
    """
    x, y = a.to_numpy().astype(np.float64), b.to_numpy().astype(np.float64)
    told = (float(np.median(x)), float(np.median(y)), float(x.mean()), float(y.mean()))
    if not criteria.enough(len(x), len(y)):
        return Step(*told, None, None, None, "not enough steps", criteria.statistic)
    median = difference(x, y, "median", criteria.level)
    mean = difference(x, y, "mean", criteria.level)
    p = permutation_p(x, y, criteria.statistic)
    by_median = criteria.statistic == "median"
    chosen, of_a, of_b = (median, *told[:2]) if by_median else (mean, *told[2:])
    apart = chosen.low > 0 or chosen.high < 0
    real = apart and p <= 1 - criteria.level + 1e-12 and criteria.effect(of_a, of_b)
    verdict: Verdict = "same"
    if real:
        verdict = "slower" if chosen.difference > 0 else "faster"
    return Step(*told, median, mean, p, verdict, criteria.statistic)


def log_ratio(a: float, b: float) -> float:
    """Return the logarithm of b / a; infinite where one is 0, 0 where both are."""
    if a > 0 and b > 0:
        return log(b / a)
    return 0.0 if a == b else inf if b > a else -inf
