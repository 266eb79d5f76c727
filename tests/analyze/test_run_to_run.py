"""The variance between runs, as it is usual and as a recorded run measured it."""

from __future__ import annotations

import math

import msgspec
import pytest

from traceana.analyze.run_to_run import spread_of_host
from traceana.runs.run_files import StepTimes
from traceana.settings import USUAL_BLOCKS
from traceana.trace import TraceMeta

META = TraceMeta(source="run", format="kineto")


def times(*steps: int, before: int | None) -> StepTimes:
    return StepTimes(steps_ns=steps, steps_before=before)


def test_blocks_differ_by_what_is_more_than_the_variance_of_their_steps() -> None:
    # Means 100 and 140 of steps without variance: 40 / sqrt(2) over the mean step, 120.
    assert times(100, 100, 140, 140, before=2).spread_of_blocks == pytest.approx(
        40 / math.sqrt(2) / 120
    )
    # Their means differ by 10, as much as the steps within each block let expect: variances of
    # means 450 / 2 and 50 / 2.
    assert times(85, 115, 105, 115, before=2).spread_of_blocks == 0


@pytest.mark.parametrize(("steps", "before"), [((100, 90, 80), 2), ((100, 90), None), ((), 0)])
def test_one_block_tells_nothing(steps: tuple[int, ...], before: int | None) -> None:
    assert times(*steps, before=before).spread_of_blocks is None


@pytest.mark.parametrize(
    ("measured", "ready", "spread"),
    [
        (None, 0.0, 0.05),
        (0.05, 0.0, 0.05),
        (0.0, 0.0, 0.05 * math.sqrt(USUAL_BLOCKS / (USUAL_BLOCKS + 1))),
        (None, 0.12, 0.13),
    ],
)
def test_a_measured_variance_corrects_the_usual_one(
    measured: float | None, ready: float, spread: float
) -> None:
    meta = msgspec.structs.replace(META, spread_of_blocks=measured, ready_share=ready)
    assert spread_of_host(0.05, meta) == pytest.approx(spread)
