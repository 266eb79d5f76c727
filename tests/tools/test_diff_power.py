"""The calibration of ``diff`` on trials, where the answer is known."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tools.diff_power import share_found

STEADY = pl.Series([1_000_000 + 100 * trial for trial in range(30)])
"""Trials within 0.3 % of each other."""


@pytest.mark.parametrize(("change", "found"), [(0.0, 0.0), (0.05, 1.0)])
def test_steady_trials_show_what_changed_and_nothing_else(change: float, found: float) -> None:
    assert share_found(STEADY, 10, change, 5, np.random.default_rng(1)) == found


def test_noise_hides_a_small_change() -> None:
    noisy = pl.Series([(1 + trial % 3) * 1_000_000 for trial in range(30)])
    assert share_found(noisy, 5, 0.02, 5, np.random.default_rng(1)) < 1
