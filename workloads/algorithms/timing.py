"""The number of runs of an algorithm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns

LEAST = 3
"""Minimum number of timed runs, for a median."""


@dataclass(frozen=True)
class Timing:
    """``repetitions`` timed runs after ``warm_up`` others, fewer once they take ``limit_ns``."""

    warm_up: int
    repetitions: int
    limit_ns: int

    def of(self, run: Callable[[], None]) -> tuple[int, ...]:
        """Return the nanoseconds of each timed call of ``run``, which waits for its work."""
        for _ in range(self.warm_up):
            run()
        times: list[int] = []
        while len(times) < self.repetitions:
            start = perf_counter_ns()
            run()
            times.append(perf_counter_ns() - start)
            if len(times) >= LEAST and sum(times) >= self.limit_ns:
                break
        return tuple(times)
