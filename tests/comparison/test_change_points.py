"""Change points: planted series, closed forms, and what must not depend on unit or order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traceana
from benchmarks.change_points import SERIES, outcome
from tests.support.manifest import TRACES
from traceana.comparison.change_points import change_points, levels, usual_values
from traceana.settings import FEWEST_OF_LEVEL

WITHOUT_CHANGE = [
    *("level", "level, heavy tails", "one outlier, +30 %"),
    *("two machines alternate, 5 %", "two modes, 5 %"),
]


@pytest.mark.parametrize("name", WITHOUT_CHANGE)
def test_series_without_a_change_have_none(name: str) -> None:
    """At most 2 of 100 alarm."""
    assert outcome(SERIES[name], 100).detected <= 2


@pytest.mark.parametrize(
    ("name", "detected", "in_place"),
    [
        ("step of 2 %", 100, 80),
        ("step of 5 %", 100, 98),
        ("step of 10 %", 100, 98),
        ("step of 2 %, 5 runs ago", 70, 60),
        ("step of 5 %, 3 runs ago", 98, 98),
        ("8 slow runs, 5 %", 98, 95),
    ],
)
def test_planted_changes_are_detected_in_place(name: str, detected: int, in_place: int) -> None:
    found = outcome(SERIES[name], 100)
    assert found.detected >= detected
    assert found.in_place >= in_place
    assert found.others <= 20


@pytest.mark.parametrize("count", [6, 8])
def test_few_runs_are_tested_by_their_means(count: int) -> None:
    """At most 3 of 100 alarm without a change; half of the runs slower by ten deviations show."""
    rng = np.random.default_rng(count)
    series = 100 + rng.standard_normal((300, count))
    assert sum(bool(change_points(values)) for values in series) <= 9
    series[:, count // 2 :] += 10
    firsts = [[change.first for change in change_points(values)] for values in series]
    assert firsts.count([count // 2]) >= 280


def test_a_drift_is_not_a_step() -> None:
    assert outcome(SERIES["drift of 10 %"], 50).drifts >= 45


def test_a_change_has_its_levels_and_interval() -> None:
    """Noise of alternating ±1: means, variance and Student's interval in closed form."""
    values = np.tile([99.0, 101.0], 20)
    values[24:] += 10
    (change,) = change_points(values)
    assert (change.first, change.begin, change.end) == (24, 0, 40)
    assert (change.before, change.after) == (100, 110)
    assert change.relative == pytest.approx(0.1)
    # Pooled variance 40 / 38, Student's 0.975 quantile for 38 degrees of freedom 2.0244.
    half = 2.0244 * np.sqrt(40 / 38 * (1 / 24 + 1 / 16))
    assert change.interval.difference == pytest.approx(10)
    assert change.interval.low == pytest.approx(10 - half, rel=1e-4)
    assert change.interval.high == pytest.approx(10 + half, rel=1e-4)
    assert levels(40, [change]) == [(0, 24), (24, 40)]


def test_a_drift_has_the_ends_of_its_line() -> None:
    values = np.tile([99.0, 101.0], 20) + np.arange(40.0)
    (change,) = change_points(values)
    assert change.drift
    assert (change.begin, change.end) == (0, 40)
    assert change.after - change.before == pytest.approx(39, rel=0.05)
    assert levels(40, [change]) == [(0, 40)]


def test_changes_in_long_histories_are_found_once() -> None:
    """Windows overlap: a change in two of them is one change."""
    rng = np.random.default_rng(3)
    values = 100 + rng.standard_normal(2_000)
    for place in (149, 700, 1_350):
        values[place:] *= 1.05
    assert [change.first for change in change_points(values)] == [149, 700, 1_350]


def test_few_runs_may_agree_by_chance() -> None:
    """Six runs with no variance have a change; where they usually vary by 5 %, they have none."""
    values = np.array([100.0, 100.1, 99.9, 103.0, 103.1, 102.9])
    assert not change_points(values, usual=5.0)


@pytest.mark.parametrize("count", range(2 * FEWEST_OF_LEVEL))
def test_few_runs_have_no_change(count: int) -> None:
    assert change_points(np.linspace(1, 2, count)) == []


def test_equal_runs_have_no_change() -> None:
    assert change_points(np.full(50, 1e7)) == []


def test_a_small_change_is_left_out() -> None:
    values = np.tile([999.0, 1001.0], 20)
    values[20:] += 5
    assert change_points(values, minimum_effect=0.01) == []
    assert len(change_points(values, minimum_effect=0.001)) == 1


def test_an_outlier_is_no_part_of_its_level() -> None:
    values = np.array([99.0, 100, 101, 100, 500])
    assert usual_values(values).tolist() == [99, 100, 101, 100]
    assert usual_values(np.array([100.0, 100, 100, 101])).tolist() == [100, 100, 100, 101]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(0.5, 2), min_size=0, max_size=40),
    st.floats(1e-3, 1e6),
    st.integers(0, 40),
)
def test_changes_do_not_depend_on_the_unit(times: list[float], unit: float, place: int) -> None:
    values = np.array(times)
    values[place:] *= 1.5
    changes, scaled = change_points(values), change_points(values * unit)
    assert [change.first for change in changes] == [change.first for change in scaled]
    for change in changes:
        assert change.drift or FEWEST_OF_LEVEL <= change.first <= len(values) - FEWEST_OF_LEVEL
        assert change.interval.low <= change.interval.difference <= change.interval.high
        assert not change.interval.low <= 0 <= change.interval.high


@pytest.mark.exhaustive
def test_trials_of_one_program_have_no_change() -> None:
    """30 recordings each of five layers at four batch sizes, of a shared board, whose time varies
    by 8 to 32 %."""
    series: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for file in (TRACES / "nvprof-printed" / "tegra_x1_celeba").glob("l*/GPUTrace_*.csv"):
        _, layer, batch, trial = file.stem.split("_")
        time = traceana.open(file).tables.activities["duration"].sum()
        series.setdefault((layer, batch), []).append((int(trial), float(time)))
    if not series:
        pytest.skip("no shared traces")
    assert len(series) == 20
    for trials in series.values():
        assert change_points(np.array([time for _, time in sorted(trials)])) == []
