"""Studies of convolution algorithms, from timings that are known and from traces."""

from __future__ import annotations

from typing import Any

import polars as pl

from tests.study.conftest import Make
from tests.support.traces import cnn_steps
from traceana.flops.timed_algorithms import AlgorithmStudy, Device, Layer, Measurement
from traceana.study import Name
from traceana.study.recorded_runs import Traced
from traceana.study.timed_convolutions import convolution_study

NS = 1_000


def layer(path: str, kernel: int) -> Layer:
    return Layer(
        path=path,
        in_channels=4,
        out_channels=8,
        input=(16, 16),
        output=(16, 16),
        kernel=(kernel, kernel),
        stride=(1, 1),
        padding=((kernel // 2, kernel // 2), (kernel // 2, kernel // 2)),
        dilation=(1, 1),
    )


def one(path: str, algorithm: str, batch: int, *times: int, **more: Any) -> Measurement:
    ok = bool(times)
    return Measurement(
        layer=path,
        direction="fprop",
        batch=batch,
        algorithm=algorithm,
        name=algorithm.upper(),
        status="ok" if ok else "unsupported",
        reason=None if ok else "stride",
        times_ns=times,
        **more,
    )


def timed(**changed: Any) -> AlgorithmStudy:
    """Return two layers at batch 1 and 2 by GEMM, and the first of them by Winograd too."""
    known: dict[str, Any] = {
        "library": "oneDNN",
        "library_version": "3.1",
        "device": Device(kind="cpu", name="Pentium III", threads=2),
        "network": "alexnet",
        "precision": "fp32",
        "layout": "own",
        "warm_up": 3,
        "tolerance": 1e-3,
        "recorded": "2026-01-01",
        "versions": {},
        "ended": None,
        "layers": (layer("conv1", 3), layer("conv2", 5)),
        "measurements": (
            one("conv1", "gemm", 1, 10 * NS, 12 * NS, 11 * NS, workspace_bytes=100),
            one("conv2", "gemm", 1, 20 * NS, workspace_bytes=300),
            one("conv1", "winograd", 1, 5 * NS, workspace_bytes=50),
            one("conv2", "winograd", 1),
            one("conv1", "gemm", 2, 21 * NS),
        ),
    }
    return AlgorithmStudy(**{**known, **changed})


def test_by_batch_adds_up_the_layers_and_counts_them() -> None:
    study = convolution_study(Name.ALGORITHMS, [timed()], [])
    rows = study.result.frame.select(
        "batch", "algorithm", "time_ns", "workspace_bytes", "layers", "of_layers"
    ).rows()
    assert rows == [
        (1, "winograd", 5 * NS, 50, 1, 2),
        (1, "gemm", 31 * NS, 300, 2, 2),
        (2, "gemm", 21 * NS, None, 1, 1),
    ]
    assert study.result.notes == ("times: over the layers that the algorithm ran on",)
    assert study.conditions == (
        "alexnet, Pentium III (2 threads), oneDNN 3.1, fp32: each algorithm timed alone, median, "
        "3 warm-up runs",
    )
    assert study.missing == ()


def test_by_layer_has_each_algorithm_and_why_one_has_no_time() -> None:
    frame = convolution_study(Name.LAYERWISE, [timed()], []).result.frame.filter(
        pl.col("batch") == 1
    )
    rows = frame.select("layer", "algorithm", "time_ns", "status").rows()
    assert rows == [
        ("conv1", "winograd", 5 * NS, "ok"),
        ("conv1", "gemm", 11 * NS, "ok"),
        ("conv2", "gemm", 20 * NS, "ok"),
        ("conv2", "winograd", None, "unsupported: stride"),
    ]
    direct = 2 * 16 * 16 * 8 * 4 * 9
    winograd, gemm = frame["executed_flops"].to_list()[:2]
    assert gemm == direct
    assert winograd < direct
    assert frame["direct_flops"][0] == direct


def test_an_interrupted_timing_has_a_note() -> None:
    study = convolution_study(Name.LAYERWISE, [timed(ended="interrupted")], [])
    assert "alexnet: measurement incomplete: interrupted" in study.result.notes


def test_two_timings_of_a_library_have_distinct_labels() -> None:
    study = convolution_study(Name.ALGORITHMS, [timed(), timed()], [])
    assert set(study.result.frame["run"]) == {"oneDNN 3.1", "oneDNN 3.1 (2)"}
    study = convolution_study(Name.ALGORITHMS, [timed(), timed(precision="tf32")], [])
    assert set(study.result.frame["run"]) == {"oneDNN 3.1, fp32, own", "oneDNN 3.1, tf32, own"}


def test_a_recorded_run_shows_what_was_chosen(make: Make) -> None:
    traced = [Traced(make(batch=4), cnn_steps())]
    frame = convolution_study(Name.ALGORITHMS, [], traced).result.frame
    assert frame.select("direction", "batch", "algorithm", "time_ns", "calls").rows() == [
        ("forward", 4, "winograd", 600, 1.0),
        ("forward", 4, "implicit_precomp_gemm", 1000, 1.0),
        ("backward", 4, "implicit_precomp_gemm", 2000, 1.0),
    ]
    by_layer = convolution_study(Name.LAYERWISE, [], traced).result.frame
    assert by_layer.select("layer", "direction", "algorithm", "time_ns").rows() == [
        ("features.0", "forward", "implicit_precomp_gemm", 1000),
        ("features.0", "backward", "implicit_precomp_gemm", 2000),
        ("features.2", "forward", "winograd", 650),
    ]


def test_without_input_both_name_the_commands_to_run() -> None:
    for study in (
        convolution_study(Name.ALGORITHMS, [], []),
        convolution_study(Name.LAYERWISE, [], []),
    ):
        assert study.result.frame.is_empty()
        assert "python -m workloads.algorithms" in study.missing[0]
