"""Programs in which one thread marks the steps and another computes them, as TensorFlow and XLA
have on the CPU: the step is known in closed form."""

from __future__ import annotations

import pytest

from tests.support.traces import TraceBuilder
from traceana.enrich import attribute
from traceana.trace import Trace

STEP, LOAD, WAKE, COMPUTE, LOG = 1000, 100, 2, 698, 200
"""A step: a batch is loaded, the other thread wakes and computes, the first thread logs."""


def trace(*, prepares: bool) -> Trace:
    """Return three steps; the marking thread has operators of its own if it ``prepares``."""
    build = TraceBuilder()
    where = {"process": 9}
    for number in range(3):
        at = number * STEP
        main, other = {**where, "thread": 1}, {**where, "thread": 2}
        build.row("ranges", text=f"train#{number}", kind="step", start=at, duration=STEP, **main)
        build.step(number, at, STEP, process=9, source="train")
        build.row("ranges", text="load_data", kind="annotation", start=at, duration=LOAD, **main)
        if prepares:
            build.row("ops", name="aten::cat", start=at + LOAD - 10, duration=10, **main)
        began, ended = at + LOAD + WAKE, at + LOAD + WAKE + COMPUTE
        build.row("ranges", text="fc", kind="annotation", start=began, duration=COMPUTE, **other)
        build.row("ops", name="aten::mm", start=began, duration=COMPUTE, **other)
        build.row("ranges", text="logging", kind="annotation", start=ended, duration=LOG, **main)
    return attribute(build.build())


@pytest.mark.slow
@pytest.mark.parametrize("prepares", [False, True])
@pytest.mark.parametrize(
    ("scenario", "step"),
    [
        ("host x 1", STEP),
        ("layer:fc x 0.5", STEP - COMPUTE // 2),
        ("layer:fc x 2", STEP + COMPUTE),
        ("no data", STEP - LOAD),
        ("range:logging x 0", STEP - LOG),
        ("layer:fc x 0.5 + range:logging x 0.5 + data x 0.5", STEP // 2 + WAKE // 2),
    ],
)
def test_a_thread_that_marks_steps_waits_for_the_one_that_computes(
    scenario: str, step: int, prepares: bool
) -> None:
    (found,) = trace(prepares=prepares).whatif([scenario]).frame.to_dicts()
    assert found["step_ns"] == STEP
    assert found["predicted_ns"] == step
