"""The step times of a run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepTimes:
    """The time of each step in ns, up to a synchronization with the device."""

    warm_up_ns: list[int] = field(default_factory=list)
    steps_ns: list[int] = field(default_factory=list)

    def add(self, number: int, time: int) -> None:
        """Add the time of step ``number``, negative for warm-up steps."""
        (self.warm_up_ns if number < 0 else self.steps_ns).append(time)
