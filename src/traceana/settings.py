"""Thresholds that decide what is reported, each with its reason.

JSON output shows them in ``meta.settings``. Limits of what is shown, and limits that keep a damaged
file from using up memory, are no settings: they stand where they are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

Number = TypeVar("Number", int, float)

SETTINGS: Final[dict[str, Setting]] = {}
"""All settings by name."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One threshold."""

    value: float
    reason: str


def _setting(name: str, value: Number, reason: str) -> Number:
    SETTINGS[name] = Setting(value, reason)
    return value


# Steps
WARM_UP_RATIO: Final = _setting(
    "warm_up_ratio",
    1.25,
    "A leading step is warm-up while it takes more than this many times the median step: steps of "
    "one program scatter less, cuDNN's search and the first allocations take several times more.",
)
FEWEST_STEPS: Final = _setting(
    "fewest_steps_for_warm_up",
    3,
    "With fewer steps the median is no measure of a step without warm-up.",
)
STEP_COVERAGE: Final = _setting(
    "step_coverage",
    0.5,
    "Ranges named as iterations are steps if they launch at least this part of the work from the "
    "first to the last of them; those of a data loader launch less.",
)

# Steps by the period of the kernels
FEWEST_PERIODS: Final = _setting(
    "fewest_periods", 3, "Fewer repetitions of a sequence of kernels are taken for chance."
)
SHORTEST_PERIOD: Final = _setting(
    "shortest_period", 8, "Activities of a training step at least: the smallest network has more."
)
PERIOD_SIMILARITY: Final = _setting(
    "period_similarity",
    0.95,
    "Part of a period's activities that the next has in the same place: allocators and autotuners "
    "add or drop single ones.",
)
PERIOD_COVERAGE: Final = _setting(
    "period_coverage", 0.5, "Part of a stream's work that the repeated stretch must hold."
)
LONGER_STRETCH: Final = _setting(
    "longer_stretch",
    1.05,
    "A longer period is preferred only if its stretch is longer by this factor: the blocks of a "
    "network repeat too, but only to the end of the step.",
)

# Work without a launch in the trace
SHORTEST_CONTEXT: Final = _setting(
    "shortest_context",
    8,
    "Activities around one without a launch that must recur elsewhere before its layer is taken "
    "from there: fewer recur by chance.",
)
LONGEST_CONTEXT: Final = _setting(
    "longest_context", 4096, "Activities of the longest context that is compared."
)

# Algorithm search
FEWEST_TRIALS: Final = _setting(
    "fewest_trials",
    3,
    "Algorithms of one convolution in one call from which they are a search (cudnn.benchmark): no "
    "library needs more than two for one result.",
)
