"""Verdicts: error rates equal to the level, and no verdict without enough steps."""

from __future__ import annotations

import tracemalloc
from math import comb, sqrt

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceana.comparison import resampling
from traceana.comparison.resampling import (
    agreeing,
    alpha,
    decided,
    difference,
    family_p,
    mean_intervals,
    permutation_p,
    relabellings,
    smallest_p,
)
from traceana.comparison.verdicts import Criteria, Step, step_verdict

REPEATS = 200
ANY = Criteria(minimum_effect=0.0)


def verdict_of(a: pl.Series, b: pl.Series, criteria: Criteria) -> Step:
    """Return the verdict on a run of each program, without a spread between runs."""
    return step_verdict([a], [b], criteria)


def drawn(rng: np.random.Generator, shape: str, count: int) -> pl.Series:
    if shape == "normal":
        times = rng.normal(100, 2, count)
    elif shape == "skewed":
        times = 100 * np.exp(0.3 * rng.normal(size=count))
    else:
        times = 90 + rng.exponential(10, count)
    return pl.Series(np.rint(times * 1e6).astype(np.int64))


@pytest.mark.exhaustive(after=2)
@pytest.mark.parametrize(
    ("counts", "shape"),
    [
        *(((5, 5), shape) for shape in ("normal", "skewed", "exponential")),
        ((8, 30), "skewed"),
        ((30, 30), "exponential"),
    ],
)
def test_equal_runs_differ_at_most_as_often_as_the_level_allows(
    counts: tuple[int, int], shape: str
) -> None:
    rng = np.random.default_rng([*counts, *shape.encode()])
    real = {"median": 0, "mean": 0}
    for _ in range(REPEATS):
        a, b = (drawn(rng, shape, count) for count in counts)
        found = verdict_of(a, b, ANY)
        real["median"] += found.median.verdict in ("faster", "slower")
        real["mean"] += found.mean.verdict in ("faster", "slower")
    # Three standard deviations of a binomial count.
    assert max(real.values()) <= 0.05 * REPEATS + 3 * sqrt(REPEATS * 0.05 * 0.95)


@pytest.mark.parametrize("floor", [0.0, 1e7])
def test_equal_layers_do_not_differ_in_19_of_20_diffs(floor: float) -> None:
    rng = np.random.default_rng(7)
    some = 0
    for _ in range(REPEATS):
        a, b = (100e6 * np.exp(0.3 * rng.normal(size=(5, 40))) for _ in range(2))
        some += bool((family_p(a, b, floor) <= 0.05).any())
    assert some <= 0.05 * REPEATS + 3 * sqrt(REPEATS * 0.05 * 0.95)


def test_equal_layers_do_not_differ_beside_layers_that_do() -> None:
    """Stepping down, what really differs makes nothing surer of the others."""
    rng = np.random.default_rng(8)
    wrong = 0
    for _ in range(REPEATS):
        a, b = (100e6 * np.exp(0.1 * rng.normal(size=(5, 20))) for _ in range(2))
        b[:, :10] *= 3
        p = family_p(a, b)
        assert (p[:10] <= 0.05).sum() > 4
        wrong += bool((p[10:] <= 0.05).any())
    assert wrong <= 0.05 * REPEATS + 3 * sqrt(REPEATS * 0.05 * 0.95)


def test_a_floor_makes_what_is_large_stand_out_from_what_hardly_varies() -> None:
    rng = np.random.default_rng(9)
    a, b = (rng.normal(100, 10, (6, 1)) for _ in range(2))
    b += 35
    small = [rng.normal(1, 0.01, (6, 300)) for _ in range(2)]
    all_a, all_b = np.hstack([a, small[0]]), np.hstack([b, small[1]])
    assert family_p(all_a, all_b)[0] > 0.05
    assert family_p(all_a, all_b, 1.0)[0] <= 0.05


def test_intervals_of_many_columns_are_those_of_each() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.normal(100, 3, (9, 30)), rng.normal(104, 5, (12, 30))
    low, high, _ = mean_intervals(a, b, 0.95)
    for at in range(30):
        alone = difference(a[:, at], b[:, at], "mean", 0.95)
        width = alone.high - alone.low
        assert low[at] == pytest.approx(alone.low, abs=0.12 * width)
        assert high[at] == pytest.approx(alone.high, abs=0.12 * width)
    back = mean_intervals(b, a, 0.95)
    assert back[0] == pytest.approx(-high, abs=1e-9)
    assert mean_intervals(a[:, :1], a[:, :1], 0.95)[0] < 0


