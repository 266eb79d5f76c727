"""What a run measures of its steps."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepTimes:
    """The time of each step in ns; the device has been waited for at the end of each."""

    warm_up_ns: list[int] = field(default_factory=list)
    steps_ns: list[int] = field(default_factory=list)

    def add(self, number: int, time: int) -> None:
        """Add the time of step ``number``; negative numbers are of the warm-up."""
        (self.warm_up_ns if number < 0 else self.steps_ns).append(time)
