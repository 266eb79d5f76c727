"""The benchmark of idle time checks its results."""

from __future__ import annotations

import pytest

from benchmarks import idle as benchmark
from benchmarks.idle_trace import known, trace

ACTIVITIES = 16_000


def test_the_causes_equal_those_of_the_input() -> None:
    took = benchmark.measure(trace(ACTIVITIES), known(ACTIVITIES))
    assert len(took) == 3


def test_a_wrong_cause_ends_it() -> None:
    wrong = {**known(ACTIVITIES), "host": (1, 1)}
    with pytest.raises(SystemExit, match="wrong causes"):
        benchmark.measure(trace(ACTIVITIES), wrong)