def test_nothing_is_called_the_same_that_may_differ() -> None:
    """One step in four takes four times as long: of ten steps nobody can tell much."""
    a = pl.Series([100, 101, 99, 100, 400, 100, 101, 99, 400, 100])
    b = pl.Series([100, 101, 99, 400, 100, 101, 99, 102])
    found = verdict_of(a, b, Criteria(statistic="mean"))
    assert found.verdict == "inconclusive"
    assert found.mean.interval is not None
    assert found.mean.interval.low < -1 < 1 < found.mean.interval.high
    steady = pl.Series([100_000 + n for n in range(10)])
    assert verdict_of(steady, steady + 3, Criteria()).verdict == "same"


def test_medians_of_resamples_are_drawn_as_resampling_would() -> None:
    for size in (5, 6):
        values = np.arange(float(size)) ** 2
        rng = np.random.default_rng(1)
        slow = np.median(values[rng.integers(0, size, (200_000, size))], axis=1)
        low, high = np.quantile(slow, [0.025, 0.975])
        found = difference(np.full(size, -1000.0), values, "median", 0.95)
        assert found.low - 1000 == pytest.approx(low, abs=0.51)
        assert found.high - 1000 == pytest.approx(high, abs=0.51)


@pytest.mark.parametrize("statistic", ["median", "mean"])
def test_intervals_cover_the_truth(statistic: str) -> None:
    rng = np.random.default_rng(11)
    covered = 0
    for _ in range(REPEATS):
        a, b = rng.normal(100, 3, 8), rng.normal(104, 5, 10)
        found = difference(a, b, statistic, 0.95)  # type: ignore[arg-type]
        covered += found.low <= 4 <= found.high
    assert covered >= 0.95 * REPEATS - 3 * sqrt(REPEATS * 0.05 * 0.95)


@pytest.mark.parametrize("statistic", ["median", "mean"])
def test_a_difference_of_many_deviations_is_found(statistic: str) -> None:
    rng = np.random.default_rng(3)
    a, b = drawn(rng, "normal", 6), drawn(rng, "normal", 6) + 20_000_000
    criteria = Criteria(statistic=statistic)  # type: ignore[arg-type]
    assert verdict_of(a, b, criteria).verdict == "slower"
    assert verdict_of(b, a, criteria).verdict == "faster"


def test_a_layer_that_doubled_is_found_among_many() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.normal(100, 1, (5, 200)), rng.normal(100, 1, (5, 200))
    b[:, 17] += 100
    p = family_p(a, b)
    assert p[17] <= 0.05
    assert (np.delete(p, 17) > 0.05).all()


@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 50), (2, 2), (3, 3), (50, 1)])
def test_too_few_steps_have_their_own_verdict(a: int, b: int) -> None:
    times = [pl.Series([10**9 * (1 + side)] * count) for side, count in ((0, a), (1, b))]
    found = verdict_of(times[0], times[1], Criteria())
    assert found.verdict == "not enough steps"
    assert found.median.interval is None
    assert found.mean.p is None


def test_four_steps_on_both_sides_are_enough() -> None:
    assert smallest_p(4, 4) == pytest.approx(2 / 70)
    assert verdict_of(pl.Series([10, 11, 12, 13]), pl.Series([20, 21, 22, 23]), ANY).median.p == (
        pytest.approx(2 / 70)
    )


def test_a_real_difference_below_the_least_effect_is_the_same() -> None:
    a = pl.Series([100_000 + n for n in range(10)])
    b = a + 500
    assert verdict_of(a, b, Criteria(minimum_effect=0.01)).verdict == "same"
    assert verdict_of(a, b, Criteria(minimum_effect=0.001)).verdict == "slower"


samples = st.lists(st.integers(1, 10**9), min_size=2, max_size=12)


@given(samples, samples)
def test_turned_around_everything_is_mirrored(x: list[int], y: list[int]) -> None:
    a, b = pl.Series(x), pl.Series(y)
    there, back = verdict_of(a, b, Criteria()), verdict_of(b, a, Criteria())
    turned = {"faster": "slower", "slower": "faster"}
    assert back.verdict == turned.get(there.verdict, there.verdict)
    for one, other in ((there.median, back.median), (there.mean, back.mean)):
        assert (one.a, one.b, one.p) == (other.b, other.a, other.p)
        if one.interval is None or other.interval is None:
            assert one.interval is other.interval
            continue
        assert one.interval.difference == -other.interval.difference
        assert (one.interval.low, one.interval.high) == (-other.interval.high, -other.interval.low)


