"""Runs with each cause: it is found exactly, in both profilers' formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.synthetic import GPU, Scenario, both, kineto, waiting_for_another_device
from tests.support.traces import TraceBuilder
from traceana import Trace
from traceana.analyze.devices import devices
from traceana.timeline.idle import idle
from traceana.timeline.idle_gaps import CAUSES
from traceana.timeline.steps import select

Both = Callable[[Scenario], list[Trace]]
OTHER = 12
"""Another thread than the one that launches by default."""


@pytest.fixture
def each(tmp_path: Path) -> Both:
    numbers = count()

    def write(scenario: Scenario) -> list[Trace]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return both(scenario, folder)

    return write


def found(trace: Trace, *columns: str) -> list[tuple[Any, ...]]:
    """Return the gaps between work, in order: start, length, cause and ``columns``."""
    frame = idle(trace, "gap").frame.sort("rank", "device", "start_ns")
    frame = frame.filter(~frame["cause"].is_in(["before_first", "after_last"]))
    return frame.select("start_ns", "time_ns", "cause", *columns).rows()


def drained(scenario: Scenario | None = None) -> Scenario:
    """Return a run whose device is busy from 100 to 1,000, and launches next at 5,000."""
    run = scenario or Scenario()
    run.launch(at=0, begins=100, duration=900)
    run.launch(at=5_000, begins=5_200, duration=800)
    return run


GAP = (1_000, 4_200)
"""The gap of :func:`drained`."""


def test_the_host_was_in_nothing(each: Both) -> None:
    for trace in each(drained()):
        assert found(trace, "explained_ns", "operator", "call") == [
            (*GAP, "host", 4_000, None, None)
        ]


def test_the_host_was_in_a_range(each: Both) -> None:
    run = drained()
    run.range("postprocess", 900, 4_900)
    for trace in each(run):
        assert found(trace, "range", "operator") == [(*GAP, "host", "postprocess", None)]


def test_the_host_was_in_an_operator(each: Both) -> None:
    run = drained()
    run.operator("aten::outer", 1_200, 5_500)
    run.operator("aten::inner", 2_000, 4_500)
    for trace in each(run):
        assert found(trace, "operator", "explained_ns") == [
            (*GAP, "operator", "aten::inner", 3_800)
        ]


@pytest.mark.parametrize(
    ("took", "cause", "explained"),
    [
        (3_000_000, "driver", 2_996_100),
        # Shorter than the time in the operator before it, and shorter than loading takes.
        (1_500_000, "operator", 2_000_000),
        (900_000, "operator", 2_000_000),
    ],
)
def test_a_launch_that_loads_code(each: Both, took: int, cause: str, explained: int) -> None:
    run = Scenario()
    run.launch(at=0, begins=100, duration=900)
    at = 2_001_000
    run.operator("aten::conv2d", 1_000, at + took + 1_000)
    run.launch(at=at, begins=at + took - 3_900, duration=800, call=took)
    for trace in each(run):
        assert found(trace, "explained_ns", "operator") == [
            (1_000, 2_000_000 + took - 3_900, cause, explained, "aten::conv2d")
        ]


def test_a_synchronization_that_returned_late(each: Both) -> None:
    run = drained()
    run.sync(500, 3_600)
    for trace in each(run):
        # 2,600 ns in the call, and of the rest as much as it had waited before: 500 ns.
        assert found(trace, "call", "explained_ns") == [
            (*GAP, "synchronization", "cudaDeviceSynchronize", 3_100)
        ]


def test_a_synchronization_that_kept_the_host_from_being_ahead(each: Both) -> None:
    run = Scenario()
    run.launch(at=0, begins=100, duration=9_900)
    run.sync(200, 10_010, "stream", stream=7)
    run.operator("aten::relu", 10_100, 12_500)
    run.launch(at=12_000, begins=12_100, duration=100)
    for trace in each(run):
        assert found(trace, "call", "explained_ns") == [
            (10_000, 2_100, "synchronization", "cudaStreamSynchronize", 2_000)
        ]


def test_a_short_wait_does_not_answer_for_long_work_of_the_host(each: Both) -> None:
    run = drained()
    run.sync(950, 1_010)
    for trace in each(run):
        assert found(trace, "explained_ns") == [(*GAP, "host", 3_940)]


@pytest.mark.parametrize("kind", ["malloc", "free"])
def test_allocation(each: Both, kind: str) -> None:
    run = drained()
    getattr(run, kind)(1_100, 4_000)
    run.operator("aten::empty", 1_050, 4_600)
    for trace in each(run):
        assert found(trace, "call", "operator", "explained_ns") == [
            (*GAP, "allocation", f"cuda{kind.title()}", "aten::empty", 2_900)
        ]


def test_the_data_loader(each: Both) -> None:
    run = drained()
    run.data_loader(700, 4_700)
    run.operator("aten::stack", 1_500, 2_000)
    for trace in each(run):
        assert found(trace, "range", "explained_ns") == [
            (
                *GAP,
                "data_loader",
                "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
                3_700,
            )
        ]


def test_a_batch_is_waited_for_on_any_thread(each: Both) -> None:
    run = drained()
    run.data_loader(700, 4_700, thread=OTHER)
    for trace in each(run):
        assert found(trace) == [(*GAP, "data_loader")]


def test_a_copy_that_the_host_waits_for(each: Both) -> None:
    run = Scenario([GPU(), GPU()])
    drained(run)
    # To another device, so that this one stays idle.
    run.copy("DtoH", 64, at=900, begins=2_000, duration=2_500, synchronous=True, device=1, stream=9)
    for trace in each(run):
        first = found(trace, "call")[0]
        assert first == (*GAP, "copy", "cudaMemcpy")


def test_a_collective_that_the_host_carries_out(each: Both) -> None:
    run = drained()
    run.range("gloo:all_reduce", 1_100, 4_800)
    for trace in each(run):
        # Kineto's are operators of c10d, nsys' are ranges.
        operator = "operator" if trace.tables.ops.height else "range"
        assert found(trace, operator) == [(*GAP, "collective", "gloo:all_reduce")]


def test_the_profiler(each: Both) -> None:
    run = drained()
    run.overhead(1_500, 4_500)
    for trace in each(run):
        assert found(trace, "range", "explained_ns") == [
            (*GAP, "profiler", "Activity Buffer Request", 3_000)
        ]


def test_overhead_that_is_not_the_profilers_counts_within_the_launch(each: Both) -> None:
    run = Scenario()
    run.launch(at=0, begins=100, duration=900)
    run.launch(at=900, begins=5_100, duration=100, call=4_100)
    run.overhead(950, 4_950, text="Lazy Function Loading")
    for trace in each(run):
        assert found(trace, "explained_ns") == [(1_000, 4_100, "driver", 3_950)]


def test_the_largest_part_is_the_cause_and_the_specific_one_of_equals(each: Both) -> None:
    run = drained()
    run.malloc(1_000, 2_500)
    run.data_loader(2_500, 4_000)
    for trace in each(run):
        assert found(trace, "explained_ns") == [(*GAP, "allocation", 1_500)]
    run.data_loader(4_100, 4_101)
    for trace in each(run):
        assert found(trace, "explained_ns") == [(*GAP, "data_loader", 1_501)]


def test_launch_latency(each: Both) -> None:
    run = Scenario()
    run.launch(at=0, begins=100, duration=900)
    run.operator("aten::add", 800, 1_500)
    run.launch(at=999, begins=1_300, duration=100, call=250)
    for trace in each(run):
        assert found(trace, "operator", "call") == [
            (1_000, 300, "launch_latency", "aten::add", "cudaLaunchKernel")
        ]


def test_a_gap_in_the_call_of_a_blocking_copy_is_the_copys(each: Both) -> None:
    """The driver stages pageable memory inside the call, before the copy starts."""
    for synchronous in (True, False):
        run = Scenario()
        run.launch(at=0, begins=100, duration=900)
        run.copy(
            "HtoD", 1_024, at=900, begins=1_300, duration=100, memory="pageable",
            synchronous=synchronous,
        )  # fmt: skip
        name = "cudaMemcpy" if synchronous else "cudaMemcpyAsync"
        for trace in each(run):
            assert found(trace, "call") == [(1_000, 300, "copy", name)]


def test_a_gap_in_the_call_of_an_asynchronous_copy_is_launch_latency(each: Both) -> None:
    run = Scenario()
    run.launch(at=0, begins=100, duration=900)
    run.copy("HtoD", 1_024, at=900, begins=1_300, duration=100, memory="pinned")
    for trace in each(run):
        assert found(trace) == [(1_000, 300, "launch_latency")]


def test_a_launch_that_begins_as_the_device_drains_is_the_hosts(each: Both) -> None:
    run = Scenario()
    run.launch(at=0, begins=100, duration=900)
    run.launch(at=1_000, begins=1_300, duration=100)
    for trace in each(run):
        assert found(trace, "explained_ns") == [(1_000, 300, "host", 0)]


def test_work_that_was_queued(each: Both) -> None:
    run = Scenario()
    run.launch(at=0, begins=300, duration=700)
    run.launch(at=200, begins=1_002, duration=100)
    for trace in each(run):
        assert found(trace) == [(1_000, 2, "queued")]


@pytest.mark.parametrize(
    ("last", "cause"), [("copy", "copy"), ("collective", "collective"), ("launch", "event")]
)
def test_an_event_of_another_stream(each: Both, last: str, cause: str) -> None:
    run = Scenario()
    run.launch(at=0, begins=100, duration=400)
    if last == "copy":
        run.copy("HtoD", 1_024, at=200, begins=400, duration=1_600, stream=20)
    else:
        getattr(run, last)(20, at=200, begins=400, duration=1_600)
    event = run.record_event(20, at=400, completed=2_000)
    run.wait_event(event, 7, at=600)
    run.launch(at=800, begins=2_050, duration=100)
    for trace in each(run):
        assert found(trace) == [(2_000, 50, cause)]


def test_an_event_long_before_the_work_is_not_what_it_waited_for(each: Both) -> None:
    run = Scenario()
    run.launch(at=0, begins=100, duration=400)
    run.copy("HtoD", 1_024, at=200, begins=400, duration=1_600, stream=20)
    run.wait_event(run.record_event(20, at=400, completed=2_000), 7, at=600)
    run.launch(at=800, begins=5_002_000, duration=100)
    for trace in each(run):
        assert found(trace) == [(2_000, 5_000_000, "queued")]


def test_a_recorded_event_identifies_the_awaited_work(each: Both) -> None:
    run = Scenario()
    run.copy("HtoD", 1_024, at=0, begins=400, duration=600, stream=20)
    ready = run.record_event(20, at=150, completed=1_000)
    run.collective(21, at=300, begins=450, duration=1_550)
    run.wait_event(ready, 7, at=450)
    run.launch(at=600, begins=2_010, duration=90)
    for trace in each(run):
        # The copy was over when the device drained; the collective was never waited for.
        assert found(trace) == [(2_000, 10, "launch_latency")]


def test_of_several_works_that_end_as_the_device_drains_the_events_decides(each: Both) -> None:
    for awaited, cause in ((20, "copy"), (21, "collective")):
        run = Scenario()
        run.copy("HtoD", 1_024, at=0, begins=400, duration=1_600, stream=20)
        run.collective(21, at=150, begins=350, duration=1_650)
        ready = run.record_event(awaited, at=300, completed=2_000)
        # Launched after the event was recorded: not what is waited for.
        run.launch(awaited, at=420, begins=2_000, duration=0, name="behind")
        run.wait_event(ready, 7, at=550)
        run.launch(at=700, begins=2_010, duration=90)
        for trace in each(run):
            assert found(trace) == [(2_000, 10, cause)]


def test_work_on_another_device_is_not_waited_for_where_the_event_tells(each: Both) -> None:
    run = Scenario([GPU(), GPU()])
    run.copy("HtoD", 64, at=0, begins=100, duration=900, stream=20)
    run.collective(20, at=150, begins=400, duration=3_600, device=1)
    run.wait_event(run.record_event(20, at=300, completed=1_000), 7, at=450)
    run.launch(at=600, begins=4_010, duration=100)
    for trace in each(run):
        assert found(trace) == [(1_000, 3_010, "copy")]


def test_a_stream_does_not_wait_for_itself(each: Both) -> None:
    run = Scenario()
    run.launch(at=0, begins=150, duration=850)
    run.launch(20, at=120, begins=300, duration=700)
    run.wait_event(run.record_event(7, at=250, completed=1_000), 7, at=400)
    run.launch(at=550, begins=1_010, duration=100)
    for trace in each(run):
        assert found(trace) == [(1_000, 10, "queued")]


def test_an_unrecorded_event_is_inferred(tmp_path: Path) -> None:
    run = Scenario()
    run.copy("HtoD", 1_024, at=0, begins=400, duration=600, stream=20)
    run.collective(21, at=300, begins=450, duration=1_550)
    run.wait_event(run.record_event(20, at=150, completed=1_000), 7, at=450)
    run.launch(at=600, begins=2_010, duration=90)
    run.syncs[:] = [replace(one, event=None) for one in run.syncs]
    for trace in both(run, tmp_path):
        assert found(trace) == [(2_000, 10, "collective")]


def test_without_records_of_waits_the_calls_tell(tmp_path: Path) -> None:
    run = Scenario()
    run.launch(at=0, begins=100, duration=400)
    run.collective(20, at=200, begins=400, duration=1_600)
    run.wait_event(run.record_event(20, at=400, completed=2_000), 7, at=600)
    run.launch(at=800, begins=2_050, duration=100)
    run.syncs.clear()
    assert found(kineto(run, tmp_path)) == [(2_000, 50, "collective")]


def test_a_wait_that_was_over_explains_nothing(each: Both) -> None:
    run = Scenario()
    run.launch(20, at=0, begins=100, duration=100)
    run.wait_event(run.record_event(20, at=150, completed=200), 7, at=300)
    run.launch(at=450, begins=600, duration=1_400)
    # The wait was before the launch of the work in front of the gap.
    run.launch(at=1_900, begins=2_050, duration=100)
    for trace in each(run):
        assert found(trace)[-1] == (2_000, 50, "launch_latency")


def test_work_on_another_device_is_waited_for(each: Both) -> None:
    for trace in each(waiting_for_another_device()):
        assert found(trace) == [(1_000, 3_010, "copy")]


def test_one_call_launched_both(tmp_path: Path) -> None:
    run = Scenario()
    first = run.launch(at=0, begins=100, duration=900)
    second = run.launch(at=10, begins=1_004, duration=100)
    run.calls.pop()
    object.__setattr__(second, "correlation", first.correlation)
    for trace in both(run, tmp_path):
        assert found(trace) == [(1_000, 4, "same_launch")]


def test_a_launch_that_is_not_recorded(each: Both) -> None:
    run = drained()
    run.calls.pop()
    run.sync(900, 4_000)
    for trace in each(run):
        assert found(trace) == [(*GAP, "not_recorded")]


def test_the_recording_begins_and_ends(each: Both) -> None:
    run = drained()
    run.range("all", 0, 7_000)
    for trace in each(run):
        rows = idle(trace).frame.select("cause", "count", "time_ns").rows()
        assert rows == [("host", 1, 4_200)]
        (row,) = devices(trace).frame.to_dicts()
        assert (row["span_ns"], row["busy_ns"], row["idle_ns"]) == (5_900, 1_700, 4_200)
        assert (row["before_ns"], row["after_ns"]) == (100, 1_000)


def test_before_the_first_work_of_a_step_the_host_is_asked_from_the_steps_begin(each: Both) -> None:
    run = Scenario()
    run.range("setting up", 0, 700)
    run.step(0, 1_000, 7_000)
    run.data_loader(1_100, 4_700)
    run.launch(at=5_000, begins=5_200, duration=1_800)
    for trace in each(run):
        rows = idle(trace, "gap").frame.sort("start_ns")
        assert rows.select("start_ns", "time_ns", "cause", "explained_ns", "before").rows() == [
            (1_000, 4_200, "data_loader", 3_600, None),
        ]
        assert rows["after"].to_list() == ["gemm"]
        alone = idle(select(trace, steps=[0])).frame
        assert alone.select("cause", "time_ns").rows() == [("data_loader", 4_200)]


def test_a_step_that_the_recording_begins_with_has_no_other_begin(each: Both) -> None:
    run = Scenario()
    run.step(0, 0, 3_000)
    run.sync(50, 900)
    run.launch(at=1_000, begins=1_300, duration=1_700)
    run.launch(at=1_900, begins=3_000, duration=100, device=0)
    for trace in each(run):
        rows = idle(trace, "gap").frame.select("start_ns", "time_ns", "cause", "explained_ns")
        assert rows.rows() == [(0, 1_300, "synchronization", 850)]


@pytest.mark.parametrize("begin", [0, 400])
def test_the_host_too_is_asked_from_the_steps_begin(begin: int) -> None:
    b = TraceBuilder()
    b.row("ranges", text="setting up", kind="annotation", start=0, duration=300, process=1)
    b.step(0, begin, 2_000, process=1)
    own = {"process": 1, "thread": 1, "start": 1_000, "duration": 500}
    b.operator("aten::mm", 1_000, 500, op=b.row("ops", name="aten::mm", depth=0, **own), step=0)
    rows = idle(b.build(), "gap").frame.sort("start_ns").select("start_ns", "time_ns", "cause")
    after = (1_500, begin + 500, "after_last")
    assert rows.rows() == [(begin, 1_000 - begin, "host"), after]


def test_a_step_begins_when_the_work_launched_before_it_has_ended(each: Both) -> None:
    run = Scenario()
    run.launch(at=0, begins=1_200, duration=100)
    run.step(0, 500, 2_000)
    run.launch(at=600, begins=1_310, duration=690)
    for trace in each(run):
        assert idle(trace).frame.select("cause", "time_ns").rows() == [("queued", 10)]


def test_a_thread_that_had_not_begun_is_not_asked(each: Both) -> None:
    run = Scenario()
    run.operator("forward", 0, 900)
    run.launch(at=0, begins=100, duration=900)
    run.malloc(1_100, 4_500)
    # Autograd's thread was in nothing when the device drained.
    run.operator("backward", 4_900, 5_500, thread=OTHER)
    run.launch(at=5_000, begins=5_200, duration=800, thread=OTHER)
    for trace in each(run):
        assert found(trace) == [(*GAP, "allocation")]
    run.range("busy with another thing", 500, 4_950, thread=OTHER)
    for trace in each(run):
        assert found(trace, "range") == [(*GAP, "host", "busy with another thing")]


def test_every_cause_is_planted_somewhere() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [cause for cause in CAUSES if f'"{cause}"' not in text] == []
