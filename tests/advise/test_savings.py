"""Savings in closed form, per step and device; their order; their notes."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from msgspec.structs import replace

import traceana
from tests.advise.building import STEPS, WALL, Run, run_of
from tests.advise.cases import CASES, copies, gap, products_in_a_row
from tests.job.jobs import Job, even
from tests.support.synthetic import Scenario, nsys
from tests.support.traces import TraceBuilder
from traceana.advise import Advice, Finding, advise, per_step
from traceana.advise.figures import Figures
from traceana.advise.gates import METRICS
from traceana.flops.convolution import Convolution
from traceana.flops.executed import executed
from traceana.report.pages.advise import findings_of, saving, sentence
from traceana.trace import Trace


def found(advice: Advice, rule: str) -> Finding:
    (one,) = [finding for finding in advice.findings if finding.rule.id == rule]
    return one


def of(rule: str, folder: Path) -> Finding:
    return found(advise(CASES[rule][0](folder)), rule)


V100_FP32, V100_FP16 = 15.7, 125.0
V100_BANDWIDTH = 900e9
ON_TENSOR_CORES = 1.8 * V100_FP32 / V100_FP16
"""Part of the time of an FP32 GEMM that it is expected to take in FP16."""


def test_a_product_that_winograd_fits_saves_the_flops_that_winograd_leaves_out(
    tmp_path: Path,
) -> None:
    layer = Convolution(32, 64, 64, (3, 3), (56, 56), (56, 56), stride=(1, 1), dilation=(1, 1))
    ways = {
        name: executed(layer, name).flops  # type: ignore[union-attr]
        for name in ("winograd", "winograd_nonfused", "fft", "fft_tiling")
    }
    direct = 2 * layer.macs
    finding = of("fast_convolution", tmp_path)
    row = finding.evidence.row(0, named=True)
    assert row["executed_flops"] == STEPS * direct
    assert row["alternative_flops"] == STEPS * ways[row["alternative"]]
    bound = 700_000 * (1 - min(ways.values()) / direct)
    assert 0 < finding.saving_ns <= bound
    # Fused Winograd moves nothing but its operands: arithmetic sets its pace.
    assert finding.saving_ns >= 700_000 * (1 - ways["winograd"] / direct) - 1


def test_many_convolutions_may_need_no_workspace_before_one_does(tmp_path: Path) -> None:
    def put(run: Run) -> None:
        for batch in range(100, 200):
            run.convolution("implicit_gemm", images=(batch, 64, 16), duration=300 * batch)
        run.convolution("implicit_gemm", images=(1, 64, 16), filters=(64, 5), duration=29_000)

    evidence = found(advise(run_of(put)), "fast_convolution").evidence
    workspaces = evidence.sort("time_ns", descending=True)["workspace_bytes"].to_list()
    assert workspaces[:100] == [None] * 100
    assert workspaces[-1] > 0


def test_tensor_cores_save_what_the_peaks_tell(tmp_path: Path) -> None:
    finding = of("tensor_cores_unused", tmp_path)
    assert finding.saving_ns == pytest.approx(500_000 * (1 - ON_TENSOR_CORES), abs=2)


def test_tensor_cores_save_nothing_where_memory_sets_the_pace(tmp_path: Path) -> None:
    """Of two products of 500 µs each, one moves too much for the tensor cores to be of use."""

    def put(run: Run) -> None:
        run.name("gemm", category="gemm", precision="fp32", tensor_core=False)
        for rows in (1_024, 100_000):
            op = run.op("aten::mv", f"[[{rows},1024],[1024]]")
            run.put("gemm", 500_000, op=op)

    finding = found(advise(run_of(put)), "tensor_cores_unused")
    spared = 500_000 * (1 - ON_TENSOR_CORES)
    moved = 4 * (100_000 * 1024 + 1024 + 100_000) / 2 / V100_BANDWIDTH * 1e9
    assert moved > 500_000 * ON_TENSOR_CORES
    assert finding.saving_ns == pytest.approx(spared + 500_000 - moved, abs=3)
    assert finding.figures["unbounded_ns"] is None


def test_layout_changes_and_trials_save_all_their_time(tmp_path: Path) -> None:
    assert of("layout_changes", tmp_path).saving_ns == 300_000
    assert of("algorithm_search", tmp_path).saving_ns == 600_000
    assert of("first_data_gradient", tmp_path).saving_ns == 700_000


def test_small_copies_save_what_a_large_one_would(tmp_path: Path) -> None:
    # 1 ms for 100 kB where 2 MB take 0.2 ms: 10 µs.
    assert of("small_copies", tmp_path).saving_ns == pytest.approx(990_000, abs=1)


def test_copies_save_what_no_kernel_hides(tmp_path: Path) -> None:
    assert of("pageable_copies", tmp_path).saving_ns == 1_000_000
    finding = of("slow_copies", tmp_path)
    (row,) = finding.evidence.to_dicts()
    assert finding.saving_ns == pytest.approx(1_000_000 * (1 - row["peak_share"]), abs=1)


def test_fast_copies_that_no_kernel_hides_cost_their_time(tmp_path: Path) -> None:
    finding = of("exposed_copies", tmp_path)
    assert finding.saving_ns == 300_000
    assert finding.figures["kernel_ns"] == 8_000_000
    assert sentence(finding) == (
        "exposed 300.0 µs of 300.0 µs copy time: 1 copy, HtoD of 4.00 MB on average "
        "at 13.33 GB/s; kernel time 8.00 ms"
    )


def test_products_in_a_row_fill_the_device_together(tmp_path: Path) -> None:
    # Eight of ten blocks on 80 multiprocessors: batched they take the time of one.
    finding = found(advise(products_in_a_row(False)(tmp_path)), "batchable_gemms")
    assert finding.saving_ns == 8 * 50_000 * 7 // 8


def test_products_of_different_steps_are_not_in_a_row() -> None:
    builder = TraceBuilder()
    builder.name("sgemm", category="gemm", precision="fp32", batched=False)
    builder.row("devices", device=0, name="V100", vendor="NVIDIA", multiprocessors=80)
    for number in range(8):
        step = builder.step(number, number * 100_000, 100_000)
        sizes = {"grid_x": 10, "grid_y": 1, "grid_z": 1}
        builder.kernel("sgemm", number * 100_000, 50_000, step=step, **sizes)
    assert "batchable_gemms" not in {one.rule.id for one in advise(builder.build()).findings}


def side_by_side(pause: int) -> Trace:
    """Return eight products of 50 us on one stream, ``pause`` apart, while another stream works for
    all but 10 us of each pause."""
    builder = TraceBuilder()
    builder.name("sgemm", category="gemm", precision="fp32", batched=False)
    builder.name("other", category="conv")
    builder.row("devices", device=0, name="V100", vendor="NVIDIA", multiprocessors=80)
    sizes = {"grid_x": 80, "grid_y": 1, "grid_z": 1}
    for number in range(8):
        at = number * (50_000 + pause)
        builder.kernel("sgemm", at, 50_000, stream=36, **sizes)
        builder.kernel("other", at, 50_000 + pause - 10_000, stream=24, **sizes)
    return builder.build()


def test_gaps_of_products_count_where_nothing_runs_on_the_device() -> None:
    assert found(advise(side_by_side(40_000)), "batchable_gemms").saving_ns == 7 * 10_000


def test_products_with_long_pauses_are_not_in_a_row() -> None:
    findings = advise(side_by_side(60_000_000)).findings
    assert "batchable_gemms" not in {one.rule.id for one in findings}


def test_kernels_of_few_blocks_leave_the_rest_unused(tmp_path: Path) -> None:
    assert of("small_batch", tmp_path).saving_ns == 1_000_000 * 76 // 80


def test_slow_kernels_save_what_their_bytes_do_not_need(tmp_path: Path) -> None:
    needed = 2 * 4 * 1024 * 1024 / V100_BANDWIDTH * 1e9
    saving = of("slow_bias_activation", tmp_path).saving_ns
    assert saving == pytest.approx(3 * (100_000 - needed), rel=1e-3)


def test_idle_time_is_saved_whole(tmp_path: Path) -> None:
    loading = of("data_loading", tmp_path)
    assert loading.estimate_ns == 50_200
    assert loading.figures["culprit"] == (
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    )


def test_a_saving_is_of_a_step_and_device() -> None:
    def put(run: Run) -> None:
        run.name("transpose", category="layout")
        run.convolution("implicit_gemm", stride=2, layout=300_000, tensor_core=True)

    one = found(advise(run_of(put)), "layout_changes")
    assert one.saving_ns == 300_000
    assert one.saving_share == pytest.approx(300_000 / WALL)


def test_the_warm_up_is_no_part_of_it() -> None:
    run = Run()
    for wall in (5 * WALL, WALL, WALL, WALL):
        run.next_step(wall)
        run.put_copy("HtoD", 1_000_000 * wall // WALL, bytes=4_000_000, source_memory="pageable")
    finding = found(advise(run.build()), "pageable_copies")
    assert finding.saving_ns == 1_000_000
    assert finding.figures["count"] == 1


def test_the_largest_saving_is_first_and_what_saves_nothing_last() -> None:
    def put(run: Run) -> None:
        run.convolution("implicit_gemm")
        run.convolution("implicit_gemm", stride=2, layout=500_000, tensor_core=True)

    advice = advise(run_of(put))
    savings = [finding.saving_ns for finding in advice.findings]
    assert savings == sorted(savings, reverse=True)
    assert len(savings) > 1
    assert "overlap" in advice.notes[0]


def late(run: Scenario, *, dispatching: bool) -> None:
    """Leave the device idle for 500 us during an operator or before it, in an allocation for 50."""
    kernel = {"duration": 60_000, "name": "gemm", "blocks": 1_000}
    run.operator("aten::mm", 0 if dispatching else 550_000, 620_000)
    for at in (0, 560_000, 671_000):
        run.launch(at=at, begins=at + 1_000, **kernel)  # type: ignore[arg-type]
    run.malloc(570_000, 670_000)


@pytest.mark.parametrize("dispatching", [True, False])
def test_idle_time_during_operators_is_an_upper_bound_and_no_prediction(
    tmp_path: Path, *, dispatching: bool
) -> None:
    """The profiler makes operators slower, not what runs between them."""
    run = Scenario()
    late(run, dispatching=dispatching)
    advice = advise(nsys(run, tmp_path))
    kinds = {one.rule.id: (one.kind, saving(one)[:2]) for one in advice.findings}
    assert kinds["host_bound"] == (("upper bound", "≤ ") if dispatching else ("estimate", "≈ "))
    assert kinds["allocation"] == ("estimate", "≈ ")
    bound, other = (found(advice, rule).saving_ns for rule in ("host_bound", "allocation"))
    assert bound > 5 * other
    expected = ["allocation", "host_bound"] if dispatching else ["host_bound", "allocation"]
    assert [*kinds] == expected


def test_mostly_idle_devices_have_a_note(tmp_path: Path) -> None:
    for length, reported in ((300_000, True), (50_000, False)):
        folder = tmp_path / str(length)
        folder.mkdir()
        notes = advise(gap(None, length)(folder)).notes
        assert any("GPU utilization" in note for note in notes) is reported


def test_no_findings_has_a_note() -> None:
    assert advise(run_of(lambda run: None)).notes != ()
    assert advise(TraceBuilder().build()).notes == ("no device activity: no findings",)


def test_unknown_values_are_left_out_of_the_sentence(tmp_path: Path) -> None:
    def put(run: Run) -> None:
        run.put_copy("HtoD", 1_000_000, bytes=4_000_000, source_memory="pageable")

    known = sentence(found(advise(run_of(put)), "pageable_copies"))
    unknown = sentence(found(advise(run_of(put, name=None, compute_capability=None)),
                             "pageable_copies"))  # fmt: skip
    assert "of the link's peak" in known
    assert "peak" not in unknown
    assert "4.00 GB/s" in known
    assert "4.00 GB/s" in unknown


def test_hidden_copies_are_no_finding(tmp_path: Path) -> None:
    hidden = advise(copies(1, 4_000_000, 1_000_000, "pageable", hidden=True)(tmp_path))
    assert "pageable_copies" not in {finding.rule.id for finding in hidden.findings}


def test_a_saving_is_at_most_the_step_where_the_host_runs_ahead() -> None:
    """Steps of 10 us on the host launch convolutions of 700 us that change the layout for 300."""
    run = Run()
    for _ in range(STEPS):
        begin = run.end
        run.step_row = run.step(run.number + 1, begin, 10_000)
        run.number, run.end, run.at = run.number + 1, begin + 10_000, max(run.at, begin)
        run.convolution("implicit_gemm", layout=300_000, tensor_core=True)
        run.put_copy("HtoD", 500_000, bytes=100)
    advice = advise(run.build())
    layout = found(advice, "layout_changes")
    assert layout.saving_share == pytest.approx(300 / 1500)
    assert all(finding.saving_share <= 1 for finding in advice.findings)
    shares = [one.of(Figures(run.build())) for one in METRICS if one.unit == "share"]
    assert all(share is None or 0 <= share <= 1 for share in shares)


def test_a_row_of_one_device_is_divided_by_the_steps_of_that_device() -> None:
    b = TraceBuilder(framework="PyTorch")
    for number in range(4):
        row = b.step(number, number * 1_000_000, 1_000_000)
        # Device 1 works in the last two steps only.
        for device in range(2 if number > 1 else 1):
            b.kernel("k", number * 1_000_000, 400_000, step=row, device=device)
            b.kernel("k", number * 1_000_000 + 700_000, 300_000, step=row, device=device)
    figures = Figures(b.build())
    evidence = pl.DataFrame({"device": [0, 1], "time_ns": [1_200_000, 600_000]})
    shown = per_step(evidence, figures)
    assert shown["step_ns"].to_list() == [300_000, 300_000]
    # A row of all devices has the mean of both.
    whole = per_step(evidence.select("time_ns").sum(), figures)
    assert whole["step_ns"].to_list() == [1_800_000 // 6]


def test_means_of_several_devices_have_no_total(tmp_path: Path) -> None:
    finding = of("launch_bound", tmp_path)
    one = finding.evidence.with_columns(step_ns=pl.col("time_ns"))
    both = pl.concat([one, one.with_columns(device=pl.lit(1, pl.Int32))])
    for evidence, added in ((one, True), (both, False)):
        (shown,) = findings_of([replace(finding, evidence=evidence)], evidence=True)
        assert shown.evidence is not None
        assert ("step_ns" in shown.evidence.totals) is added
        assert "time_ns" in shown.evidence.totals


def test_waits_for_a_late_rank_are_not_saved_by_overlap(tmp_path: Path) -> None:
    compute = even(4, 5, 1, spread=0) // 2
    compute[2] += 5_000_000
    Job(compute).write(tmp_path)
    advice = advise(traceana.open(tmp_path))
    finding = found(advice, "exposed_communication")
    # Three of four ranks wait 5 ms; the transfers take 0.4 ms.
    assert sentence(finding) == (
        "late ranks delay the step by 5.00 ms: rank 2 is last in 5 of 5 collectives; exposed "
        "4.15 ms of 4.15 ms collective time; overlap saves at most 400.0 µs"
    )
    assert finding.saving_ns == 5_000_000
    changes = dict(findings_of([finding])[0].details)
    assert "traceana ranks" in changes["PyTorch"]
    assert "bucket" not in changes["PyTorch"]
    limits = advice.bottleneck
    assert limits is not None
    assert limits.bound == "communication-bound"
    assert limits.cause is not None
    cause, share = limits.cause
    assert cause == "late_rank"
    assert share == pytest.approx(3.75 / 10.4)
    assert limits.shortened_by(finding.rule.id)


def test_measured_steps_of_no_time_have_no_savings() -> None:
    """A copy of the first step outlasts the others, so that these end when it ends."""
    b = TraceBuilder()
    b.name("reduce", category="collective", function="all_reduce")
    for number in range(3):
        start = number * 60_000
        row = b.step(number, start, 58_000)
        b.copy("HtoD", start + 1000, 1000 if number else 10**9, step=row, bytes=8, stream=7)
        b.kernel("reduce", start + 5000, 30_000, step=row, stream=9)
    assert "exposed_communication" not in {one.rule.id for one in advise(b.build()).findings}