def test_a_mean_that_differs_is_listed_beside_an_equal_median() -> None:
    """One step in four takes four times as long: a data loader that now and then is late."""
    rng = np.random.default_rng(2)
    a = pl.Series(rng.integers(100_000, 101_000, 32))
    late = np.where(np.arange(32) % 4 == 0, 4, 1)
    found = verdict_of(a, pl.Series(rng.integers(100_000, 101_000, 32) * late), Criteria())
    assert found.verdict == found.median.verdict == "same"
    assert found.other.verdict == "slower"
    assert found.other.relative == pytest.approx(0.75, abs=0.01)


@given(samples)
def test_a_run_is_the_same_as_itself(x: list[int]) -> None:
    a = pl.Series(x)
    assert verdict_of(a, a, ANY).verdict in ("same", "not enough steps")


@pytest.mark.exhaustive(after=4)
@pytest.mark.parametrize("level", [0.8, 0.9, 0.95, 0.99])
@pytest.mark.parametrize(("counts", "apart"), [((5, 5), 3.0), ((4, 9), 4.0), ((30, 30), 1.0)])
def test_the_interval_excludes_0_exactly_where_p_is_below_the_level(
    level: float, counts: tuple[int, int], apart: float
) -> None:
    """Of steps that differ by about as much as can be told, both decide alike."""
    rng = np.random.default_rng([*counts, round(100 * level)])
    seen = set()
    for _ in range(40):
        a, b = (
            np.rint(rng.normal(mean, 2, n))
            for mean, n in zip((100, 100 + apart), counts, strict=True)
        )
        for of in ("mean", "median"):
            interval, p = decided(a, b, of, level)
            excluded = interval.low > 0 or interval.high < 0
            assert excluded == (p <= alpha(level))
            seen.add(excluded)
    assert seen == {True, False}


def test_intervals_of_a_family_exclude_0_exactly_where_p_is_below_the_level() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.normal(100, 2, (6, 60)), rng.normal(100, 2, (7, 60))
    b[:, ::2] += np.linspace(0, 12, 30)
    bounds = mean_intervals(a, b, 0.95)
    # The bootstrap alone: its p is where its interval touches 0.
    assert (((bounds[0] > 0) | (bounds[1] < 0)) == (bounds[2] <= alpha(0.95))).all()
    p = np.maximum(bounds[2], family_p(a, b))
    low, high = agreeing(*bounds[:2], p, 0.95)
    excluded = (low > 0) | (high < 0)
    assert (excluded == (p <= alpha(0.95))).all()
    assert 5 < excluded.sum() < 35


def test_few_relabellings_are_gone_through_all() -> None:
    (chosen,) = relabellings(5, 6)
    assert len(chosen) == comb(11, 5) == len(np.unique(chosen, axis=0))
    assert chosen[0].tolist() == [True] * 5 + [False] * 6
    (many,) = relabellings(20, 30)
    assert (many.sum(axis=1) == 20).all()
    assert many[0].tolist() == [True] * 20 + [False] * 30


def test_relabellings_of_many_steps_come_in_batches() -> None:
    batches = list(relabellings(6000, 4000))
    assert len(batches) > 5
    assert max(batch.size for batch in batches) <= 2_000_000
    assert sum(map(len, batches)) == 2000
    assert all((batch.sum(axis=1) == 6000).all() for batch in batches)
    assert batches[0][0].tolist() == [True] * 6000 + [False] * 4000
    assert not any(batch[0].tolist() == batches[0][0].tolist() for batch in batches[1:])


def test_the_exact_p_value_of_a_small_case() -> None:
    # Means differ by 3; of the 20 relabellings of 1..6 only the two extreme ones do so.
    assert permutation_p(np.array([1.0, 2, 3]), np.array([4.0, 5, 6]), "mean") == 2 / 20


def test_resamples_of_many_steps_take_little_memory_and_are_those_of_one_draw() -> None:
    values = np.sort(np.random.default_rng(1).gamma(2, 100, 20_000))
    tracemalloc.start()
    means = resampling._resampled(values, "mean", np.random.default_rng(5))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(means) == 1_000
    # 1,000 resamples of 20,000 steps are 160 MB at once.
    assert peak < 64_000_000
    drawn = np.random.default_rng(5).integers(0, len(values), (1_000, len(values)))
    np.testing.assert_array_equal(means, values[drawn].mean(axis=1))
