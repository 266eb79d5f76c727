"""Step markers, on small traces with known iterations."""

from __future__ import annotations

from pathlib import Path

import pytest

import traceana
from tests.support.traces import TraceBuilder, with_methods
from traceana.analyze.classes import breakdown
from traceana.enrich import attribute
from traceana.enrich.attribution import remarked
from traceana.errors import ExitCode, NoSuchSelectionError, UsageError
from traceana.report.pages.overview import overview
from traceana.timeline.critical import critical
from traceana.trace import Trace

MAIN, LOADER, AUTOGRAD = 1, 2, 3
ITERATION = 1000
COUNT = 5


def mark(
    b: TraceBuilder, text: str, start: int, end: int, *, thread: int = MAIN,
    kind: str = "annotation", process: int | None = 9,
) -> None:  # fmt: skip
    """Add a range."""
    b.row("ranges", text=text, kind=kind, process=process, thread=thread, start=start,
          duration=end - start)  # fmt: skip


def launch(b: TraceBuilder, at: int, *, thread: int = MAIN, process: int = 9) -> None:
    """Add a launch and its kernel of 100 ns, right behind it."""
    number = len(b._rows.get("calls", []))
    b.row("calls", name="cudaLaunchKernel", process=process, thread=thread, start=at, duration=2,
          correlation=number)  # fmt: skip
    b.kernel(f"k{at % ITERATION}", at + 10, 100, correlation=number, process=process)


def training() -> TraceBuilder:
    """Return five iterations of 1000 ns: three launches, the optimizer's step from 700 to 900."""
    b = TraceBuilder()
    for i in range(COUNT):
        base = i * ITERATION
        launch(b, base + 100)
        launch(b, base + 300, thread=AUTOGRAD)
        launch(b, base + 750)
        mark(b, "Optimizer.step#SGD.step", base + 700, base + 900)
    return b


def step_rows(trace: Trace) -> list[tuple[int, int, int]]:
    """Return (number, start, duration) of each step."""
    return trace.tables.steps.select("number", "start", "duration").rows()


FIRST = [(0, 0, 900)]
BETWEEN = [*FIRST, *((i, i * 1000 - 100, 1000) for i in range(1, COUNT))]


def test_annotations_drawn_on_the_device_mark_no_steps() -> None:
    """Kineto writes each annotation a second time, where the device was at it."""
    b = training()
    for i in range(COUNT):
        b.row("ranges", text="Optimizer.step#SGD.step", kind="device", device=0, thread=7,
              start=i * ITERATION + 760, duration=100)  # fmt: skip
        b.row("ranges", text=f"iteration {i}", kind="device", device=0, thread=7,
              start=i * ITERATION + 110, duration=800)  # fmt: skip
    trace = attribute(b.build())
    assert step_rows(trace) == BETWEEN
    assert trace.tables.steps["process"].to_list() == [9] * COUNT
    shown = overview(trace)
    assert shown.facts["steps"] == shown.steps.frame.height == COUNT
    assert breakdown(trace).frame["step_ns"].sum() == 300
    assert critical(trace).totals["time_ns"] <= COUNT * ITERATION


def test_marks_without_a_process_count_only_where_none_has_one() -> None:
    b = training()
    for i in range(COUNT):
        mark(b, f"ProfilerStep#{i}", i * 1000, i * 1000 + 950, kind="step")
        mark(b, f"ProfilerStep#{i}", i * 1000, i * 1000 + 950, kind="step", process=None)
    assert attribute(b.build()).tables.steps["process"].to_list() == [9] * COUNT


@pytest.mark.parametrize("second", ["Optimizer.step#Adam.step", "Optimizer.step#SGD.step"])
def test_two_optimizers_of_one_iteration_are_one_step(second: str) -> None:
    """Two classes are distinguished by name, one class by the batches of the data loader."""
    b = training()
    for i in range(COUNT):
        mark(b, "enumerate(DataLoader)#_Iter.__next__", i * 1000, i * 1000 + 50)
        mark(b, second, i * 1000 + 920, i * 1000 + 980)
    trace = attribute(b.build())
    assert step_rows(trace) == [(0, 0, 980), *((i, i * 1000 - 20, 1000) for i in range(1, COUNT))]


def test_batches_loaded_before_the_training_join_no_steps() -> None:
    b = training()
    for i in range(COUNT):
        mark(b, "enumerate(DataLoader)#_Iter.__next__", i, i + 1)
    assert step_rows(attribute(b.build())) == BETWEEN


def test_accumulated_gradients_are_one_step_of_several_batches() -> None:
    b = training()
    for i in range(2 * COUNT):
        mark(b, "enumerate(DataLoader)#_Iter.__next__", i * 500, i * 500 + 20)
        mark(b, f"batch {i}", i * 500, i * 500 + 450)
    assert step_rows(attribute(b.build())) == BETWEEN


