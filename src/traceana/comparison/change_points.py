"""Change points: where the level of a series of runs changes, by how much, and how certainly.

Circular binary segmentation (Olshen, Venkatraman, Lucito and Wigler, "Circular binary segmentation
for the analysis of array-based DNA copy number data", Biostatistics 2004): the stretch of runs
whose mean differs most from the others is cut out, as long as so large a difference is unlikely in
a random order of the runs. Both ends of a stretch are searched at once, so that runs that became
slow and then fast again are seen. The permutation test is exact for any distribution, if the runs
of a level are in random order: it has no alarm where two machines alternate or runs have two modes.
Of fewer than ten runs no order is unlikely enough: they are tested by Student's t at each division.

As in Hunter (Fleming et al., "Hunter: Using Change Point Detection to Hunt for Performance
Regressions", ICPE 2023), long series are searched in windows, and what is found there is tested
again by Student's t on all runs of both levels, from the weakest change on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import log, sqrt
from statistics import NormalDist
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from traceana.comparison.resampling import SEED, Floats, Interval, between_runs
from traceana.settings import (
    CHANGE_POINT_P,
    CHANGE_WINDOW,
    CONFIDENCE_LEVEL,
    ENOUGH_RUNS,
    FEWEST_OF_LEVEL,
    LINE_EVIDENCE,
    MINIMUM_EFFECT,
    OUTLYING_RUN,
)

Places = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]

_ROUNDS: Final = (20, 80, 299)
"""Permutations of a test, in batches: it ends early where the difference is usual."""
_FEWEST_PERMUTED: Final = 10
"""The permutation test needs so many runs: ten have 252 divisions into halves, six have 20."""
_OF_NORMAL: Final = 1.4826
"""Standard deviations in a median absolute deviation."""
_ROUNDING: Final = 1e-9


class Change(msgspec.Struct, frozen=True):
    """A change of the level of a series, by positions in it.

    ``first`` is the first run after it; the level before begins with the run ``begin``, the level
    after ends before the run ``end``. ``before`` and ``after`` are the levels, ``interval`` has
    their difference, ``p`` its probability by chance. A ``drift`` goes on from ``begin`` to ``end``
    and has no first run; its levels are the ends of the line.
    """

    first: int
    begin: int
    end: int
    before: float
    after: float
    interval: Interval
    p: float
    drift: bool = False

    @property
    def rises(self) -> bool:
        """Whether the level after is higher."""
        return self.after > self.before

    @property
    def relative(self) -> float:
        """The difference over the level before."""
        return self.after / self.before - 1 if self.before else 0.0


def change_points(
    values: Floats,
    *,
    level: float = CONFIDENCE_LEVEL,
    minimum_effect: float = MINIMUM_EFFECT,
    usual: float = 0.0,
    series: int = 1,
) -> list[Change]:
    """Return the changes of the level of ``values``, one per run in order.

    Intervals are at the confidence ``level``; changes below the relative ``minimum_effect`` are
    left out. ``usual`` is the standard deviation between runs that is assumed of few runs. The p
    values of Student's test are corrected for so many ``series`` that are searched together.
    """
    starts = range(0, max(len(values) - CHANGE_WINDOW // 2, 1), CHANGE_WINDOW // 2)
    tests = len(starts) * series
    chances: dict[int, float] = {}
    for start in starts:
        window = values[start : start + CHANGE_WINDOW]
        if len(values) < _FEWEST_PERMUTED:
            divided = _divided_by_means(window, level)
        else:
            divided = _divided(window, np.random.default_rng([SEED, start]))
        for place, p in divided:
            chances[start + place] = min(p, chances.get(start + place, 1.0))
    places = sorted(chances)
    while places:
        changes = [
            _change(values, places, at, chances[place], tests, level, usual)
            for at, place in enumerate(places)
        ]
        doubtful = [
            change
            for change in changes
            if change.p > CHANGE_POINT_P
            or abs(change.after - change.before) < minimum_effect * min(change.before, change.after)
            or change.interval.low <= 0 <= change.interval.high
        ]
        if not doubtful:
            return _with_drifts(values, changes, level)
        # Without the weakest of them, the levels beside it are one, and are tested again.
        weakest = max(doubtful, key=lambda change: (change.p, -abs(change.relative)))
        places.remove(weakest.first)
    return []


def newest_apart(values: Floats, minimum_effect: float) -> int:
    """Return how many of the newest ``values``, fewer than :data:`ENOUGH_RUNS`, are far from all
    before.

    Each of them is above, or below, all values before, and their mean by the relative
    ``minimum_effect``. The nearest is so far from the usual ones
    that one such run is improbable at :data:`CHANGE_POINT_P`, or of several at the usual level.
    """
    for count in range(ENOUGH_RUNS - 1, 0, -1):
        before, newest = values[:-count], values[-count:]
        if len(before) < FEWEST_OF_LEVEL:
            continue
        if newest.min() > before.max():
            nearest = newest.min()
        elif newest.max() < before.min():
            nearest = newest.max()
        else:
            continue
        usual = usual_values(before)
        if abs(newest.mean() / usual.mean() - 1) < minimum_effect:
            continue
        _, p = between_runs(usual, np.array([nearest]), CONFIDENCE_LEVEL, 0.0)
        if p <= (CHANGE_POINT_P if count == 1 else 1 - CONFIDENCE_LEVEL):
            return count
    return 0


def is_usual(values: Floats) -> Flags:
    """Return which of ``values`` are no outliers: within :data:`OUTLYING_RUN` deviations."""
    low, high = _usual_range(values)
    return (values >= low) & (values <= high)


def usual_values(values: Floats) -> Floats:
    """Return ``values`` without outliers."""
    return values[is_usual(values)]


def _usual_range(values: Floats) -> tuple[float, float]:
    median = float(np.median(values))
    deviation = _OF_NORMAL * float(np.median(np.abs(values - median)))
    # Of few values none is far from the others, and of equal ones none has a deviation.
    measured = deviation > 0 and len(values) > FEWEST_OF_LEVEL
    room = OUTLYING_RUN * deviation if measured else math.inf
    return median - room, median + room


def level_difference(
    before: Floats, after: Floats, level: float, usual: float
) -> tuple[Interval, float]:
    """Return the difference of the means of two sets of runs with its interval, and its p value.

    Few runs may agree by chance: their interval is at least as wide as ``usual``, the standard
    deviation between runs that is assumed of them, makes it.
    """
    error = usual * sqrt(1 / len(before) + 1 / len(after))
    if len(before) + len(after) > 2:
        few = len(before) + len(after) < 2 * ENOUGH_RUNS
        return between_runs(before, after, level, error if few else 0.0)
    difference = float(after.mean() - before.mean())
    half = NormalDist().inv_cdf((1 + level) / 2) * error
    p = 2 * NormalDist().cdf(-abs(difference) / error) if error else 1.0
    return Interval(difference, difference - half, difference + half), p


def levels(count: int, changes: Sequence[Change]) -> list[tuple[int, int]]:
    """Return the first run of each level of ``count`` runs, and the run after its last."""
    ends = [0, *(change.first for change in changes if not change.drift), count]
    return list(pairwise(ends))


def _divided_by_means(values: Floats, level: float) -> list[tuple[int, float]]:
    """Return the place at which the means of few ``values`` differ most, with its p value."""
    places = range(FEWEST_OF_LEVEL, len(values) - FEWEST_OF_LEVEL + 1)
    tested = [
        (between_runs(values[:place], values[place:], level, 0.0)[1], place) for place in places
    ]
    if not tested:
        return []
    p, place = min(tested)
    # Corrected for the number of divisions.
    p *= len(tested)
    return [(place, p)] if p <= CHANGE_POINT_P else []


def _divided(values: Floats, rng: np.random.Generator, offset: int = 0) -> list[tuple[int, float]]:
    """Return the places at which ``values`` are divided, plus ``offset``, with their p values."""
    if len(values) < 2 * FEWEST_OF_LEVEL:
        return []
    begin, end, p = _stretch(np.clip(values, *_usual_range(values)), rng)
    if p > CHANGE_POINT_P:
        return []
    ends = [0, *(place for place in (begin, end) if 0 < place < len(values)), len(values)]
    divided = [(offset + place, p) for place in ends[1:-1]]
    for start, stop in pairwise(ends):
        divided += _divided(values[start:stop], rng, offset + start)
    return divided


def _stretch(values: Floats, rng: np.random.Generator) -> tuple[int, int, float]:
    """Return begin and end of the stretch that differs most, and the p value of its difference."""
    centred = values - values.mean()
    scale = float(centred.std())
    if scale <= _ROUNDING * abs(float(values.mean())):
        return 0, 0, 1.0
    centred /= scale
    observed, chosen = _largest(centred[None])
    begin, end = (int(places[chosen[0]]) for places in _stretches(len(values))[:2])
    beyond = drawn = 0
    most = CHANGE_POINT_P * (sum(_ROUNDS) + 1)
    for size in _ROUNDS:
        orders = rng.permuted(np.broadcast_to(centred, (size, len(values))), axis=1)
        beyond += int((_largest(orders)[0] >= observed[0] - _ROUNDING).sum())
        drawn += size
        if beyond >= most:
            break
    return begin, end, (1 + beyond) / (1 + drawn)


def _largest(rows: Floats) -> tuple[Floats, Places]:
    """Return the largest statistic of each of ``rows``, standardized values, and its stretch.

    The statistic is the log likelihood ratio of the stretch's difference, less the logarithm of the
    number of stretches like it: there are many more inside a series than at its ends.
    """
    sums = np.zeros((len(rows), rows.shape[1] + 1))
    rows.cumsum(axis=1, out=sums[:, 1:])
    begin, end, weight, choices = _stretches(rows.shape[1])
    statistics = (sums[:, end] - sums[:, begin]) ** 2 * weight - choices
    chosen = statistics.argmax(axis=1)
    return statistics[np.arange(len(rows)), chosen], chosen


@lru_cache(maxsize=256)
def _stretches(count: int) -> tuple[Places, Places, Floats, Floats]:
    """Return begin, end, weight and penalty of every stretch of ``count`` runs.

    A stretch at the start is the same division as the rest of the series, which is at its end.
    Every part has at least :data:`FEWEST_OF_LEVEL` runs.
    """
    begin, end = np.triu_indices(count + 1, FEWEST_OF_LEVEL)
    apart = (begin >= FEWEST_OF_LEVEL) & ((end == count) | (count - end >= FEWEST_OF_LEVEL))
    begin, end = begin[apart], end[apart]
    size = end - begin
    at_end = end == count
    numbers = int(at_end.sum()), int((~at_end).sum())
    penalty = np.where(at_end, log(max(numbers[0], 1)), log(max(numbers[1], 1)))
    return begin, end, count / (2 * size * (count - size)), penalty


def _change(
    values: Floats,
    places: Sequence[int],
    at: int,
    chance: float,
    tests: int,
    level: float,
    usual: float,
) -> Change:
    """Return the change at the place of number ``at``, between the places around it."""
    begin = places[at - 1] if at else 0
    first = places[at]
    end = places[at + 1] if at + 1 < len(places) else len(values)
    before, after = usual_values(values[begin:first]), usual_values(values[first:end])
    if min(first - begin, end - first) < FEWEST_OF_LEVEL:
        # Two windows have nearly the same place.
        chance = 1.0
    interval, p = level_difference(before, after, level, usual)
    return Change(
        first,
        begin,
        end,
        float(before.mean()),
        float(after.mean()),
        interval,
        min(max(p * tests, chance), 1.0),
    )


def _with_drifts(values: Floats, changes: Sequence[Change], level: float) -> list[Change]:
    """Return ``changes``, in which those in one direction are a drift where a line fits better."""
    merged: list[Change] = []
    at = 0
    while at < len(changes):
        stop = at + 1
        while stop < len(changes) and changes[stop].rises == changes[at].rises:
            stop += 1
        group = changes[at:stop]
        drift = _drift(values, group, level)
        merged += group if drift is None else [drift]
        at = stop
    return merged


def _drift(values: Floats, group: Sequence[Change], level: float) -> Change | None:
    """Return the line through the runs around ``group``; None where its levels fit better.

    Both are compared by Schwarz's criterion.
    """
    from scipy.special import stdtrit

    begin, end = group[0].begin, group[-1].end
    span = values[begin:end]
    count = end - begin
    edges = [begin, *(change.first for change in group), end]
    parts = (values[start:stop] - values[start:stop].mean() for start, stop in pairwise(edges))
    clipped = (np.clip(part, *_usual_range(part)) for part in parts)
    of_steps = sum(float(part @ part) for part in clipped)
    x = np.arange(count) - (count - 1) / 2
    slope = float(x @ span) / float(x @ x)
    residuals = span - span.mean() - slope * x
    residuals = np.clip(residuals, *_usual_range(residuals))
    of_line = float(residuals @ residuals)
    if of_line <= 0 or count < 2 * FEWEST_OF_LEVEL:
        return None
    # A line has two parameters, a change adds a place and a level.
    evidence = (2 * len(group) - 1) * log(count) - count * log(of_line / max(of_steps, 1e-300))
    if evidence < LINE_EVIDENCE:
        return None
    error = sqrt(of_line / (count - 2) / float(x @ x))
    half = -float(stdtrit(count - 2, (1 - level) / 2)) * error
    middle, length = float(span.mean()), count - 1
    interval = Interval(slope * length, (slope - half) * length, (slope + half) * length)
    p = max(change.p for change in group)
    return Change(
        begin,
        begin,
        end,
        middle - slope * length / 2,
        middle + slope * length / 2,
        interval,
        p,
        drift=True,
    )
