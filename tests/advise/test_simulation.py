"""Simulated savings: known exactly for runs that never ran, and the same in every command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.command_line import run as command
from tests.support.manifest import traces_at_hand
from tests.support.opened import no_cost, opened
from tests.support.synthetic import Scenario, kineto, write_kineto
from tests.support.traces import TraceBuilder
from traceana.advise import Advice, Finding, advise
from traceana.advise.figures import Figures
from traceana.advise.gates import Broken, broken
from traceana.report.pages.advise import findings_of, saving
from traceana.timeline.steps import select
from traceana.whatif import whatif as graph
from traceana.whatif.changed import selected_work
from traceana.whatif.scenario import scenario
from traceana.whatif.whatif import part_of, student_quantile

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
SHARED = (
    *("resnet50_train_v100_workers0.json.gz", "cnn_train_nccl_a100.json.gz"),
    *("timesformer_h100.json.gz", "diff_control_a100.json.gz"),
)
MIXED = 10_000


@pytest.fixture(autouse=True)
def no_profiler_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs are built without a cost of the profiler."""
    monkeypatch.setattr("traceana.whatif.program.profiler_cost", no_cost)


def of(advice: Advice, rule: str) -> Finding:
    (one,) = [finding for finding in advice.findings if finding.rule.id == rule]
    return one


def small(advice: Advice, rule: str) -> Finding:
    assert rule not in {finding.rule.id for finding in advice.findings}
    (one,) = [finding for finding in advice.small if finding.rule.id == rule]
    return one


def loading(run: Scenario, at: int, loads: int, works: int) -> int:
    """Load a batch for ``loads`` ns, launch a kernel of ``works`` ns and wait for it.

    Return when the step is over.
    """
    if loads:
        run.range(LOADER, at, at + loads)
    launched = at + loads
    run.operator("aten::mm", launched, launched + 200)
    run.launch(at=launched + 50, begins=launched + 200, duration=works, call=100)
    over = launched + 200 + works
    run.sync(launched + 210, over, "stream", stream=7)
    return over


def steps_of(loads: Sequence[int], works: int = MIXED) -> Scenario:
    run, at = Scenario(), 0
    for number, load in enumerate(loads):
        over = loading(run, at, load, works)
        run.step(number, at, over)
        at = over
    return run


def test_the_wait_for_a_batch_is_saved_whole_where_nothing_else_is_waited_for(
    tmp_path: Path,
) -> None:
    finding = of(advise(kineto(steps_of([5_000] * 4), tmp_path)), "data_loading")
    assert finding.kind == "simulation"
    assert finding.saving_ns == 5_000
    assert finding.saving_share == 5_000 / 15_200
    assert finding.simulation is not None
    assert finding.simulation.low_ns < 5_000 < finding.simulation.high_ns


def test_a_batch_that_is_late_in_some_steps_is_in_the_mean(tmp_path: Path) -> None:
    # The first step does not count: it begins as recorded.
    trace = kineto(steps_of([0, 0, 0, 0, 8_000]), tmp_path)
    advice = advise(trace)
    assert of(advice, "data_loading").saving_ns == 2_000
    (row,) = trace.whatif("data-ready").frame.to_dicts()
    assert row["saving_ns"] / row["mean_ns"] == row["saving_share"]


def test_a_wait_beside_which_another_thread_prepares_the_copy_saves_nothing(
    tmp_path: Path,
) -> None:
    """The kernel after the wait could begin earlier, but the next one needs the other's copy."""
    run, length = Scenario(), 30_000
    for number in range(4):
        at = number * length
        run.step(number, at, at + length)
        run.range(LOADER, at, at + 5_000)
        run.operator("aten::copy_", at + 10, at + 5_600, thread=2)
        run.copy("HtoD", 64, at=at + 5_500, begins=at + 5_600, duration=400, stream=13, thread=2)
        copied = run.record_event(13, at=at + 5_610, completed=at + 6_000, thread=2)
        run.operator("aten::mm", at + 5_000, at + 7_000)
        run.launch(at=at + 5_010, begins=at + 5_200, duration=100)
        run.wait_event(copied, 7, at=at + 5_900)
        run.launch(at=at + 6_050, begins=at + 6_200, duration=20_000)
        run.sync(at + 7_100, at + 26_200, "stream", stream=7)
    trace = kineto(run, tmp_path)
    advice = advise(trace)
    finding = small(advice, "data_loading")
    assert finding.estimate_ns >= 4_900
    assert finding.saving_ns < 0.1 * finding.estimate_ns
    # A gate and --rule ask for one rule, which holds by its estimate.
    assert broken(Figures(trace), advice, ["data_loading"], []) == [Broken("data_loading")]
    asked = trace.advise(rule="data_loading")
    assert asked.frame["rule"].to_list() == ["data_loading"]
    assert "not listed without --rule: simulated saving below 1 % of the step" in asked.notes
    assert "data_loading" not in trace.advise().frame["rule"]


