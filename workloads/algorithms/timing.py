"""How often an algorithm is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns

LEAST = 3
"""Runs that are timed however long they take: fewer have no median."""


@dataclass(frozen=True)
class Timing:
    """``repetitions`` timed runs after ``warm_up`` others, fewer where they take ``limit_ns``."""

    warm_up: int
    repetitions: int
    limit_ns: int

    def of(self, run: Callable[[], None]) -> tuple[int, ...]:
        """Nanoseconds of each timed call of ``run``, which returns when its work is done."""
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
