"""Work on a CPU that XLA's thunks hand to a pool of threads, which records nothing."""

from __future__ import annotations

import polars as pl
import pytest

from tests.enrich.test_attribution import annotate
from tests.support.traces import TraceBuilder
from traceana.enrich import attribute
from traceana.trace import Trace

WAIT = "ThunkExecutor::Execute (wait for completion)"


def thunk(b: TraceBuilder, name: str, opcode: str, start: int, end: int, thread: int = 2) -> None:
    """Add a thunk of a thread of the pool."""
    row = b.row("instructions", program="jit_step", name=name, opcode=opcode)
    b.row("ops", name=name, process=9, thread=thread, start=start, duration=end - start,
          instruction=row)  # fmt: skip


def activities(trace: Trace) -> list[tuple[str, int, int]]:
    """Return name, start and end of the activities, by start."""
    table = trace.tables.activities.sort("start")
    names = trace.tables.names["name"].gather(table["name_id"])
    times = table.select("start", end=pl.col("start") + pl.col("duration")).rows()
    return [(name, start, end) for name, (start, end) in zip(names, times, strict=True)]


def test_the_wait_for_a_convolution_is_its_work() -> None:
    b = TraceBuilder(framework="JAX")
    annotate(b, WAIT, 100, 1000, "runtime")
    thunk(b, "depthwise", "convolution", 50, 400)
    thunk(b, "add_fusion", "fusion", 900, 950, thread=3)
    assert activities(attribute(b.build())) == [
        ("depthwise", 50, 900),
        ("add_fusion", 900, 950),
    ]


def test_the_wait_for_a_fusion_around_a_product_is_its_work() -> None:
    b = TraceBuilder(framework="JAX")
    annotate(b, WAIT, 100, 300, "runtime")
    thunk(b, "dot_fusion", "fusion", 50, 90)
    b.row("instructions", program="jit_step", name="dot", opcode="dot", parent=0)
    assert activities(attribute(b.build())) == [("dot_fusion", 50, 300)]


def test_a_wait_for_something_that_is_not_recorded_is_no_work() -> None:
    b = TraceBuilder(framework="JAX")
    annotate(b, WAIT, 100, 1000, "runtime")
    thunk(b, "conv", "convolution", 100, 300)
    thunk(b, "add_fusion", "fusion", 300, 400)
    thunk(b, "mul_fusion", "fusion", 350, 500, thread=3)
    thunk(b, "dot", "dot", 900, 1000)
    assert activities(attribute(b.build()))[-2:] == [("mul_fusion", 350, 500), ("dot", 900, 1000)]


@pytest.mark.parametrize("between", [0, 100])
def test_waits_of_several_programs_for_a_convolution_are_counted_once(between: int) -> None:
    b = TraceBuilder(framework="JAX")
    annotate(b, WAIT, 0, 500, "runtime")
    annotate(b, WAIT, between, 600, "runtime", thread=4)
    thunk(b, "conv", "convolution", 0, 300)
    assert activities(attribute(b.build())) == [("conv", 0, 600)]


def test_without_instructions_the_name_is_that_of_what_a_pool_runs() -> None:
    b = TraceBuilder(framework="JAX")
    annotate(b, WAIT, 0, 600, "runtime")
    for name, start, end in (("convolution.3", 0, 100), ("convert_fusion", 200, 300)):
        b.row("ops", name=name, process=9, thread=2, start=start, duration=end - start)
    assert activities(attribute(b.build())) == [
        ("convolution.3", 0, 200),
        ("convert_fusion", 200, 300),
    ]


def test_the_time_before_a_program_waits_is_the_host_s() -> None:
    b = TraceBuilder(framework="JAX")
    thunk(b, "conv", "convolution", 0, 100)
    annotate(b, WAIT, 5_000_000, 5_000_300, "runtime")
    thunk(b, "add_fusion", "fusion", 5_000_300, 5_000_400)
    assert activities(attribute(b.build()))[:2] == [
        ("conv", 0, 100),
        ("add_fusion", 5_000_300, 5_000_400),
    ]