NORM_NCHW = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>()"
NORM_NHWC = "void cudnn::batchnorm_fwtr_nhwc_semiPersist<float>()"
TF32 = (
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4_"
    "warpsize2x2x1_g1_tensor16x8x8_kernel_cudnn"
)
TO_NHWC = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, 2>()"


@pytest.mark.parametrize(
    ("norm", "reason"),
    [(NORM_NCHW, "cudnn normalizes nhwc in about half the time"), (NORM_NHWC, None)],
)
def test_a_saving_above_the_estimate_has_the_reason_that_holds(
    norm: str, reason: str | None, tmp_path: Path
) -> None:
    run, at = Scenario(), 0
    for number in range(4):
        begin = at
        run.operator("aten::cudnn_convolution", at, at + 300)
        run.operator("aten::cudnn_batch_norm", at + 300, at + 400)
        for launch, (name, starts, length) in enumerate(
            ((TO_NHWC, 500, 500), (TF32, 1_000, 4_000), (norm, 5_000, 4_000))
        ):
            run.launch(at=at + 10 + 150 * launch, begins=at + starts, duration=length, name=name)
        run.sync(at + 450, at + 9_000, "stream", stream=7)
        at += 9_000
        run.step(number, begin, at)
    advice = advise(kineto(run, tmp_path))
    finding = of(advice, "layout_changes")
    assert finding.estimate_ns == 500
    (item,) = findings_of([finding])
    text = dict(item.details)["saving"].lower()
    (in_plan,) = findings_of([finding], advice.plan)
    stage_reason = dict(in_plan.details).get("reason", "").lower()
    assert (reason or "") in stage_reason
    assert bool(reason) == bool(stage_reason)
    assert "waits" not in text
    if reason is None:
        assert finding.saving_ns <= 500
        assert "more than" not in text
    else:
        assert finding.saving_ns > 1_500
        assert f"more than the estimate (channels_last; {reason})" in text


def test_copies_beside_memsets_are_no_finding(tmp_path: Path) -> None:
    run, length = Scenario(), 20_000
    for number in range(4):
        at = number * length
        run.step(number, at, at + length)
        run.operator("aten::copy_", at, at + 100, thread=2)
        run.copy(
            "HtoD",
            100_000,
            at=at + 10,
            begins=at + 1_000,
            duration=300,
            stream=13,
            memory="pinned",
            thread=2,
        )
        run.operator("aten::zero_", at + 100, at + 400)
        run.memset(4_000, at=at + 110, begins=at + 500, duration=1_000)
        run.operator("aten::mm", at + 400, at + 900)
        run.launch(at=at + 500, begins=at + 1_500, duration=18_000)
        run.sync(at + 910, at + 19_600, "stream", stream=7)
    advice = advise(kineto(run, tmp_path))
    finding = small(advice, "exposed_copies")
    assert finding.estimate_ns == 300
    assert finding.simulation is not None
    assert finding.simulation.scenario == "overlapped-copies"
    assert finding.saving_ns == 0


def test_kernels_that_the_host_launches_late_save_nothing_by_being_faster(tmp_path: Path) -> None:
    run, at = Scenario(), 0
    for number in range(4):
        begin = at
        for _ in range(20):
            run.operator("aten::mm", at, at + 1_000)
            run.launch(at=at + 500, begins=at + 700, duration=200, call=100)
            at += 1_000
        run.step(number, begin, at)
    trace = kineto(run, tmp_path)
    row = trace.whatif("kernel:. x 0.5").frame.row(0, named=True)
    assert (row["saving_ns"], row["saving_share"]) == (0, 0)
    assert row["saving_low_ns"] < 0 < row["saving_high_ns"]
    assert row["at_most_ns"] == 20 * 100


