"""Critical paths that are known to the nanosecond, by both profilers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from tests.support.synthetic import GPU, Scenario, both, waiting_for_another_device
from tests.support.synthetic.records import Direction, Memory
from tests.support.traces import TraceBuilder
from traceana import Trace
from traceana.timeline.critical import critical, segments
from traceana.timeline.idle import idle
from traceana.timeline.idle_gaps import capture_ns
from traceana.timeline.steps import select

Both = Callable[[Scenario], list[Trace]]


@pytest.fixture
def each(tmp_path: Path) -> Both:
    return lambda scenario: both(scenario, tmp_path)


def classes(trace: Trace) -> dict[tuple[str, str | None], int]:
    frame = critical(trace).frame
    return {(row["class"], row["part"]): row["time_ns"] for row in frame.to_dicts()}


def path(trace: Trace) -> list[tuple[str, int]]:
    """Return the segments of all steps in order, neighbours of one class joined."""
    joined: list[tuple[str, int]] = []
    for what, time in segments(trace).select("class", "time_ns").iter_rows():
        before = joined.pop()[1] if joined and joined[-1][0] == what else 0
        joined.append((what, before + time))
    return joined


def test_bound_by_the_device(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 1_000)
    run.launch(at=0, begins=500, duration=2_000)
    run.launch(at=150, begins=2_500, duration=3_000)
    run.launch(at=300, begins=5_501, duration=1_000)
    for trace in each(run):
        assert classes(trace) == {
            ("kernel", "gemm"): 6_000,
            ("launch", None): 400,
            ("host", "call"): 100,
            ("gap", "stream"): 1,
        }
        assert path(trace) == [
            ("host", 100),
            ("launch", 400),
            ("kernel", 5_000),
            ("gap", 1),
            ("kernel", 1_000),
        ]


def test_bound_by_the_host(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 10_000)
    run.operator("aten::mm", 2_900, 3_300)
    run.range("evaluate", 5_000, 6_500)
    for at in (0, 3_000, 6_000):
        run.launch(at=at, begins=at + 200, duration=50)
    run.sync(9_000, 9_100)
    for trace in each(run):
        assert classes(trace) == {
            ("host", "call"): 300,
            ("host", "operator"): 300,
            ("host", "range"): 1_400,
            ("host", None): 7_900,
            ("sync", None): 100,
        }
        operators = critical(trace, "operator").frame
        assert operators.select("operator", "class", "time_ns").rows() == [
            ("(no operator)", "host", 8_000),
            ("evaluate", "host", 1_500),
            ("aten::mm", "host", 400),
            ("(no operator)", "sync", 100),
        ]


def test_a_synchronization_in_the_middle(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 7_000)
    run.launch(at=0, begins=500, duration=4_000)
    run.sync(1_000, 4_600, "stream", stream=7)
    run.launch(at=5_000, begins=5_300, duration=1_000)
    run.sync(5_500, 6_400)
    for trace in each(run):
        assert path(trace) == [
            ("host", 100),
            ("launch", 400),
            ("kernel", 4_000),
            ("sync", 100),
            ("host", 500),
            ("launch", 200),
            ("kernel", 1_000),
            ("sync", 100),
            ("host", 600),
        ]


def test_a_stream_that_is_synchronized_is_not_another(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 3_000)
    run.launch(7, at=0, begins=200, duration=1_000)
    run.launch(8, at=100, begins=300, duration=1_050, name="other")
    run.sync(400, 1_400, "stream", stream=7)
    for trace in each(run):
        assert path(trace) == [
            ("host", 100),
            ("launch", 100),
            ("kernel", 1_000),
            ("sync", 200),
            ("host", 1_600),
        ]
        kernels = critical(trace, "kernel").frame
        assert kernels.filter(pl.col("class") == "kernel")["name"].to_list() == ["gemm"]


def test_a_stream_without_work_is_not_waited_for(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 1_000)
    run.launch(7, at=0, begins=300, duration=150)
    run.sync(400, 500, "stream", stream=9)
    for trace in each(run):
        assert path(trace) == [("host", 400), ("sync", 100), ("host", 500)]


def test_a_device_that_is_synchronized_is_not_another(each: Both) -> None:
    run = Scenario([GPU(), GPU()])
    run.step(0, 0, 3_000)
    run.launch(7, at=0, begins=200, duration=1_000)
    run.launch(7, at=100, begins=300, duration=1_050, device=1, name="other")
    run.sync(400, 1_400, device=0)
    for trace in each(run):
        assert ("kernel", 1_000) in path(trace)
        assert ("kernel", 1_050) not in path(trace)


@pytest.fixture
def fed() -> Scenario:
    """Return a copy on its own stream, before a kernel on another."""
    run = Scenario()
    run.step(0, 0, 4_300)
    run.copy("HtoD", 4_096, at=0, begins=200, duration=3_000, stream=20)
    return run


def test_a_stream_waits_for_an_event_of_another(each: Both, fed: Scenario) -> None:
    ready = fed.record_event(20, at=150, completed=3_200)
    fed.wait_event(ready, 7, at=300)
    fed.launch(7, at=450, begins=3_210, duration=1_000)
    fed.sync(600, 4_300)
    for trace in each(fed):
        assert classes(trace) == {
            ("copy", "HtoD"): 3_000,
            ("kernel", "gemm"): 1_000,
            ("host", "call"): 100,
            ("launch", None): 100,
            ("sync", None): 90,
            ("gap", "event"): 10,
        }
        gap = segments(trace).filter(pl.col("class") == "gap")
        assert gap.select("start_ns", "stream").rows() == [(3_200, 7)]


def test_without_a_wait_streams_have_nothing_to_do_with_each_other(
    each: Both, fed: Scenario
) -> None:
    fed.launch(7, at=450, begins=3_210, duration=1_000)
    fed.sync(600, 4_300)
    for trace in each(fed):
        assert path(trace) == [
            ("host", 550),
            ("launch", 2_660),
            ("kernel", 1_000),
            ("sync", 90),
        ]


def test_a_wait_holds_for_its_stream_alone(each: Both, fed: Scenario) -> None:
    ready = fed.record_event(20, at=150, completed=3_200)
    fed.wait_event(ready, 9, at=300)
    fed.launch(7, at=450, begins=3_210, duration=1_000)
    fed.launch(9, at=500, begins=3_205, duration=10, name="waiting")
    fed.sync(600, 4_300)
    for trace in each(fed):
        assert ("launch", 2_660) in path(trace)
        assert ("copy", 3_000) not in path(trace)


def test_the_event_identifies_the_awaited_stream(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 4_300)
    run.launch(20, at=0, begins=200, duration=1_000, name="awaited")
    run.launch(21, at=100, begins=250, duration=3_000, name="other")
    run.wait_event(run.record_event(20, at=200, completed=1_200), 7, at=300)
    run.launch(7, at=450, begins=3_260, duration=1_000)
    run.sync(600, 4_300)
    for trace in each(run):
        assert path(trace) == [
            ("host", 100),
            ("launch", 100),
            ("kernel", 1_000),
            ("gap", 2_060),
            ("kernel", 1_000),
            ("sync", 40),
        ]
        assert classes(trace)["gap", "event"] == 2_060


def test_the_context_of_a_wait_can_be_that_of_the_event(each: Both) -> None:
    for trace in each(waiting_for_another_device()):
        assert path(trace)[-3:] == [("copy", 3_600), ("gap", 10), ("kernel", 100)]
        assert idle(trace, by="gap").frame["cause"].to_list()[0] == "copy"


def test_what_is_launched_after_an_event_was_recorded_is_not_waited_for(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 4_000)
    run.launch(20, at=0, begins=200, duration=600, name="awaited")
    ready = run.record_event(20, at=110, completed=800)
    run.launch(20, at=220, begins=800, duration=2_000, name="later")
    run.wait_event(ready, 7, at=330)
    run.launch(7, at=440, begins=2_810, duration=1_000)
    run.sync(600, 4_000)
    for trace in each(run):
        kernels = critical(trace, "kernel").frame.filter(pl.col("class") == "kernel")
        assert sorted(kernels["name"]) == ["awaited", "gemm"]
        assert ("gap", 2_010) in path(trace)


def test_of_two_events_the_later_decides(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 4_000)
    run.launch(20, at=0, begins=200, duration=600, name="early")
    run.launch(21, at=100, begins=250, duration=2_000, name="late")
    late, early = (run.record_event(s, at=200, completed=e) for s, e in ((21, 2_250), (20, 800)))
    run.wait_event(late, 7, at=300)
    run.wait_event(early, 7, at=400)
    run.launch(7, at=550, begins=2_260, duration=1_000)
    run.sync(700, 4_000)
    for trace in each(run):
        kernels = critical(trace, "kernel").frame.filter(pl.col("class") == "kernel")
        assert sorted(kernels["name"]) == ["gemm", "late"]


def test_the_host_waits_for_the_event_and_nothing_behind_it(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 2_000)
    run.launch(7, at=0, begins=200, duration=500, name="awaited")
    ready = run.record_event(7, at=110, completed=700)
    run.launch(8, at=220, begins=330, duration=900, name="beside")
    run.sync(400, 1_240, "event", event=ready)
    for trace in each(run):
        kernels = critical(trace, "kernel").frame.filter(pl.col("class") == "kernel")
        assert kernels["name"].to_list() == ["awaited"]
        assert ("sync", 540) in path(trace)


def test_a_collective_between_two_kernels(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 7_700)
    run.launch(7, at=0, begins=500, duration=2_000)
    gradients = run.record_event(7, at=150, completed=2_500)
    run.wait_event(gradients, 20, at=300)
    run.collective(20, at=450, begins=2_505, duration=5_000)
    reduced = run.record_event(20, at=600, completed=7_505)
    run.wait_event(reduced, 7, at=750)
    run.launch(7, at=900, begins=7_510, duration=100)
    run.sync(1_100, 7_700)
    for trace in each(run):
        assert path(trace) == [
            ("host", 100),
            ("launch", 400),
            ("kernel", 2_000),
            ("gap", 5),
            ("collective", 5_000),
            ("gap", 5),
            ("kernel", 100),
            ("sync", 90),
        ]


def test_a_collective_under_a_gap_is_waited_for_where_the_wait_is_not_recorded(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 7_700)
    run.launch(7, at=0, begins=500, duration=2_000)
    run.collective(20, at=450, begins=2_505, duration=5_000)
    run.launch(7, at=900, begins=7_510, duration=100)
    run.sync(1_100, 7_700)
    for trace in each(run):
        assert path(trace)[-5:] == [
            ("launch", 1_955),
            ("collective", 5_000),
            ("gap", 5),
            ("kernel", 100),
            ("sync", 90),
        ]


def test_a_collective_beside_most_of_a_gap_is_not_waited_for(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 7_700)
    run.launch(7, at=0, begins=500, duration=2_000)
    run.collective(20, at=450, begins=600, duration=2_200)
    run.launch(7, at=900, begins=7_510, duration=100)
    run.sync(1_100, 7_700)
    for trace in each(run):
        assert ("gap", 5_010) in path(trace)


def test_a_copy_that_the_host_waits_for(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 2_000)
    run.copy("DtoH", 64, at=100, begins=300, duration=1_000, memory="pageable", synchronous=True)
    for trace in each(run):
        assert path(trace) == [("host", 100), ("launch", 200), ("copy", 1_000), ("host", 700)]


def behind_a_kernel(direction: Direction, memory: Memory, *, synchronous: bool) -> Scenario:
    """Return a copy that begins 10 ns after the kernel in front of it, within its own call."""
    run = Scenario()
    run.step(0, 0, 5_000)
    run.launch(at=0, begins=500, duration=4_000)
    run.copy(
        direction, 64, at=200, begins=4_510, duration=90, memory=memory, synchronous=synchronous,
        call=4_500,
    )  # fmt: skip
    return run


@pytest.mark.parametrize(
    ("direction", "memory", "synchronous"),
    [
        ("DtoH", "pageable", False),
        ("HtoD", "pageable", False),
        ("DtoH", "pageable", True),
        ("HtoD", "pageable", True),
        ("DtoH", "pinned", True),
        ("HtoD", "pinned", True),
    ],
)
def test_a_call_that_blocks_waits_from_its_begin_on(
    each: Both, direction: Direction, memory: Memory, synchronous: bool
) -> None:
    returned = 4_600 if synchronous else 4_700
    for trace in each(behind_a_kernel(direction, memory, synchronous=synchronous)):
        assert path(trace) == [
            ("host", 100),
            ("launch", 400),
            ("kernel", 4_000),
            ("gap", 10),
            ("copy", 90),
            *([("sync", returned - 4_600)] if returned > 4_600 else []),
            ("host", 5_000 - returned),
        ]
        assert classes(trace)["gap", "stream"] == 10


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_copy_between_devices_blocks_no_call(each: Both, synchronous: bool) -> None:
    for trace in each(behind_a_kernel("DtoD", "pinned", synchronous=synchronous)):
        assert path(trace) == [("host", 5_000)]


def test_a_staged_copy_waits_for_its_stream_and_not_for_its_own_end(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 4_000)
    run.launch(at=0, begins=500, duration=2_000)
    run.copy("HtoD", 64, at=200, begins=2_510, duration=5_000, memory="pageable", call=2_400)
    run.operator("aten::relu", 2_700, 3_900)
    run.launch(8, at=3_000, begins=3_200, duration=6_000)
    for trace in each(run):
        assert path(trace) == [
            ("host", 100),
            ("launch", 400),
            ("kernel", 2_000),
            ("sync", 100),
            ("host", 500),
            ("launch", 100),
            ("kernel", 6_000),
        ]


def test_a_copy_in_parts_is_one_after_the_other(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 2_000)
    first = run.copy("DtoH", 64, at=0, begins=300, duration=500, memory="pageable", call=1_800)
    run.work.append(replace(first, start=810, end=1_700))
    for trace in each(run):
        assert path(trace) == [
            ("launch", 300),
            ("copy", 500),
            ("gap", 10),
            ("copy", 890),
            ("sync", 100),
            ("host", 200),
        ]


@pytest.mark.parametrize("call", ["cudaDeviceSynchronize", "cudaFree", "cudaFreeHost"])
def test_a_call_without_a_record_waits_until_the_device_is_empty(each: Both, call: str) -> None:
    run = Scenario()
    run.step(0, 0, 2_000)
    run.launch(7, at=0, begins=200, duration=1_000)
    run.launch(8, at=110, begins=300, duration=700, name="other")
    run.call(call, 400, 1_250)
    for trace in each(run):
        assert path(trace) == [
            ("host", 100),
            ("launch", 100),
            ("kernel", 1_000),
            ("sync", 50),
            ("host", 750),
        ]


@pytest.mark.parametrize("call", ["cudaFree", "cudaMalloc"])
def test_a_call_that_returns_while_the_device_works_did_not_wait_for_it(
    each: Both, call: str
) -> None:
    run = Scenario()
    run.step(0, 0, 2_000)
    run.launch(7, at=0, begins=200, duration=300)
    run.launch(8, at=110, begins=300, duration=1_000, name="other")
    run.call(call, 400, 700)
    for trace in each(run):
        assert "kernel" not in {what for what, _ in path(trace)}


def test_a_stream_without_a_record_is_the_one_that_was_emptied(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 3_000)
    run.launch(7, at=0, begins=200, duration=1_000)
    for at, begins in ((110, 300), (220, 1_210)):
        run.launch(8, at=at, begins=begins, duration=905, name="other")
    run.call("cudaStreamSynchronize", 400, 1_250)
    for trace in each(run):
        assert ("kernel", 1_000) in path(trace)
        assert ("sync", 50) in path(trace)


def test_where_every_kernel_ends_in_its_call_launches_block(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 3_000)
    for at in (0, 1_500):
        run.launch(at=at, begins=at + 200, duration=1_000, call=1_250)
    for trace in each(run):
        assert path(trace) == [
            *[("launch", 200), ("kernel", 1_000), ("sync", 50), ("host", 250)],
            *[("launch", 200), ("kernel", 1_000), ("sync", 50), ("host", 250)],
        ]


def test_a_pinned_copy_that_the_host_does_not_wait_for(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 2_000)
    run.copy("HtoD", 64, at=100, begins=120, duration=30, call=500)
    for trace in each(run):
        assert path(trace) == [("host", 2_000)]


def test_the_backward_pass_runs_on_its_own_thread(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 4_000)
    run.operator("aten::conv2d", 100, 1_000)
    run.operator(
        "autograd::engine::evaluate_function: ConvolutionBackward0", 1_100, 3_000, thread=12
    )
    run.launch(at=1_200, begins=1_500, duration=100, thread=12)
    run.operator("aten::add_", 3_200, 3_900)
    for trace in each(run):
        host = segments(trace).group_by("thread", "operator").agg(pl.col("time_ns").sum())
        main, autograd = trace.tables.ops.sort("start")["thread"].head(2)
        assert sorted(host.rows(), key=str) == sorted(
            [
                (main, None, 100 + 200 + 200),
                (main, "aten::conv2d", 900),
                (autograd, "autograd::engine::evaluate_function: ConvolutionBackward0", 1_900),
                (main, "aten::add_", 700),
            ],
            key=str,
        )


def ahead() -> Scenario:
    """Return three steps of 1 µs on the host whose kernels take 5 µs each."""
    run = Scenario()
    for number in range(3):
        run.step(number, 1_000 * number, 1_000 * number + 1_000)
        run.launch(
            at=1_000 * number + 100, begins=500 + 5_000 * number, duration=5_000, name=f"k{number}"
        )
    return run


def test_where_the_host_runs_ahead_a_step_lasts_as_long_as_its_work(each: Both) -> None:
    for trace in each(ahead()):
        found = segments(trace).select("step", "start_ns", "time_ns", "class").rows()
        assert found == [
            (0, 0, 100, "host"),
            (0, 100, 100, "host"),
            (0, 200, 300, "launch"),
            (0, 500, 5_000, "kernel"),
            (1, 5_500, 5_000, "kernel"),
            (2, 10_500, 5_000, "kernel"),
        ]
        assert segments(select(trace, steps=[1])).select("start_ns", "time_ns").rows() == [
            (5_500, 5_000)
        ]


def test_figures_are_medians_of_the_measured_steps(each: Both) -> None:
    run = Scenario()
    at = 0
    for number, (wall, kernel) in enumerate(
        [(9_000, 8_000), (1_000, 300), (1_100, 500), (900, 400)]
    ):
        run.step(number, at, at + wall)
        run.launch(at=at, begins=at + 150, duration=kernel)
        run.sync(at + 120, at + 170 + kernel)
        at += wall
    for trace in each(run):
        result = critical(trace)
        row = result.frame.filter(pl.col("class") == "kernel").to_dicts()[0]
        assert (row["count"], row["time_ns"], row["step_median_ns"]) == (3, 1_200, 400)
        assert (row["step_count"], row["step_ns"]) == (1, 400)
        assert result.totals["time_ns"] == 3_000
        assert row["share"] == pytest.approx(0.4)
        assert any("warm-up step 0 excluded" in note for note in result.notes)
        once = critical(select(trace, steps=[0, 1])).frame
        assert once.filter(pl.col("class") == "kernel")["step_median_ns"].item() == 4_150


def test_what_half_of_the_steps_have_not_has_the_median_of_zeros(each: Both) -> None:
    run = Scenario()
    for number in range(4):
        at = 1_000 * number
        run.step(number, at, at + 1_000)
        if number == 3:
            run.launch(at=at, begins=at + 150, duration=400)
            run.sync(at + 120, at + 600)
    for trace in each(run):
        row = critical(trace).frame.filter(pl.col("class") == "kernel").to_dicts()[0]
        assert (row["time_ns"], row["step_median_ns"]) == (400, 0)
        assert (row["step_count"], row["step_ns"]) == (0.25, 100)


def test_a_gap_before_work_without_a_launch_has_no_reason() -> None:
    builder = TraceBuilder()
    builder.name("k", category="conv")
    builder.kernel("k", 0, 400)
    builder.kernel("k", 1_000, 500)
    found = classes(builder.build())
    assert found == {("kernel", "conv"): 900, ("gap", "not_recorded"): 600}


def called(build: TraceBuilder, at: int) -> int:
    return build.row("calls", name="cudaLaunchKernel", process=1, thread=1, start=at, duration=10)


def test_work_launched_before_the_first_step_is_in_no_path() -> None:
    """The host runs ahead: the device runs work of an earlier step while the first one begins."""
    build = TraceBuilder()
    row = build.step(7, 1_000, 500, process=1)
    before = called(build, 100)
    build.kernel("earlier", 200, 1_800, stream=7, call=before, process=1)
    for number in range(2):
        call = called(build, 1_000 + 100 * number)
        build.kernel(
            "own", 2_000 + 900 * number, 900, stream=7, call=call, process=1, step=row
        )  # fmt: skip
    trace = build.build()
    assert critical(trace, "kernel").frame.select("name", "time_ns").rows() == [("own", 1_800)]
    assert path(trace) == [("kernel", 1_800)]


def test_work_without_a_launch_is_from_before_the_first_launch_of_its_stream() -> None:
    build = TraceBuilder()
    row = build.step(7, 0, 500, process=1)
    build.kernel("earlier", 200, 1_800, stream=7, process=1)
    call = called(build, 100)
    build.kernel("own", 2_000, 900, stream=7, call=call, process=1, step=row)
    build.kernel("unknown", 2_900, 100, stream=7, process=1)
    assert path(build.build()) == [("kernel", 900)]


def test_a_kernel_that_outlasts_the_first_step_does_not_delay_it() -> None:
    build = TraceBuilder()
    row = build.step(7, 1_000, 500, process=1)
    before = called(build, 100)
    build.kernel("persistent", 200, 9_000, stream=8, call=before, process=1)
    call = called(build, 1_000)
    build.kernel("own", 2_000, 900, stream=7, call=call, process=1, step=row)
    assert critical(build.build()).totals["time_ns"] == 1_900


def test_without_steps_the_path_is_the_capture(each: Both) -> None:
    run = Scenario()
    run.malloc(0, 50_000)
    run.launch(at=60_000, begins=60_300, duration=1_000)
    run.sync(60_150, 61_400)
    run.launch(at=61_500, begins=61_800, duration=500)
    run.malloc(61_900, 70_000)
    for trace in each(run):
        assert path(trace) == [
            ("kernel", 1_000),
            ("sync", 100),
            ("host", 200),
            ("launch", 200),
            ("kernel", 500),
        ]
        assert capture_ns(trace) == 2_000
        assert critical(trace).notes == (
            "GPU share of the critical path 75.0 % · 78.9 % without host time outside operators "
            "and calls",
            "host time on the path: also while the GPU works (idle GPU time: traceana idle)",
            "no steps: critical path of the whole capture",
        )
