"""Programs in which one thread marks the steps and another computes them, as TensorFlow and XLA
have on the CPU: the step is known in closed form."""

from __future__ import annotations

import statistics

import pytest

from tests.support.traces import TraceBuilder, with_methods
from traceana import Trace
from traceana.enrich import attribute
from traceana.timeline.critical import critical

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
    return with_methods(attribute(build.build()))


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


SLEEP, DISPATCH, REST = 700, 10, 5
COMPUTED = (400, 452, 384, 431, 417)


def beside(*, waits: bool = False) -> Trace:
    """Return five steps, computed beside an annotation ``logging``: the marking thread sleeps in
    it, or ``waits`` in it until the step is computed."""
    build = TraceBuilder()
    at = 0
    for number, computed in enumerate(COMPUTED):
        main, other = {"process": 9, "thread": 1}, {"process": 9, "thread": 2}
        began = at + DISPATCH
        slept = WAKE + computed + 20 if waits else SLEEP
        step = DISPATCH + slept + REST
        build.row("ranges", text=f"train#{number}", kind="step", start=at, duration=step, **main)
        build.step(number, at, step, process=9, source="train")
        build.row("ranges", text="logging", kind="annotation", start=began, duration=slept, **main)
        begin = began + WAKE
        build.row("ranges", text="fc", kind="annotation", start=begin, duration=computed, **other)
        build.row("ops", name="aten::mm", start=begin, duration=computed, **other)
        at += step
    return with_methods(attribute(build.build()))


@pytest.mark.parametrize(
    ("scenario", "sleep", "compute"),
    [
        ("host x 1", 1, 1),
        ("range:logging x 0", 0, 1),
        ("range:logging x 0.5", 0.5, 1),
        ("range:logging x 2", 2, 1),
        ("layer:fc x 0.5", 1, 0.5),
        ("layer:fc x 3", 1, 3),
        ("layer:fc x 3 + range:logging x 0.1", 0.1, 3),
    ],
)
def test_a_step_beside_a_sleep_takes_the_longer_of_both(
    scenario: str, sleep: float, compute: float
) -> None:
    (found,) = beside().whatif([scenario]).frame.to_dicts()
    steps = [
        DISPATCH + max(round(SLEEP * sleep), WAKE + round(one * compute)) + REST for one in COMPUTED
    ]
    assert found["predicted_ns"] == pytest.approx(statistics.median(steps), abs=WAKE)


def test_an_annotation_that_ends_after_another_thread_waited_for_it() -> None:
    (found,) = beside(waits=True).whatif(["layer:fc x 0.5"]).frame.to_dicts()
    steps = [DISPATCH + WAKE + one // 2 + 20 + REST for one in COMPUTED]
    assert found["predicted_ns"] == pytest.approx(statistics.median(steps), abs=WAKE)


def test_a_sleep_beside_the_computation_is_on_the_critical_path() -> None:
    path = critical(beside(), by="layer").frame
    assert path.filter(layer="fc")["time_ns"].sum() == 0
    assert set(critical(beside()).frame["class"]) == {"host"}
    waited = critical(beside(waits=True), by="layer").frame
    assert waited.filter(layer="fc")["time_ns"].sum() > 0