def test_an_optimizer_around_another_steps_once() -> None:
    b = training()
    for i in range(COUNT):
        mark(b, "Optimizer.step#EMA.step", i * 1000 + 690, i * 1000 + 910)
    trace = attribute(b.build())
    assert step_rows(trace)[1] == (1, 910, 1000)
    assert trace.tables.steps.height == COUNT


def test_an_optimizer_that_steps_rarely_ends_no_iteration() -> None:
    b = training()
    for i in (1, 3):
        mark(b, "Optimizer.step#SWA.step", i * 1000 + 920, i * 1000 + 980)
    assert step_rows(attribute(b.build())) == BETWEEN


def test_of_several_threads_that_step_one_counts() -> None:
    b = training()
    for i in range(COUNT - 1):
        mark(b, "Optimizer.step#SGD.step", i * 1000 + 650, i * 1000 + 850, thread=8)
    assert step_rows(attribute(b.build())) == BETWEEN


def test_each_process_has_its_own_steps() -> None:
    b = training()
    for i in range(COUNT):
        launch(b, i * 1000 + 400, process=10)
        mark(b, "Optimizer.step#SGD.step", i * 1000 + 300, i * 1000 + 500, process=10)
    trace = attribute(b.build())
    assert trace.tables.steps["process"].to_list() == [9] * COUNT + [10] * COUNT
    assert trace.tables.steps["number"].to_list() == [*range(COUNT)] * 2


def test_batches_of_a_loading_thread_are_no_iterations() -> None:
    b = training()
    for i in range(COUNT):
        mark(b, f"batch {i}", i * 1000 + 50, i * 1000 + 990, thread=LOADER, kind="nvtx")
    trace = attribute(b.build())
    assert step_rows(trace) == BETWEEN
    assert trace.tables.steps["source"].unique().to_list() == ["Optimizer.step"]


def test_ranges_around_a_small_part_of_the_work_are_no_iterations() -> None:
    b = training()
    for i in range(COUNT):
        mark(b, f"batch {i}", i * 1000 + 90, i * 1000 + 120)
    assert step_rows(attribute(b.build())) == BETWEEN


def test_without_an_optimizer_ranges_around_a_small_part_are_no_steps_at_all() -> None:
    b = TraceBuilder()
    for i in range(COUNT):
        for at in (100, 300, 750):
            launch(b, i * 1000 + at)
        mark(b, f"batch {i}", i * 1000 + 90, i * 1000 + 120, kind="nvtx")
    trace = attribute(b.build())
    assert trace.tables.steps.is_empty()
    assert overview(trace).steps.notes == (
        "no steps: the trace has no step markers; repeating ranges: 'batch' (5)",
    )


def test_ranges_around_work_that_the_clock_gives_no_time_are_steps() -> None:
    b = TraceBuilder()
    b.row("calls", name="cudaLaunchKernel", process=9, thread=MAIN, start=10, duration=2,
          correlation=0)  # fmt: skip
    b.kernel("k", 20, 0, correlation=0, process=9)
    mark(b, "step 0", 0, 100, kind="nvtx")
    assert step_rows(attribute(b.build())) == [(0, 0, 100)]


def test_named_iterations_on_the_training_thread_go_before_the_optimizer() -> None:
    b = training()
    for i in range(COUNT):
        mark(b, f"iteration {i + 3}", i * 1000 + 50, i * 1000 + 950)
        mark(b, f"batch {i}", i * 1000 + 60, i * 1000 + 400)
    trace = attribute(b.build())
    assert step_rows(trace) == [(i + 3, i * 1000 + 50, 900) for i in range(COUNT)]
    assert trace.tables.steps["source"].unique().to_list() == ["iteration"]


def test_numbers_that_begin_anew_are_replaced_by_the_order() -> None:
    b = training()
    for i in range(COUNT):
        mark(b, f"step {i % 2}", i * 1000 + 50, i * 1000 + 950)
    assert [number for number, _, _ in step_rows(attribute(b.build()))] == [*range(COUNT)]


def custom() -> TraceBuilder:
    """Return the training with ranges of other names: its own, on every other iteration."""
    b = training()
    for i in (0, 2, 4):
        mark(b, f"my_iter {i}", i * 1000 + 50, i * 1000 + 950, kind="nvtx")
    return b


