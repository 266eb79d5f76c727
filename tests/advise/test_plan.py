"""The plan: each change replayed on top of those before, the best one first."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Final

import pytest

import traceana
from tests.support.opened import opened
from tests.support.synthetic import Scenario, write_kineto
from tests.support.traces import TraceBuilder
from traceana.advise import advise
from traceana.report.page import Findings, Heading
from traceana.report.pages.whatif import whatif
from traceana.settings import LEAST_SAVING
from traceana.timeline.steps import step_time
from traceana.trace import Trace
from traceana.whatif.program import without_profiler

FOLDER: Final = Path(__file__).parents[2] / "fixtures" / "gpu"
TIMES: Final = {
    one["name"]: median(one["steps_ns"])
    for one in map(json.loads, (FOLDER / "variants.jsonl").read_text("utf-8").splitlines())
}
RECORDINGS: Final = ("alexnet_b128", "alexnet_b128_tf32", "resnet18_b8", "vgg11_b32")


@pytest.fixture(scope="module", params=RECORDINGS)
def program(request: pytest.FixtureRequest) -> Trace:
    return without_profiler(opened(FOLDER / f"{request.param}.json.gz"))


def test_each_stage_begins_where_the_one_before_it_ends(program: Trace) -> None:
    advice = advise(program)
    step = step_time(program)
    assert step is not None
    assert advice.plan
    assert advice.plan[0].from_ns == step.median_ns
    for stage, following in zip(advice.plan, advice.plan[1:], strict=False):
        assert following.from_ns == stage.step_ns
        assert following.scenario.startswith(f"{stage.scenario} + ")
    for stage in advice.plan:
        assert stage.low_ns <= stage.step_ns <= stage.high_ns
        assert stage.saving_share >= LEAST_SAVING


def test_a_stage_is_what_whatif_predicts_of_its_scenario(program: Trace) -> None:
    for stage in advise(program).plan:
        (row,) = whatif(program, stage.scenario).frame.to_dicts()
        assert (row["predicted_ns"], row["low_ns"], row["high_ns"]) == (
            stage.step_ns, stage.low_ns, stage.high_ns
        )  # fmt: skip


def test_the_first_stage_is_the_change_that_saves_most_alone(program: Trace) -> None:
    advice = advise(program)
    simulated = [one for one in (*advice.findings, *advice.small) if one.simulation is not None]
    best = max(simulated, key=lambda one: one.saving_ns * (one.rule.id != "exposed_copies"))
    assert advice.plan[0].rule == best.rule.id
    assert advice.plan[0].saving_ns == pytest.approx(best.saving_ns, abs=2)


@pytest.mark.parametrize(
    ("before", "scenario", "after"),
    [
        ("alexnet_b128", "tensor-cores", "alexnet_b128_tf32"),
        ("alexnet_b128_tf32", "no layout", "alexnet_b128_nhwc_tf32"),
        ("alexnet_b128", "pinned", "alexnet_b128_pinned"),
        ("alexnet_b128", "pinned + overlapped-copies", "alexnet_b128_prefetch"),
    ],
)
def test_the_stages_of_two_chains_of_changes_come_true(
    before: str, scenario: str, after: str
) -> None:
    (row,) = opened(FOLDER / f"{before}.json.gz").whatif(scenario).frame.to_dicts()
    assert row["predicted_ns"] == pytest.approx(TIMES[after], rel=0.1)
    assert row["low_ns"] < TIMES[after] < row["high_ns"]


def test_channels_last_is_not_promised_a_gain() -> None:
    """It gained nothing: the copies vary by more than the kernels save."""
    advice = advise(without_profiler(opened(FOLDER / "alexnet_b128_tf32.json.gz")))
    stages = {stage.rule: stage for stage in advice.plan}
    assert stages["pageable_copies"].certain
    assert not stages["layout_changes"].certain
    (finding,) = (one for one in advice.findings if one.rule.id == "layout_changes")
    assert finding.simulation is not None
    # The recorded change lost 0.40 ms.
    assert finding.simulation.low_ns < -400_000 < finding.simulation.high_ns
    lines = repr(opened(FOLDER / "alexnet_b128_tf32.json.gz").report()).splitlines()
    (line,) = (line for line in lines if line.startswith("3. layout changes "))
    assert line.endswith("· gain uncertain")


def test_copies_from_pinned_memory_overlap_after_they_are_pinned() -> None:
    advice = advise(without_profiler(opened(FOLDER / "alexnet_b128.json.gz")))
    rules = [stage.rule for stage in advice.plan]
    assert rules[:3] == ["pageable_copies", "tensor_cores_unused", "exposed_copies"]
    assert [one.rule.id for one in advice.findings][:3] == rules[:3]


def downloads(folder: Path) -> Trace:
    """Return steps of three kernels and a copy of 32 MiB to pageable memory."""
    run = Scenario()
    for number in range(4):
        at = number * 7_000_000
        run.step(number, at, at + 6_700_000)
        for kernel in range(3):
            run.operator("aten::mm", at + 30_000 * kernel, at + 30_000 * (kernel + 1))
            begin = at + 15_000 + 900_000 * kernel
            run.launch(at=at + 8_000 + 30_000 * kernel, begins=begin, duration=899_000)
        run.copy("DtoH", 32 << 20, at=at + 100_000, begins=at + 2_720_000, duration=3_900_000,
                 memory="pageable")  # fmt: skip
    return traceana.open(write_kineto(run, folder / "run.json"))


def test_copies_to_the_host_can_be_pinned_and_overlapped(tmp_path: Path) -> None:
    trace = downloads(tmp_path)
    rows = whatif(trace, ["pinned", "overlapped-copies"]).frame
    pinned, overlapped = rows["saving_ns"].to_list()
    assert 1_000_000 < pinned < 3_900_000
    assert overlapped == pytest.approx(2_700_000, rel=0.1)
    advice = advise(trace)
    assert [stage.rule for stage in advice.plan][:2] == ["pageable_copies", "exposed_copies"]
    change = advice.findings[0].rule.change.pytorch
    assert "pin_memory=True" in change
    assert "DataLoader" not in change
    (overlap,) = (one.rule.change.pytorch for one in advice.findings
                  if one.rule.id == "exposed_copies")  # fmt: skip
    assert "non_blocking=True) into pinned memory, on a stream of its own" in overlap
    assert "one step later" in overlap
    assert "next batch" not in overlap


def test_small_copies_to_the_host_are_not_told_to_pack_inputs(tmp_path: Path) -> None:
    run, at = Scenario(), 0
    for number in range(4):
        run.step(number, at, at + 1_000_000)
        run.launch(at=at + 1_000, begins=at + 10_000, duration=500_000)
        run.operator("aten::mm", at, at + 5_000)
        for copy in range(40):
            begin = at + 520_000 + 10_000 * copy
            run.copy("DtoH", 4, at=begin - 2_000, begins=begin, duration=5_000, memory="pageable")
        at += 1_000_000
    advice = advise(traceana.open(write_kineto(run, tmp_path / "run.json")))
    (finding,) = (one for one in advice.findings if one.rule.id == "small_copies")
    assert finding.rule.change.pytorch.startswith("keep scalars on the device")


def test_a_saving_that_cannot_be_replayed_comes_first_where_it_is_larger() -> None:
    report = opened(FOLDER / "resnet18_b8_graph.json.gz").report()
    blocks = report.page().blocks
    titles = [block.text for block in blocks if isinstance(block, Heading)]
    numbers = [block.first for block in blocks if isinstance(block, Findings)]
    assert numbers == sorted(numbers)
    assert len(set(titles)) == len(titles)


def test_a_recording_of_one_memset_has_no_plan() -> None:
    build = TraceBuilder(framework="PyTorch")
    build.name("Memset (Device)", category="memset")
    call = build.row("calls", name="cudaMemsetAsync", process=1, thread=1, start=0, duration=500)
    build.row("activities", kind="memset", name_id=0, device=0, stream=7, process=1, call=call,
              start=1_000, duration=2_000)  # fmt: skip
    assert advise(build.build()).findings == ()


def input_bound(folder: Path) -> Trace:
    """Return steps of 60 µs of loading on the host's thread, then ten operators of 7 µs.

    The operators launch six kernels shorter than their launch and four longer ones.
    """
    run, step, microsecond = Scenario(), 130_000, 1_000
    for number in range(5):
        at = number * step
        run.step(number, at, at + step)
        run.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                  at, at + 60 * microsecond)  # fmt: skip
        for operator in range(10):
            begin = at + (60 + 7 * operator) * microsecond
            run.operator("aten::mm", begin, begin + 7 * microsecond)
            run.launch(
                at=begin + 2 * microsecond, begins=begin + 6 * microsecond, call=3 * microsecond,
                duration=(2 if operator < 6 else 7) * microsecond,
            )  # fmt: skip
    return traceana.open(write_kineto(run, folder / "run.json"))


def test_an_input_bound_run_is_told_of_data_loading_first(tmp_path: Path) -> None:
    """A CUDA graph would save as much: the host would load the batch while the GPU computes."""
    trace = without_profiler(input_bound(tmp_path))
    advice = advise(trace)
    assert advice.bottleneck is not None
    assert advice.bottleneck.bound == "input-bound"
    saved = {finding.rule.id: finding.saving_ns for finding in advice.findings}
    assert saved["launch_bound"] > saved["data_loading"] > 40_000
    assert advice.plan[0].rule == advice.findings[0].rule.id == "data_loading"
    assert advice.plan[0].saving_ns == saved["data_loading"]


def test_idle_time_saves_no_more_than_the_step_without_the_profiler_has() -> None:
    b = TraceBuilder(unprofiled_step_ns=40_000.0)
    for number in range(3):
        b.step(number, 100_000 * number, 100_000, process=9)
        b.row("ops", name="aten::mm", process=9, thread=1, start=100_000 * number, duration=30_000)
        b.operator(
            "aten::mm", 100_000 * number, 30_000, process=9, step=number, op=number, stream=1
        )
    (finding,) = (one for one in advise(b.build()).findings if one.rule.id == "host_bound")
    assert finding.saving_ns == 40_000 - 30_000
