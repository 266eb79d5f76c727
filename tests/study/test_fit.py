"""The models of scaling against times that were made of them, and against sums done by hand."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceana.study.step_times import fits

COUNTS = (1, 2, 4, 8)


def linear(compute: float, gather: float, counts: Sequence[int], shared: bool) -> list[float]:
    return [compute / (n if shared else 1) + gather * (n - 1) for n in counts]


def logarithmic(compute: float, gather: float, counts: Sequence[int], shared: bool) -> list[float]:
    return [compute / (n if shared else 1) + gather * log2(n) for n in counts]


@settings(max_examples=25)
@given(
    st.floats(1e6, 1e12),
    st.floats(0, 1e10),
    st.booleans(),
    st.lists(st.integers(1, 64), min_size=3, max_size=8, unique=True),
)
def test_what_a_model_made_is_found_again(
    compute: float, gather: float, shared: bool, counts: list[int]
) -> None:
    for make, name in ((linear, "O(N-1)"), (logarithmic, "O(log N)")):
        times = make(compute, gather, counts, shared)
        found = fits(counts, times, shared_batch=shared)
        assert found is not None
        (fit,) = (one for one in found if one.gathering == name)
        assert fit.compute_ns == pytest.approx(compute, rel=1e-7)
        assert fit.gather_ns == pytest.approx(gather, rel=1e-6, abs=compute * 1e-7)
        assert fit.residual_share < 1e-9
        assert list(fit.step_ns(counts)) == pytest.approx(times, rel=1e-9)


def test_the_model_that_made_the_times_comes_first() -> None:
    for make, name in ((linear, "O(N-1)"), (logarithmic, "O(log N)")):
        found = fits(COUNTS, make(2e8, 25e6, COUNTS, True), shared_batch=True)
        assert found is not None
        assert found[0].gathering == name
        assert found[1].residual_ns > 1e6


def test_residual_of_three_points_by_hand() -> None:
    """T = 10, 20, 60 at N = 1, 2, 4, each device with a batch of its own, T = a + b (N - 1).

    Means: N - 1 is 4/3, T is 30. Sum of (x - mean)(T - mean) is 220/3 + ... = 80, of squares 42/9:
    b = 17.142857..., a = 30 - b · 4/3 = 7.142857...
    """
    found = fits((1, 2, 4), (10.0, 20.0, 60.0), shared_batch=False)
    assert found is not None
    (fit,) = (one for one in found if one.gathering == "O(N-1)")
    assert fit.gather_ns == pytest.approx(120 / 7)
    assert fit.compute_ns == pytest.approx(50 / 7)
    left = [20 / 7, -30 / 7, 10 / 7]
    assert fit.residual_ns == pytest.approx(sqrt(sum(one * one for one in left) / 3))
    assert fit.residual_share == pytest.approx(fit.residual_ns / 30)


def test_devices_that_share_a_batch_compute_a_part_each() -> None:
    found = fits(COUNTS, [100 / n for n in COUNTS], shared_batch=True)
    assert found is not None
    for fit in found:
        assert fit.compute_ns == pytest.approx(100)
        assert fit.gather_ns == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("counts", [(), (1,), (1, 2), (1, 2, 2, 1)])
def test_nothing_is_fitted_to_fewer_than_three_numbers_of_devices(counts: tuple[int, ...]) -> None:
    assert fits(counts, [1.0] * len(counts), shared_batch=True) is None


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="times"):
        fits((1, 2), (1.0,), shared_batch=True)
    with pytest.raises(ValueError, match="below 1"):
        fits((0, 1, 2), (1.0, 1.0, 1.0), shared_batch=True)