@pytest.mark.parametrize("marker", ["my_iter", r"^my_iter \d$", "iter [0-9]"])
def test_a_marker_names_the_ranges_by_text_or_expression(marker: str) -> None:
    trace = attribute(custom().build(), marker)
    assert step_rows(trace) == [(i, i * 1000 + 50, 900) for i in (0, 2, 4)]
    assert trace.tables.steps["source"].unique().to_list() == ["my_iter"]
    inside = trace.tables.activities["step"].to_list()
    assert inside == [i // 2 if i % 2 == 0 else None for i in range(COUNT) for _ in range(3)]


def test_a_text_that_is_no_expression_is_a_marker_all_the_same() -> None:
    b = training()
    mark(b, "phase (a", 0, 2950)
    assert step_rows(attribute(b.build(), "phase (a")) == [(0, 0, 2950)]


def test_the_optimizer_as_a_marker_ends_steps() -> None:
    b = training()
    for i in range(COUNT):
        mark(b, f"ProfilerStep#{i}", i * 1000, i * 1000 + 950, kind="step")
    assert step_rows(attribute(b.build(), "Optimizer.step")) == BETWEEN


def test_a_marker_that_is_no_expression_or_matches_nothing_is_an_error() -> None:
    trace = custom().build()
    with pytest.raises(UsageError, match="invalid regular expression") as bad:
        attribute(trace, "my_iter (")
    assert bad.value.exit_code == ExitCode.USAGE
    known = r"repeating ranges: 'Optimizer.step#SGD.step' \(5\), 'my_iter' \(3\)$"
    with pytest.raises(NoSuchSelectionError, match=known):
        attribute(trace, "epoch")


def test_a_bundle_is_marked_anew_as_the_trace_is(tmp_path: Path) -> None:
    plain = with_methods(attribute(custom().build()))
    saved = plain.save(tmp_path / "saved")
    assert step_rows(traceana.open(saved)) == BETWEEN
    fresh, again = (
        attribute(custom().build(), "my_iter"),
        traceana.open(saved, step_marker="my_iter"),
    )
    assert again.tables.steps.equals(fresh.tables.steps)
    assert again.tables.activities["step"].equals(fresh.tables.activities["step"])
    kept = with_methods(fresh).save(tmp_path / "kept")
    assert traceana.open(kept).tables.steps.equals(fresh.tables.steps)


def test_ranks_of_a_bundle_are_marked_each_by_its_own_ranges() -> None:
    b = TraceBuilder()
    for rank in (0, 1):
        for i in range(2):
            at = 1000 * i + 100 * rank
            b.row("ranges", text=f"it {i}", kind="nvtx", process=9, thread=1, start=at,
                  duration=500, rank=rank)  # fmt: skip
            b.kernel("k", at + 10, 5, process=9, rank=rank)
    trace = remarked(b.build(), "it")
    assert trace.tables.steps.select("rank", "number", "start").rows() == [
        (0, 0, 0), (0, 1, 1000), (1, 0, 100), (1, 1, 1100),
    ]  # fmt: skip
    assert trace.tables.activities["step"].to_list() == [0, 1, 2, 3]


def marked(counts: list[int], text: str = "ProfilerStep#{}", kind: str = "step") -> Trace:
    """Return steps with so many operators each, and one operator after the last."""
    b = TraceBuilder()
    for number, count in enumerate(counts):
        at = number * ITERATION
        mark(b, text.format(number), at, at + ITERATION, kind=kind)
        for one in range(count):
            b.row("ops", name="aten::mm", process=9, thread=MAIN, start=at + 10 * one, duration=5)
    b.row(
        "ops", name="aten::add", process=9, thread=MAIN, start=len(counts) * ITERATION, duration=5
    )
    return attribute(b.build())


@pytest.mark.parametrize(
    ("counts", "whole"),
    [
        ([8, 8, 8, 0], 3),
        ([8, 9, 8, 3], 3),
        ([8, 9, 8, 4], 4),
        ([8, 3, 8, 3], 4),
        ([8, 8, 8, 20], 4),
        ([8, 8, 1], 2),
        ([8, 1], 2),
        ([0, 0, 0, 0], 4),
    ],
)
def test_a_step_that_the_end_of_the_recording_cut_is_none(counts: list[int], whole: int) -> None:
    trace = marked(counts)
    assert trace.tables.steps.height == whole
    cut = trace.tables.ledger.filter(reason="cut_step")
    assert cut["count"].to_list() == [1] * (len(counts) - whole)


def test_operators_that_nvtx_ranges_record_count_in_a_cut_step_too() -> None:
    b = TraceBuilder()
    for number, count in enumerate((8, 8, 8, 1)):
        at = number * ITERATION
        mark(b, f"ProfilerStep#{number}", at, at + ITERATION, kind="nvtx")
        launch(b, at + 500)
        for one in range(count):
            mark(b, f"aten::mm, op_id = {one}", at + 10 * one, at + 10 * one + 5, kind="nvtx")
    assert attribute(b.build()).tables.steps.height == 3


def test_the_last_iteration_of_a_server_may_have_few_requests() -> None:
    text = "execute_context_{}(8)_generation_4(4)"
    assert marked([8, 8, 8, 1], text, "annotation").tables.steps.height == 4


def test_the_step_around_the_recorders_mark_is_none() -> None:
    b = TraceBuilder()
    for number in range(4):
        at = number * ITERATION
        mark(b, f"ProfilerStep#{number}", at, at + ITERATION, kind="step")
        b.row("ops", name="aten::mm", process=9, thread=MAIN, start=at + 5, duration=500)
    mark(b, "traceana: after the last step", 3 * ITERATION + 900, 3 * ITERATION + 901)
    trace = attribute(b.build())
    assert trace.tables.steps["number"].to_list() == [0, 1, 2]
    assert "traceana: after the last step" not in trace.tables.layers["path"].to_list()
