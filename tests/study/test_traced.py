"""Studies of traces in which every figure is known."""

from __future__ import annotations

import polars as pl
import pytest

from tests.study.conftest import Make
from tests.support.traces import TraceBuilder, cnn_steps
from tests.support.training import training
from traceana.comparison.compared_run import Run
from traceana.comparison.run_tables import work
from traceana.study import Name
from traceana.study.recorded_runs import Traced
from traceana.study.trace_tables import of_basis, traced_study
from traceana.trace import Tables, Trace


@pytest.fixture
def pair(make: Make) -> list[Traced]:
    """Return two runs of one network: three steps of a small CNN, and the same without marks."""
    runs = [make(device_kind="GPU"), make(device_kind="GPU", framework="JAX")]
    return [Traced(run, cnn_steps()) for run in runs]


def products() -> Trace:
    """Return two steps: 128x64_nn twice plain (10 ns each), 64x64_nt batched (30 ns), a half."""
    builder = TraceBuilder(framework="PyTorch")
    single = {"category": "gemm", "precision": "fp32"}
    builder.name("sgemm_128x64_nn", **single, tile="128x64", gemm_layout="nn", batched=False)
    builder.name("sgemm_64x64_nt_batched", **single, tile="64x64", gemm_layout="nt", batched=True)
    builder.name("hgemm", category="gemm", precision="fp16", tile="9x9", batched=False)
    for number, start in enumerate((0, 1000)):
        step = builder.step(number, start, 1000)
        builder.kernel("sgemm_128x64_nn", start, 10, step=step)
        builder.kernel("sgemm_128x64_nn", start + 20, 10, step=step)
        builder.kernel("sgemm_64x64_nt_batched", start + 40, 30, step=step)
        builder.kernel("hgemm", start + 80, 7, step=step)
    return builder.build()


def test_frameworks_has_each_layer_forward_and_backward_a_step(pair: list[Traced]) -> None:
    frame = traced_study(Name.FRAMEWORKS, pair).result.frame
    first = frame.filter(pl.col("run") == "PyTorch", pl.col("layer") == "features.0").to_dicts()
    assert [(row["forward_ns"], row["backward_ns"], row["time_ns"]) for row in first] == [
        (1000, 2000, 3000)
    ]
    assert set(frame["per"]) == {"step"}
    assert frame.group_by("run").agg(pl.col("time_ns").sum()).sort("run").rows() == [
        ("JAX", 4400),
        ("PyTorch", 4400),
    ]


def test_a_run_without_steps_makes_figures_those_of_recordings(make: Make) -> None:
    whole = training(steps=4, noise=0)
    unmarked = Trace(whole.meta, Tables({**_tables(whole), "steps": whole.tables.steps.head(0)}))
    study = traced_study(
        Name.FRAMEWORKS, [Traced(make(), whole), Traced(make(framework="JAX"), unmarked)]
    )
    frame = study.result.frame.filter(pl.col("layer") == "conv1")
    assert frame["forward_ns"].to_list() == [4 * 200_000, 4 * 200_000]
    assert set(frame["per"]) == {"recording"}
    assert any("whole recordings" in note for note in study.result.notes)


def _tables(trace: Trace) -> dict[str, pl.DataFrame]:
    return {name: trace.tables[name] for name in ("activities", "names", "layers", "devices")}


def test_networks_are_not_mixed(make: Make) -> None:
    traced = [Traced(make(network=name), cnn_steps()) for name in ("alexnet", "vgg16")]
    frame = traced_study(Name.FRAMEWORKS, traced).result.frame
    assert set(frame["network"]) == {"alexnet", "vgg16"}
    assert set(frame["to_first"].drop_nulls()) == {1.0}


def test_epilogues_leave_the_other_work_out(pair: list[Traced]) -> None:
    frame = traced_study(Name.EPILOGUES, pair).result.frame
    assert frame.select("run", "operation", "direction", "time_ns").rows() == [
        ("PyTorch", "relu", "forward", 200),
        ("JAX", "relu", "forward", 200),
    ]


def test_sgemm_by_tile_and_form(make: Make) -> None:
    frame = traced_study(Name.SGEMM, [Traced(make(), products())]).result.frame
    assert frame.select("gemm", "form", "calls", "time_ns", "mean_ns").rows() == [
        ("64x64_nt", "batched", 1.0, 30, 30),
        ("128x64_nn", "plain", 2.0, 20, 10),
    ]


def test_transfers_by_direction_and_memory(pair: list[Traced]) -> None:
    frame = traced_study(Name.TRANSFERS, pair).result.frame
    rows = frame.select("direction", "host_memory", "count", "bytes", "time_ns").rows()
    assert rows == [("HtoD", "pageable", 1.0, 4096, 100)] * 2
    assert frame["bytes_per_s"][0] == pytest.approx(4096 / 100 * 1e9)


@pytest.mark.parametrize("name", [Name.FRAMEWORKS, Name.EPILOGUES, Name.SGEMM, Name.TRANSFERS])
def test_without_runs_each_error_names_the_command(name: Name, pair: list[Traced]) -> None:
    empty = traced_study(name, [])
    assert empty.result.frame.is_empty()
    assert "traceana record --framework pytorch --network alexnet" in empty.missing[0]
    assert (
        "record another: traceana record --framework jax" in traced_study(name, pair[:1]).missing[0]
    )
    assert traced_study(name, pair).missing == ()


@pytest.mark.parametrize("name", [Name.SGEMM, Name.TRANSFERS])
def test_what_only_a_gpu_has_is_asked_of_one(name: Name, make: Make) -> None:
    (sentence,) = traced_study(name, [Traced(make(), cnn_steps())] * 2).missing
    assert "--device cuda" in sentence


def test_what_no_measured_step_ran_has_no_row() -> None:
    builder = TraceBuilder()
    for name, algorithm in (("once", "fft"), ("each", "winograd")):
        builder.name(name, category="conv", algorithm=algorithm)
    builder.kernel("once", 0, 500)
    for number in range(5):
        step = builder.step(number, 1000 * (number + 1), 1000)
        builder.kernel("each", 1000 * (number + 1), 500, step=step)
    table = of_basis(work([Run("a", builder.build())], "algorithm"))
    assert table.select("algorithm", "calls").rows() == [("winograd", 1.0)]
