"""Tests of the difference of two sets of step times: bootstrap intervals and permutation tests.

The interval bounds the size of a difference; the permutation test decides whether there is one. It
is exact for samples of any size and distribution under exchangeability (Fisher 1935, Pitman 1937);
the bootstrap of five steps is not. A difference must be significant in both: the p value is the
larger of the two, and an interval whose p value exceeds the level is extended to 0
(:func:`agreeing`). The interval excludes 0 if and only if p is at most 1 - level.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations
from math import comb, sqrt
from statistics import NormalDist
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from traceana.vocabulary.option_words import Statistic

Floats = npt.NDArray[np.float64]

SEED: Final = 20120930
RESAMPLES: Final = 9999
ROUNDS: Final = 1999
"""The number of permutations that are drawn where there are more, and of resamples of many columns
together."""

_MOST_DRAWN: Final = 20_000_000
_MOST_AT_ONCE: Final = 2_000_000
"""Numbers of a batch of rounds, which need some multiple of 16 MB."""
_ROUNDING: Final = 1e-9
_ROUNDING_OF_LEVEL: Final = 1e-12


class Interval(msgspec.Struct, frozen=True):
    """The difference of a statistic, b less a, in ns, and the bounds of its interval."""

    difference: float
    low: float
    high: float


def smallest_p(a: int, b: int) -> float:
    """Return the smallest possible two-sided p value of samples of ``a`` and ``b`` steps."""
    return min(1.0, 2 / comb(a + b, a)) if a and b else 1.0


def decided(
    a: Floats, b: Floats, of: Statistic, level: float, spread: float = 0.0
) -> tuple[Interval, float]:
    """Return the difference of two samples with its interval, and its p value, in agreement.

    ``spread`` is the standard deviation of the difference between runs, in ns.
    """
    estimate, bootstrap_p = _bootstrapped(a, b, of, level, spread)
    p = max(bootstrap_p, permutation_p(a, b, of))
    low, high = agreeing(np.array([estimate.low]), np.array([estimate.high]), np.array([p]), level)
    return Interval(estimate.difference, float(low[0]), float(high[0])), p


def agreeing(low: Floats, high: Floats, p: Floats, level: float) -> tuple[Floats, Floats]:
    """Return bounds in agreement with the p values: intervals with a p above the level reach to 0.

    ``p`` is never below the bootstrap's own.
    """
    beyond = p > alpha(level)
    return np.where(beyond, np.minimum(low, 0), low), np.where(beyond, np.maximum(high, 0), high)


def alpha(level: float) -> float:
    """Return the largest p value of a significant difference."""
    return 1 - level + _ROUNDING_OF_LEVEL


def difference(a: Floats, b: Floats, of: Statistic, level: float) -> Interval:
    """Return the difference of the medians or means of two independent samples.

    The interval is from the bootstrap's percentiles. For means it is widened for small samples, to
    be as wide as Student's (Hesterberg, "What Teachers Should Know About the Bootstrap", Am. Stat.
    2015, 3.3). Each sample is resampled with replacement, from a fixed seed.
    """
    return _bootstrapped(a, b, of, level)[0]


def _bootstrapped(
    a: Floats, b: Floats, of: Statistic, level: float, spread: float = 0.0
) -> tuple[Interval, float]:
    """Return :func:`difference`, and 1 less the highest level whose interval excludes 0.

    A normal deviate between runs, with standard deviation ``spread``, is added to each resample.
    """
    (first, second), turned = _ordered(a, b)
    rng = np.random.default_rng(SEED)
    drawn = _resampled(second, of, rng) - _resampled(first, of, rng)
    drawn = drawn + _between_runs(rng, len(drawn), len(a), len(b), of, level) * spread
    bounds = _bounds(drawn[:, None], _tail(len(a), len(b), of, level))
    low, high = float(bounds[0][0]), float(bounds[1][0])
    delta = statistic(second, of) - statistic(first, of)
    p = float(_own_p(drawn[:, None], np.array([delta]), len(a), len(b), of)[0])
    if np.array_equal(first, second):
        # Equal samples have no canonical order: the interval is symmetric.
        high = (high - low) / 2
        low = -high
    return (Interval(-delta, -high, -low) if turned else Interval(delta, low, high)), p


def variance_of_statistic(values: Floats, of: Statistic) -> float:
    """Return the variance of the median or mean of a sample, by resampling it."""
    return float(_resampled(np.sort(values), of, np.random.default_rng(SEED)).var())


def relative_interval(a: Floats, b: Floats, of: Statistic, level: float) -> tuple[float, float]:
    """Return the bounds of the interval of b's median or mean over a's, less 1.

    All times are above 0. Otherwise as :func:`difference`.
    """
    rng = np.random.default_rng(SEED)
    drawn = _resampled(np.sort(b), of, rng) / _resampled(np.sort(a), of, rng) - 1
    tail = _tail(len(a), len(b), of, level)
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return float(low), float(high)


def between_runs(a: Floats, b: Floats, level: float, least: float) -> tuple[Interval, float]:
    """Return the difference of the means of two samples of runs, with its interval, and its p.

    Student's, with the pooled variance of both samples. ``least`` is the smallest standard
    deviation of the difference: few runs may agree by chance.
    """
    from scipy.special import stdtr, stdtrit

    delta, freedom = float(b.mean() - a.mean()), len(a) + len(b) - 2
    squares = ((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum()
    error = sqrt(float(squares) / freedom * (1 / len(a) + 1 / len(b)))
    tail = (1 - level) / 2
    half = max(-float(stdtrit(freedom, tail)) * error, -NormalDist().inv_cdf(tail) * least)
    p = [2 * float(stdtr(freedom, -abs(delta) / error))] if error else []
    p += [2 * NormalDist().cdf(-abs(delta) / least)] if least else []
    return Interval(delta, delta - half, delta + half), max(p, default=float(not delta))


def mean_intervals(
    a: Floats, b: Floats, level: float, spread: Floats | None = None
) -> tuple[Floats, Floats, Floats]:
    """Return the bounds of the interval of each column's difference of means, b less a, and its p.

    ``a`` and ``b`` are steps by columns. Whole steps are drawn, so that all columns have the same
    ones; otherwise as :func:`difference` does for means. p is 1 less the highest level whose
    interval excludes 0. ``spread`` is the standard deviation of each difference between runs.
    """
    columns = a.shape[1]
    low, high, p = np.zeros(columns), np.zeros(columns), np.ones(columns)
    if not columns:
        return low, high, p
    first, second = (b, a) if (turned := _sort_key(b) < _sort_key(a)) else (a, b)
    tail = _tail(len(a), len(b), "mean", level)
    differences = second.mean(axis=0) - first.mean(axis=0)
    spread = np.zeros(columns) if spread is None else spread
    rng = np.random.default_rng([SEED, 2])
    deviates = _between_runs(rng, ROUNDS, len(a), len(b), "mean", level)[:, None]
    width = max(1, _MOST_DRAWN // (4 * ROUNDS))
    for at in range(0, columns, width):
        cut = slice(at, at + width)
        means = _drawn_means(first[:, cut], second[:, cut]) + deviates * spread[cut]
        low[cut], high[cut] = _bounds(means, tail)
        p[cut] = _own_p(means, differences[cut], len(a), len(b), "mean")
    if len(first) == len(second):
        # Columns equal in both runs have no canonical order: their intervals are symmetric.
        half = np.where((first == second).all(axis=0), (high - low) / 2, np.nan)
        low, high = np.where(np.isnan(half), low, -half), np.where(np.isnan(half), high, half)
    return (-high, -low, p) if turned else (low, high, p)


def _drawn_means(first: Floats, second: Floats) -> Floats:
    """Return the difference of the means of whole steps drawn from each, by round and column."""
    rngs = [np.random.default_rng([SEED, which]) for which in range(2)]
    means = []
    for at, rows in _batches(ROUNDS, max(len(first), len(second))):
        mean = [
            _times_drawn(rng, rows - at, len(sample)) @ sample / len(sample)
            for rng, sample in zip(rngs, (second, first), strict=True)
        ]
        means.append(mean[0] - mean[1])
    return np.concatenate(means)


def _between_runs(
    rng: np.random.Generator, rounds: int, a: int, b: int, of: Statistic, level: float
) -> Floats:
    """Return normal deviates whose interval at ``level`` is not widened for small samples."""
    narrower = NormalDist().inv_cdf((1 - level) / 2) / _deviate(a, b, of, level)
    return rng.standard_normal(rounds) * narrower


def _times_drawn(rng: np.random.Generator, rounds: int, size: int) -> Floats:
    """Return how often each of ``size`` steps is drawn in each round, with replacement."""
    drawn = rng.integers(0, size, (rounds, size)) + size * np.arange(rounds)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=rounds * size)
    return counts.reshape(rounds, size).astype(np.float64)


def _batches(rounds: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield bounds of rounds of ``size`` numbers each: together they need little memory."""
    most = max(1, _MOST_AT_ONCE // max(size, 1))
    for at in range(0, rounds, most):
        yield at, min(at + most, rounds)


def _bounds(drawn: Floats, tail: float) -> tuple[Floats, Floats]:
    """Return the quantiles ``tail`` and 1 - ``tail`` of each column.

    They are drawn values: :func:`_own_p` counts them.
    """
    last = len(drawn) - 1
    place = min(int(tail * last), last)
    ordered = np.partition(drawn, [place, last - place], axis=0)
    return ordered[place], ordered[last - place]


def _own_p(drawn: Floats, differences: Floats, a: int, b: int, of: Statistic) -> Floats:
    """Return 1 less the highest level at which :func:`_bounds` exclude 0, by column.

    The bound is that on the side of the difference; without a difference p is 1.
    """
    sign = np.sign(differences)
    beyond = (drawn * sign <= 0).sum(axis=0)
    p = np.ones(len(differences))
    for count in np.unique(beyond[sign != 0]):
        # The bound is above 0 from the index of the first value above 0.
        tail = count / (len(drawn) - 1)
        if tail < 0.5:
            p[(beyond == count) & (sign != 0)] = 2 * _level_of(tail, a, b, of)
    return p


def _level_of(tail: float, a: int, b: int, of: Statistic) -> float:
    """Return the nominal tail whose :func:`_tail` is ``tail``."""
    if of == "median" or not tail:
        return tail
    from scipy.special import stdtr

    fewest = min(a, b)
    t = -NormalDist().inv_cdf(tail) / sqrt(fewest / (fewest - 1))
    return 1 - float(stdtr(fewest - 1, t))


def permutation_p(a: Floats, b: Floats, of: Statistic) -> float:
    """Return the two-sided p value of the difference: the share of relabellings with one as large.

    With few steps many relabellings have equal medians: these are ordered by the means.
    """
    (first, second), _ = _ordered(a, b)
    pooled = np.concatenate([first, second])
    batches = []
    for chosen in relabellings(len(first), len(second)):
        values = np.broadcast_to(pooled, chosen.shape)
        chosen_steps = values[chosen].reshape(len(chosen), len(first))
        other = values[~chosen].reshape(len(chosen), len(second))
        means = np.abs(other.mean(axis=1) - chosen_steps.mean(axis=1))
        medians = means
        if of == "median":
            medians = np.abs(np.median(other, axis=1) - np.median(chosen_steps, axis=1))
        batches.append((means, medians))
    means, medians = (np.concatenate(of_batches) for of_batches in zip(*batches, strict=True))
    large = means >= means[0] * (1 - _ROUNDING)
    if of == "median":
        large = (medians > medians[0]) | ((medians == medians[0]) & large)
    return float(large.mean())


def family_p(a: Floats, b: Floats, floor: float = 0.0) -> Floats:
    """Return a p value for each column of two samples, steps by columns.

    They control the family-wise error: where no column differs, the probability that any p is below
    a level is at most the level (Westfall and Young 1993, step-down maxT, with Welch's t: each
    column is compared with the largest |t| of columns with no larger |t|).
    ``floor`` (ns) is added to each standard error, in quadrature. Without it, many small columns
    with little variance would have larger |t| by chance than a large column that differs (Tusher,
    Tibshirani and Chu, "Significance analysis of microarrays", PNAS 2001). It must not depend on
    the labels of the steps.
    """
    if not a.shape[1]:
        return np.zeros(0)
    if _sort_key(b) < _sort_key(a):
        a, b = b, a
    pooled = np.concatenate([a, b])
    pooled = pooled - pooled.mean(axis=0)
    observed = beyond = np.zeros(0)
    order = np.zeros(0, np.intp)
    rounds = 0
    for labels in relabellings(len(a), len(b)):
        for at, after in _batches(len(labels), pooled.shape[1]):
            t = _welch(labels[at:after].astype(np.float64), pooled, len(a), len(b), floor)
            if not rounds:
                observed = t[0]
                order = np.argsort(observed, kind="stable")
                beyond = np.zeros(len(order))
            largest = np.maximum.accumulate(t.T[order], axis=0)
            beyond += (largest >= observed[order, None] * (1 - _ROUNDING)).sum(axis=1)
            rounds += after - at
    p = np.zeros(len(order))
    # A column with a smaller statistic cannot have a smaller p value.
    p[order] = np.maximum.accumulate(beyond[::-1])[::-1] / rounds
    return p


def relabellings(a: int, b: int) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield which of the pooled steps are labelled a, in batches; the first row is as observed.

    All labellings where they are few, else the first and :data:`ROUNDS` random ones, by a fixed
    seed.
    """
    steps = a + b
    if comb(steps, a) <= ROUNDS:
        yield _all_labellings(a, b)
        return
    rng = np.random.default_rng(SEED)
    for at, after in _batches(ROUNDS + 1, steps):
        drawn = rng.random((after - at, steps))
        # The a smallest of a row are labelled a.
        chosen = drawn < np.partition(drawn, a, axis=1)[:, a, None]
        if not at:
            chosen[0] = np.arange(steps) < a
        yield chosen


@lru_cache(maxsize=8)
def _all_labellings(a: int, b: int) -> npt.NDArray[np.bool_]:
    chosen = np.zeros((comb(a + b, a), a + b), dtype=bool)
    for row, places in enumerate(combinations(range(a + b), a)):
        chosen[row, places] = True
    # Every caller gets the cached array.
    chosen.flags.writeable = False
    return chosen


def _welch(chosen: Floats, pooled: Floats, a: int, b: int, floor: float) -> Floats:
    """Return |t| of each relabelling and column; 0 without a difference, inf without variance."""
    squares = pooled**2
    sum_a, square_a = chosen @ pooled, chosen @ squares
    sum_b, square_b = pooled.sum(axis=0) - sum_a, squares.sum(axis=0) - square_a
    mean_a, mean_b = sum_a / a, sum_b / b
    # Rounding errors of a variance of 0 count as 0.
    least = _ROUNDING * squares.mean(axis=0)
    spread = np.maximum(square_a / a - mean_a**2, 0.0) / max(a - 1, 1)
    spread = spread + np.maximum(square_b / b - mean_b**2, 0.0) / max(b - 1, 1)
    apart = np.abs(mean_b - mean_a)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.sqrt(spread + floor**2)
        t = np.where((spread > least) | (floor > 0), apart / error, np.inf)
    return np.where(apart**2 <= least, 0.0, t)


def _ordered(a: Floats, b: Floats) -> tuple[tuple[Floats, Floats], bool]:
    """Return both samples ordered by their content, and whether they were swapped."""
    first, second = np.sort(a), np.sort(b)
    turned = (len(second), second.tolist()) < (len(first), first.tolist())
    return ((second, first) if turned else (first, second)), turned


def _tail(a: int, b: int, of: Statistic, level: float) -> float:
    """Return the share of the resamples beyond a bound of the interval."""
    return (1 - level) / 2 if of == "median" else NormalDist().cdf(_deviate(a, b, of, level))


def _deviate(a: int, b: int, of: Statistic, level: float) -> float:
    """Return the lower bound of the interval, in standard deviations of the resamples."""
    tail = (1 - level) / 2
    if of == "median":
        return NormalDist().inv_cdf(tail)
    from scipy.special import stdtrit

    fewest = min(a, b)
    return float(stdtrit(fewest - 1, tail)) * sqrt(fewest / (fewest - 1))


def _sort_key(values: Floats) -> tuple[int, list[float], list[float]]:
    """Return a key that orders two tables by content, independent of the order of columns."""
    return len(values), np.sort(values.sum(axis=1)).tolist(), np.sort(values.sum(axis=0)).tolist()


def _resampled(values: Floats, of: Statistic, rng: np.random.Generator) -> Floats:
    """Return the statistic of samples drawn with replacement from ``values``, which are sorted."""
    size = len(values)
    if of == "mean":
        count = min(RESAMPLES, max(999, _MOST_DRAWN // size))
        means = [
            values[rng.integers(0, size, (after - at, size))].mean(axis=1)
            for at, after in _batches(count, size)
        ]
        return np.concatenate(means)
    # The k-th smallest of n uniform indices is n times the k-th smallest of n uniform numbers,
    # which has a beta distribution: two numbers determine the two indices in the middle.
    below = (size + 1) // 2
    middle = rng.beta(below, size - below + 1, RESAMPLES)
    low = values[np.minimum((middle * size).astype(np.int64), size - 1)]
    if size % 2:
        return np.asarray(low)
    above = middle + (1 - middle) * rng.beta(1, size - below, RESAMPLES)
    return np.asarray((low + values[np.minimum((above * size).astype(np.int64), size - 1)]) / 2)


def statistic(values: Floats, of: Statistic) -> float:
    """Return the median or the mean of ``values``."""
    return float(np.median(values) if of == "median" else values.mean())
