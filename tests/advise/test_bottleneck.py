"""What limits a run, and its evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.advise.building import WALL, Run
from tests.advise.cases import CASES
from tests.support.synthetic import Scenario, kineto
from tests.support.traces import TraceBuilder
from tests.timeline.critical.simulation import CALL, Machine
from traceana.advise import advise
from traceana.advise.bottleneck import (
    COLLECTIVES,
    COPIES,
    HOST,
    IDLE,
    KERNELS,
    NOT_RECORDED,
    PROFILER,
    UNKNOWN,
    Bottleneck,
    bottleneck,
)
from traceana.advise.figures import Figures
from traceana.report.pages.advise import sentence

COLLECTIVE: dict[str, Any] = {"category": "collective", "function": "all_reduce"}


def of_steps(kernels: int, put: Any = None) -> Bottleneck:
    """Return the bottleneck of steps of 10 ms with kernels of so many ms, then what is ``put``."""
    run = Run()
    run.name("all_reduce", **COLLECTIVE)
    for _ in range(4):
        run.next_step(filled=kernels * 1_000_000)
        if put is not None:
            put(run)
    found = advise(run.build()).bottleneck
    assert found is not None
    return found


def test_kernels_that_fill_the_step_are_its_bottleneck() -> None:
    found = of_steps(9)
    assert (found.bound, found.by, found.share) == ("GPU-bound", KERNELS, 0.9)
    assert found.shares[IDLE] == pytest.approx(0.1)


def test_exposed_collectives_and_copies_are_time_of_a_busy_device_without_kernels() -> None:
    found = of_steps(4, lambda run: run.put("all_reduce", 6_000_000))
    assert (found.bound, found.by) == ("communication-bound", COLLECTIVES)
    assert found.shares == pytest.approx({KERNELS: 0.4, COLLECTIVES: 0.6, COPIES: 0, IDLE: 0})
    found = of_steps(4, lambda run: run.put_copy("HtoD", 6_000_000))
    assert (found.bound, found.by) == ("transfer-bound", COPIES)
    assert found.share == pytest.approx(0.6)


def test_a_copy_that_kernels_overlap_does_not_limit_the_run() -> None:
    def put(run: Run) -> None:
        run.copy("HtoD", run.at - 4_000_000, 4_000_000, step=run.step_row)

    assert of_steps(9, put).bound == "GPU-bound"


def test_idle_time_without_a_recorded_launch_decides_nothing() -> None:
    found = of_steps(5)
    assert (found.bound, found.by, found.share) == (None, UNKNOWN, 0.5)
    assert found.cause is not None


@pytest.mark.parametrize(
    ("rule", "bound", "by", "cause"),
    [
        ("data_loading", "input-bound", HOST, "data_loader"),
        ("host_bound", "host-bound", HOST, "host"),
        ("launch_bound", "launch-bound", HOST, "operator"),
        ("host_synchronization", "host-bound", HOST, "synchronization"),
        ("allocation", "host-bound", HOST, "allocation"),
        ("profiler_overhead", None, PROFILER, None),
    ],
)
def test_idle_time_has_the_cause_that_the_recommendation_has(
    tmp_path: Path, rule: str, bound: str | None, by: str, cause: str | None
) -> None:
    found = advise(CASES[rule][0](tmp_path)).bottleneck
    assert found is not None
    assert (found.bound, found.by) == (bound, by)
    assert (None if found.cause is None else found.cause[0]) == cause


@pytest.mark.parametrize(
    ("long", "bound"), [(1_500_000, "launch-bound"), (1_700_000, "host-bound")]
)
def test_a_run_is_launch_bound_where_most_of_its_gaps_are_as_short_as_a_dispatch(
    long: int, bound: str
) -> None:
    """Operators launch kernels after four gaps of 0.4 ms and a ``long`` one."""
    b = TraceBuilder()
    end = 0
    for gap in (0, *[400_000] * 4, long):
        begin, end = end, end + gap + 6_000
        b.row("ops", name="aten::add", process=1, thread=1, start=begin, duration=gap + 5_900,
              depth=0, direction="forward")  # fmt: skip
        call = b.row("calls", name="cudaLaunchKernel", process=1, thread=1,
                     start=begin + gap, duration=5_000)  # fmt: skip
        b.kernel("k", end - 1_000, 1_000, process=1, stream=7, call=call)
    found = bottleneck(Figures(b.build()))
    assert found is not None
    assert (found.bound, found.cause and found.cause[0]) == (bound, "operator")


def test_without_work_on_a_gpu_there_is_none() -> None:
    builder = TraceBuilder()
    assert advise(builder.build()).bottleneck is None
    builder.name("aten::convolution", category="conv")
    builder.operator("aten::convolution", 0, WALL)
    assert advise(builder.build()).bottleneck is None


@pytest.mark.parametrize(
    ("streams", "by"), [((7,), KERNELS), ((7, 13), HOST)], ids=["one stream", "two streams"]
)
def test_kernels_that_would_overlap_if_they_were_launched_in_time(
    streams: tuple[int, ...], by: str, tmp_path: Path
) -> None:
    """Of one stream, half the host's time saves the gaps; of two, half the step."""
    machine = Machine()
    for number in range(40):
        machine.idle(20_000 - CALL)
        machine.work("kernel", streams[number % len(streams)], 17_500)
    for stream in streams:
        machine.synchronize(stream)
    machine.run.step(0, 0, machine.now)
    found = advise(kineto(machine.run, tmp_path)).bottleneck
    assert found is not None
    assert found.by == by
    assert found.shares[IDLE] == pytest.approx(1 / 8, abs=0.03)


def flushed(steps: tuple[int, ...], folder: Path) -> Any:
    """Return eight steps of 1 ms, half of it idle: the profiler flushes its buffers in some."""
    run, at = Scenario(), 0
    for number in range(8):
        begin = at
        run.launch(at=at, begins=at + 100, duration=500_000)
        if number in steps:
            run.overhead(at + 400_000, at + 9_500_000, text="Buffer Flush")
            at += 9_000_000
        at += 1_000_000
        run.launch(at=at - 1_000, begins=at - 900, duration=800)
        run.step(number, begin, at)
    return kineto(run, folder)


def test_profiler_overhead_in_few_steps_does_not_decide_the_bottleneck(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    found = bottleneck(Figures(flushed(tuple(range(8)), tmp_path / "all")))
    assert found is not None
    assert (found.by, found.profiler_steps) == (PROFILER, 0)
    advice = advise(flushed((4,), tmp_path))
    found = advice.bottleneck
    assert found is not None
    assert (found.bound, found.by, found.profiler_steps) == ("host-bound", HOST, 1)
    assert found.share == pytest.approx(0.5, abs=0.05)
    (overhead,) = (one for one in advice.findings if one.rule.id == "profiler_overhead")
    assert sentence(overhead).endswith("during profiler overhead, in 1 of 8 steps: step 4")


def test_without_kernels_the_bottleneck_is_not_determined() -> None:
    build = TraceBuilder(framework="PyTorch")
    build.memset(0, 2_000)
    found = bottleneck(Figures(build.build()))
    assert found is not None
    assert (found.bound, found.by, found.share) == (None, NOT_RECORDED, 1.0)
