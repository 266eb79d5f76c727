"""The line about a reading that takes minutes."""

from __future__ import annotations

import pytest

from traceana.cli.opening import notice

LINE = "reading ranks takes about 17 min; traceana save makes a bundle of it, which opens faster"


def test_a_long_reading_is_announced_once() -> None:
    said: list[str] = []
    now = [0.0]
    progress = notice("ranks", said.append, lambda: now[0])
    for done in range(1, 100):
        now[0] = done
        progress(done, 1000)
    assert said == [LINE]


@pytest.mark.parametrize("seconds", [0.01, 0.5])
def test_a_short_reading_is_not(seconds: float) -> None:
    said: list[str] = []
    now = [0.0]
    progress = notice("ranks", said.append, lambda: now[0])
    for done in range(100):
        now[0] += seconds
        progress(done, 100)
    assert said == []
