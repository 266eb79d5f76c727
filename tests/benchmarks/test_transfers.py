"""The benchmark of transfers checks its results."""

from __future__ import annotations

import pytest

from benchmarks import transfers as benchmark


def test_the_exposed_time_equals_that_of_the_input() -> None:
    outcome = benchmark.measure(activities=16_000, copies=0.25, rounds=1)
    assert len(outcome.rows) == 5


def test_a_wrong_time_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made, exposed = benchmark.trace(16_000, 0.25)
    monkeypatch.setattr(benchmark, "trace", lambda *_: (made, exposed + 1))
    with pytest.raises(SystemExit, match="wrong exposed time"):
        benchmark.measure(activities=16_000, copies=0.25, rounds=1)