@pytest.mark.slow
def test_tensor_cores_save_nothing_where_the_host_is_late() -> None:
    paths = [one for one in traces_at_hand() if one.name == "many_kernels_a100.json.gz"]
    for path in paths:
        finding = small(advise(opened(path)), "tensor_cores_unused")
        assert finding.estimate_ns > 40_000_000
        assert finding.saving_ns < 0.01 * finding.estimate_ns


def test_a_selection_of_devices_has_the_estimate_alone(tmp_path: Path) -> None:
    trace = kineto(steps_of([5_000] * 4), tmp_path)
    assert of(advise(trace), "data_loading").simulation is not None
    finding = of(advise(select(trace, devices=[0])), "data_loading")
    assert finding.simulation is None
    assert finding.kind == "estimate"
    assert finding.saving_ns == finding.estimate_ns


def test_without_steps_the_capture_is_replayed(tmp_path: Path) -> None:
    trace = kineto(steps_of([5_000] * 4), tmp_path)
    work = trace.tables.activities
    no_steps = trace.with_tables(
        steps=trace.tables.steps.clear(), activities=work.with_columns(step=pl.lit(None, pl.UInt32))
    )
    finding = of(advise(no_steps), "data_loading")
    assert finding.simulation is not None
    assert finding.saving_of == "capture"
    # The first wait is before the first work.
    assert finding.saving_ns == 3 * 5_000


def test_a_kernel_estimate_without_steps_saves_nothing_where_the_host_is_late(
    tmp_path: Path,
) -> None:
    run = Scenario()
    shapes = {"Input Dims": [[512, 512], [512, 512]], "Input type": ["float", "float"]}
    for at in range(0, 20_000_000, 200_000):
        run.operator("aten::mm", at, at + 190_000, arguments=shapes)
        run.launch(
            at=at + 180_000, begins=at + 186_000, duration=45_000, name="volta_sgemm_128x64_nn"
        )
    advice = advise(kineto(run, tmp_path))
    rules = [finding.rule.id for finding in advice.findings]
    assert rules[0] == "host_bound"
    assert "tensor_cores_unused" not in rules


# Each is advised on by all rules, for a third of a second. Ten have steps without and with waits.
@pytest.mark.slow
@settings(max_examples=10)
@given(st.lists(st.integers(0, 20_000), min_size=3, max_size=8), st.integers(1_000, 40_000))
def test_a_saving_is_part_of_the_step(
    tmp_path_factory: pytest.TempPathFactory, loads: list[int], works: int
) -> None:
    trace = kineto(steps_of(loads, works), tmp_path_factory.mktemp("run"))
    for finding in advise(trace).findings:
        if finding.simulation is not None:
            step = finding.simulation
            assert step.low_ns <= finding.saving_ns <= step.high_ns
            assert 0 <= finding.saving_share <= 1


@pytest.mark.slow
@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize("path", [p for p in traces_at_hand() if p.name in SHARED],
                         ids=lambda path: path.name)  # fmt: skip
def test_all_commands_have_one_saving(path: Path) -> None:
    trace = opened(path)
    advice = advise(trace)
    every = (*advice.findings, *advice.small)
    simulated = [one for one in every if one.simulation is not None]
    assert simulated
    rows = {
        one.rule.id: trace.advise(rule=one.rule.id).frame.row(0, named=True) for one in simulated
    }
    others = [one for one in advice.findings if one.rule.id not in advice.in_plan]
    ranked = [one.saving_ns for one in others if one.kind in ("simulation", "estimate")]
    assert ranked == sorted(ranked, reverse=True)
    planned = [one.rule.id for one in advice.findings if one.rule.id in advice.in_plan]
    assert planned == [stage.rule for stage in advice.plan]
    report = command("report", path, "--format", "json")
    sections = json.loads(report.stdout)["sections"]["findings"]
    for one in simulated:
        assert one.simulation is not None
        row = trace.whatif(one.simulation.scenario).frame.row(0, named=True)
        for found in (rows[one.rule.id], *[s for s in sections if s["rule"] == one.rule.id]):
            for key in ("saving_ns", "saving_low_ns", "saving_high_ns", "saving_share"):
                assert found[key] == row[key]
            assert found["kind"] == "simulation"
            assert found["estimate_ns"] == one.estimate_ns
        (item,) = findings_of([one])
        assert item.effect == saving(one)
        assert not item.effect.startswith(("≤", "≈"))


