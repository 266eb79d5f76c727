"""Tables of several runs, of runs in which every figure is known."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import polars as pl
import pytest

import traceana
from tests.support.synthetic.scenario import Scenario
from tests.support.synthetic.traces import kineto, nsys
from tests.support.traces import TraceBuilder
from tests.support.training import KERNELS, training
from traceana.comparison.compared_run import NO_TILE, OTHER, Run, run_flops, step_flops
from traceana.comparison.run_tables import (
    epilogues,
    gemms,
    layer_table,
    sgemms,
    summary_table,
    transfers,
    work,
)
from traceana.result import ratio
from traceana.vocabulary.option_words import CompareBy, WorkBy

PLAIN = "maxwell_sgemm_128x64_nn"
BATCHED = "maxwell_sgemmBatched_128x64_raggedMn_nn"
STRIDED = "sgemm_strided_batched_sm35_ldg_nn_64x16x128x8x32"
HALF = "volta_h884gemm_256x64_ldg8_nt"
RELU = (
    "void cudnn::detail::activation_fw_4d_kernel<float, float, 128, 1, 4, "
    "cudnn::detail::relu_func<float>>(cudnnTensorStruct, float const*)"
)
BIAS = "void tensorflow::BiasNHWCKernel<float>(int, float const*, float const*, float*, int)"
FUSED = "maxwell_scudnn_128x64_relu_small_nn_v1"

Work = Sequence[tuple[str, int]]

CAFFE: Work = ((PLAIN, 1000), (PLAIN, 3000), (RELU, 400), (FUSED, 2000))
TENSORFLOW: Work = ((PLAIN, 500), (BATCHED, 700), (STRIDED, 900), (HALF, 250), (BIAS, 300))


def scenario(work: Work, *, steps: int = 3, copies: int = 0) -> Scenario:
    """Return steps of one kernel after the other, before them ``copies`` of 4096 bytes in 512 ns.

    A kernel begins 100 ns after the one before it has ended.
    """
    found = Scenario()
    at = 0
    for number in range(1, steps + 1):
        begin = at
        for _ in range(copies):
            found.copy("HtoD", 4096, at=at, begins=at + 100, duration=512, memory="pageable")
            at += 612
        for name, duration in work:
            found.launch(at=at, begins=at + 100, duration=duration, name=name)
            at += 100 + duration
        found.step(number, begin, at)
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folders = [tmp_path_factory.mktemp(name) for name in ("caffe", "tensorflow")]
    return [
        Run("caffe", nsys(scenario(CAFFE), folders[0])),
        Run(
            "tensorflow",
            kineto(scenario(TENSORFLOW, copies=2), folders[1]).with_meta(as_recorded=True),
        ),
    ]


def rows(frame: pl.DataFrame, *columns: str) -> list[tuple[object, ...]]:
    return list(frame.select(columns).iter_rows())


def test_gemms_are_split_as_in_the_table_of_trindade_and_lima(runs: list[Run]) -> None:
    found = gemms(runs).frame.filter(pl.col("gemm") != OTHER)
    figures = ("run", "gemm", "form", "precision", "library", "calls", "time_ns", "step_ns")
    assert sorted(rows(found, *figures)) == [
        ("caffe", "128x64_nn", "plain", "fp32", "cublas", 6, 12_000, 4000),
        ("tensorflow", "128x64_nn", "batched", "fp32", "cublas", 3, 2100, 700),
        ("tensorflow", "128x64_nn", "plain", "fp32", "cublas", 3, 1500, 500),
        ("tensorflow", "256x64_nt", "plain", "fp16", "cublas", 3, 750, 250),
        ("tensorflow", "64x16x128_nn", "strided batched", "fp32", "cublas", 3, 2700, 900),
    ]


def test_sgemm_is_single_precision_alone(runs: list[Run]) -> None:
    found = sgemms(runs)
    assert set(found.frame["precision"]) == {"fp32"}
    assert found.frame["time_ns"].sum() == 12_000 + 2100 + 1500 + 2700
    wide = found.pivot()
    assert wide.height == 3
    plain = wide.row(by_predicate=pl.col("form") == "plain", named=True)
    assert (plain["caffe step_ns"], plain["tensorflow step_ns"]) == (4000, 500)
    assert (plain["caffe step_calls"], plain["tensorflow step_calls"]) == (2.0, 1.0)
    assert (plain["caffe to_first"], plain["tensorflow to_first"]) == (1.0, 0.125)
    batched = wide.row(by_predicate=pl.col("form") == "batched", named=True)
    assert batched["caffe step_ns"] is batched["tensorflow to_first"] is None


def test_bias_and_relu_have_the_library_that_ran_them(runs: list[Run]) -> None:
    found = epilogues(runs)
    reported = found.frame.filter(pl.col("operation") != OTHER)
    figures = ("run", "operation", "how", "library", "step_calls", "step_ns")
    assert sorted(rows(reported, *figures)) == [
        ("caffe", "relu", "fused", "cudnn", 1.0, None),
        ("caffe", "relu", "separate kernel", "cudnn", 1.0, 400),
        ("tensorflow", "bias", "separate kernel", "tensorflow", 1.0, 300),
    ]
    assert any(note.startswith("fused:") for note in found.notes)


def test_copies_have_count_bytes_throughput_and_duration(runs: list[Run]) -> None:
    found = transfers(runs)
    (row,) = found.frame.to_dicts()
    assert (row["run"], row["direction"], row["host_memory"]) == ("tensorflow", "HtoD", "pageable")
    assert (row["count"], row["bytes"], row["time_ns"]) == (6, 6 * 4096, 6 * 512)
    assert (row["step_count"], row["step_bytes"], row["step_ns"]) == (2.0, 8192, 1024)
    assert row["bytes_per_s"] == pytest.approx(8e9)
    assert row["to_first"] is None
    assert found.notes == ("caffe: no copies",)


def test_the_summary_is_of_a_step(runs: list[Run]) -> None:
    caffe, tensorflow = summary_table(runs).frame.to_dicts()
    assert (caffe["wall_ns"], tensorflow["wall_ns"]) == (6800, 4374)
    assert (caffe["to_first"], tensorflow["to_first"]) == (1.0, pytest.approx(4374 / 6800))
    assert (caffe["step_ns"], caffe["idle_ns"]) == (6400, 400)
    assert (tensorflow["step_ns"], tensorflow["idle_ns"]) == (2650 + 1024, 700)
    assert tensorflow["idle_share"] == pytest.approx(700 / 4374)
    counts = ("step_kernels", "step_launches", "step_copies")
    assert [caffe[one] for one in counts] == [4.0, 4.0, 0.0]
    assert [tensorflow[one] for one in counts] == [5.0, 7.0, 2.0]
    assert (caffe["steps"], caffe["batch"], caffe["image_ns"], caffe["flops"]) == (3, *[None] * 3)
    assert caffe["libraries"] == "cublas, cudnn"


@pytest.mark.parametrize("by", ["class", "algorithm", "kernel", "gemm"])
@pytest.mark.parametrize("time", ["time_ns", "step_ns"])
def test_rows_of_a_run_add_up_to_its_work(runs: list[Run], by: WorkBy, time: str) -> None:
    frame = work(runs, by).frame
    for run, whole in (("caffe", 6400), ("tensorflow", 3674)):
        steps = 3 if time == "time_ns" else 1
        assert frame.filter(run=run)[time].sum() == steps * whole


def test_an_item_has_one_number_in_all_runs(runs: list[Run]) -> None:
    found = gemms(runs)
    items = found.frame.select("item", *found.keys).unique()
    assert items["item"].n_unique() == items.height == found.pivot().height
    assert found.frame.filter(pl.col("gemm") == OTHER)["item"].unique().to_list() == [
        items.height - 1
    ]


def test_runs_without_steps_are_compared_as_a_whole(tmp_path: Path, runs: list[Run]) -> None:
    unmarked = scenario(CAFFE)
    unmarked.ranges.clear()
    # Two alike halves would be taken for steps by their period.
    unmarked.launch(at=90_000, begins=90_100, duration=50, name="another")
    pair = [runs[0], Run("unmarked", nsys(unmarked, tmp_path))]
    assert not pair[1].measured.marked
    found = gemms(pair)
    assert found.time == "time_ns"
    assert found.frame.filter(run="unmarked")["step_ns"].null_count() == 2
    assert found.notes[0].startswith("no steps marked in unmarked")
    assert found.frame["to_first"].null_count() == found.frame.height
    assert summary_table(pair).frame["to_first"].to_list() == [None, None]
    alike = [Run(label, pair[1].trace) for label in ("one", "other")]
    assert summary_table(alike).frame["to_first"].to_list() == [1.0, 1.0]
    assert "equal kernel counts" in gemms(alike).notes[0]
    summary = summary_table(pair).frame
    # The capture includes the steps, which begin before their first kernel.
    assert summary["wall_ns"].to_list() == [3 * 6800, 90_150 - 100]
    assert summary["steps"].to_list() == [3, None]


def test_a_run_without_gemms_or_layers_has_a_note(runs: list[Run]) -> None:
    copies = TraceBuilder()
    copies.copy("DtoH", 0, 10, bytes=5)
    pair = [runs[0], Run("copies", copies.build())]
    assert "copies: no GEMMs" in gemms(pair).notes
    assert "copies: no SGEMM" in sgemms(pair).notes
    assert "copies: no bias additions or activations" in epilogues(pair).notes
    layers = layer_table(pair)
    assert {"caffe: no layers", "copies: no layers"} <= set(layers.notes)
    assert set(layers.frame["role"]) == {"unattributed"}


def test_a_gemm_without_a_tile_in_its_name() -> None:
    builder = TraceBuilder()
    builder.name("gemv", category="gemm", precision="fp32")
    builder.name("Cijk_Ailk_Bljk_SB_MT64x64x8", category="gemm", batched=True)
    builder.name("Cijk_Ailk_Bljk_SB_GB_MT64x64x8", category="gemm", batched=True)
    for at, name in enumerate(builder._names):
        builder.kernel(name, 10 * at, 10)
    found = gemms([Run("a", builder.build())]).frame
    assert set(found["gemm"]) == {NO_TILE}
    assert set(found["form"]) == {"plain or batched", "strided batched", "batched"}


def test_the_size_of_copies_is_null_where_one_is_unknown() -> None:
    builder = TraceBuilder()
    builder.copy("HtoD", 0, 10, bytes=5, source_memory="pinned")
    builder.copy("HtoD", 10, 10, source_memory="pinned")
    one = builder.build()
    assert transfers([Run("a", one)]).frame["bytes"].to_list() == [None]
    moved = traceana.diff(one, one).summary.by("transfer").filter(direction="HtoD")
    assert rows(moved, "bytes_a", "bytes_b", "bytes_per_s_a") == [(None, None, None)]


@pytest.mark.exhaustive(after=2)
@pytest.mark.parametrize("by", ["class", "algorithm", "kernel", "gemm", "transfer", "layer"])
def test_a_comparison_of_two_runs_equals_their_diff(by: str) -> None:
    slower = {**KERNELS, "conv2": (("implicit", 700_000), ("hgemm", 40_000))}
    pair = {"a": training(seed=1), "b": training(seed=2, kernels=slower, copies=3)}
    table = traceana.compare(pair).summary.by(by)
    difference = traceana.diff(*pair.values()).summary.by(by)
    calls = "step_count" if by == "transfer" else "step_calls"
    for side in "ab":
        keys = [side] if by == "layer" else list(table.keys)
        expected = difference.filter(
            pl.col(f"calls_{side}") > 0,
            *([pl.col("direction") != OTHER] if by == "transfer" else []),
        ).select(*keys, f"calls_{side}", f"time_{side}_ns")
        found = table.frame.filter(run=side).select(
            *(["path"] if by == "layer" else keys), calls, "step_ns"
        )
        assert sorted(map(str, found.iter_rows())) == sorted(map(str, expected.iter_rows()))


def test_python_gives_frames_and_needs_two_runs() -> None:
    found = traceana.compare([training(seed=1), training(seed=2)]).summary
    assert [run.label for run in found.runs] == ["built", "built (2)"]
    for by in get_args(CompareBy):
        frame = found.by(by).frame
        assert frame["run"].unique().sort().to_list() == ["built", "built (2)"]
    with pytest.raises(ValueError, match="two or more"):
        traceana.compare([training(seed=1)])


def test_the_first_run_is_exactly_as_slow_as_itself() -> None:
    for time in range(1000, 1040):
        rows = pl.DataFrame({"time": [time, 2 * time + 1], "first": [time, time]})
        assert rows.select(ratio(pl.col("time"), pl.col("first"))).item(0, 0) == 1, time


@pytest.mark.slow
def test_compare_and_diff_are_functions_whatever_was_imported_before() -> None:
    before = "import traceana.comparison.run_tables, traceana.comparison.diff, traceana"
    after = "import traceana; traceana.compare, traceana.diff; import traceana.comparison.diff"
    for imports in (before, after):
        said = "print(type(traceana.compare).__name__, type(traceana.diff).__name__)"
        ran = subprocess.run(
            [sys.executable, "-c", f"{imports}; {said}"], capture_output=True, text=True
        )
        assert ran.stdout.split() == ["function", "function"], ran.stderr


def test_flops_of_a_part_of_the_products_are_not_shown() -> None:
    trace = traceana.open(
        Path(__file__).parents[2] / "fixtures" / "alexnet-cpu-torchscript.json.gz"
    )
    assert step_flops(trace)
    assert run_flops(trace) is None