@pytest.mark.parametrize("path", [p for p in traces_at_hand() if p.name in SHARED],
                         ids=lambda path: path.name)  # fmt: skip
def test_a_scenario_is_about_the_work_of_its_finding(path: Path) -> None:
    trace = opened(path)
    figures = Figures(trace)
    for one in advise(trace).findings:
        if one.simulation is None or one.rule.id not in (
            *("unfused_bias_activation", "unfused_attention", "layout_changes"),
            "first_data_gradient",
        ):
            continue
        measured = figures.measured["step"].implode()
        steps = trace.tables.steps["number"].is_in(measured).to_numpy()
        step = trace.tables.activities["step"].fill_null(len(steps)).to_numpy()
        inside = np.append(steps, [False])[step]
        duration = trace.tables.activities["duration"].to_numpy()
        chosen = np.zeros(len(duration), dtype=np.bool_)
        for change in scenario(one.simulation.scenario).changes:
            if not change.implied:
                chosen |= selected_work(trace, change)
        total = int(duration[chosen & inside].sum())
        assert total // figures.units == one.estimate_ns


def test_a_part_of_a_long_trace_has_the_saving_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = kineto(steps_of([5_000] * 40), tmp_path)
    whole = of(advise(trace), "data_loading")
    monkeypatch.setattr(graph, "REPLAYED_ACTIVITIES", 14)
    again = kineto(steps_of([5_000] * 40), tmp_path)
    chosen = part_of(again)
    # A kernel and a synchronization record a step.
    assert chosen.activities <= 14
    assert chosen.numbers is not None
    assert chosen.numbers == list(range(chosen.numbers[0], chosen.numbers[-1] + 1))
    assert chosen.numbers[0] < 20 <= chosen.numbers[-1]
    advice = advise(again)
    found = of(advice, "data_loading")
    assert found.saving_ns == whole.saving_ns == 5_000
    assert chosen.note in advice.notes
    row = again.whatif("data-ready")
    assert row.frame["saving_ns"].item() == 5_000
    assert chosen.note in row.notes


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=12),
    st.integers(1, 60),
)
def test_the_part_is_consecutive_and_within_the_limit(counts: list[int], most: int) -> None:
    builder = TraceBuilder()
    builder.name("k", category="elementwise")
    for number, count in enumerate(counts):
        step = builder.step(number, number * 1_000, 1_000)
        for _ in range(count):
            builder.kernel("k", number * 1_000, 1, step=step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "REPLAYED_ACTIVITIES", most)
        found = part_of(builder.build())
    if found.numbers is None:
        assert sum(counts) == found.activities <= most
        return
    first, last = found.numbers[0], found.numbers[-1]
    assert found.numbers == list(range(first, last + 1))
    assert found.activities == sum(counts[first : last + 1])
    assert found.activities <= most or first == last


def test_json_has_what_the_saving_is_of(tmp_path: Path) -> None:
    file = write_kineto(steps_of([5_000] * 4), tmp_path / "run.json")
    found = json.loads(command("advise", file, "-f", "json").stdout)
    (row,) = [one for one in found["rows"] if one["rule"] == "data_loading"]
    assert (row["saving_ns"], row["scenario"], row["kind"]) == (5_000, "data-ready", "simulation")
    assert row["saving_low_ns"] < 5_000 < row["saving_high_ns"]
    assert found["meta"]["units"]["saving_low_ns"] == "ns"
    assert found["meta"]["settings"]["replayed_activities"] == 10_000
    shown = command("advise", file, "--rule", "data_loading").stdout
    assert "5.00 µs (" in shown
    assert "by simulation: traceana whatif --scenario data-ready" in " ".join(shown.split())


@given(st.integers(1, 400), st.sampled_from([0.75, 0.9, 0.95, 0.975, 0.995]))
def test_the_quantile_of_student(degrees: int, level: float) -> None:
    from scipy.special import stdtrit

    assert student_quantile(level, degrees) == pytest.approx(float(stdtrit(degrees, level)), 1e-8)
