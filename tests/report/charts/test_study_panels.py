"""The picture of each study has the values of its frame."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pytest

from tests.report.charts.test_panels import picture_file
from tests.study.conftest import Make
from tests.study.conftest import make as make
from tests.study.test_convolutions import timed
from tests.study.test_traced import products
from tests.support.traces import cnn_steps
from traceana.report.pages.study import picture_of
from traceana.report.panels import Panel, Panels
from traceana.study import Name
from traceana.study.recorded_runs import Traced
from traceana.study.step_times import Communication, batch_study, ratio_study, scaling_study
from traceana.study.study import Study, with_published
from traceana.study.timed_convolutions import convolution_study
from traceana.study.trace_tables import (
    traced_study,
)

pytestmark = pytest.mark.slow

MS = 1_000_000
DEAD = {"complete": False, "reason": "out of memory", "steps_ns": ()}


def bars_of(panel: Panel) -> dict[tuple[str, str], float]:
    return {
        (bars.label, row): value
        for bars in panel.bars
        for row, value in zip(panel.rows, bars.values, strict=True)
        if value is not None
    }


def drawn(study: Study) -> Panels:
    """Return the picture of ``study``, which can be drawn."""
    picture = picture_of(study)
    assert picture_file(picture, "svg")
    return picture


def test_batch(make: Make) -> None:
    runs = [make(batch=batch) for batch in (1, 2)]
    runs += [make(batch=4, **DEAD), make(batch=1, framework="JAX", network="vgg16")]
    alexnet, vgg = drawn(batch_study(runs)).panels
    assert (alexnet.title, vgg.title) == ("alexnet", "vgg16")
    assert (alexnet.x.log, alexnet.y.log if alexnet.y else None) == (2, 10)
    (line,) = alexnet.lines
    assert list(zip(line.x, line.y, strict=True)) == [(1, 10.0), (2, 5.0)]
    assert (line.low, line.high) == ([9.5, 4.75], [11.0, 5.5])
    assert [(one.x, one.reason) for one in line.failures] == [(4, "out of memory")]
    assert alexnet.y is not None
    assert alexnet.y.label == "time per image (ms)"


def test_batch_of_runs_that_all_died(make: Make) -> None:
    (panel,) = drawn(batch_study([make(batch=4, **DEAD)])).panels
    assert not panel.lines[0].x


def test_ratio(make: Make) -> None:
    runs = [make(), make(framework="JAX", steps_ns=(20 * MS,)), make(framework="Keras", **DEAD)]
    (panel,) = drawn(ratio_study(runs)).panels
    row = "alexnet, batch 8, CPU"
    assert bars_of(panel) == {("PyTorch", row): 1.0, ("JAX", row): 0.5}
    assert [list(bars.notes) for bars in panel.bars] == [[None], [None], ["out of memory"]]
    assert panel.mark == 1.0


def test_scaling(make: Make) -> None:
    runs = [
        make(folder=str(n), batch=64, devices=n, steps_ns=(80 * MS // n + 10 * MS * (n - 1),))
        for n in (1, 2, 4)
    ]
    reported = Communication(10 * MS, 5 * MS, 0.2, 0.1, None)
    speed, share = drawn(scaling_study(runs, [None, reported, reported])).panels
    lines = {line.label: dict(zip(line.x, line.y, strict=True)) for line in speed.lines}
    assert lines["batch 64"] == pytest.approx({1: 1.0, 2: 80 / 50, 4: 80 / 50})
    assert lines["model O(N-1)"] == pytest.approx(lines["batch 64"])
    assert lines["ideal"] == {1: 1, 2: 2, 4: 4}
    assert [(line.label, list(line.x), list(line.y)) for line in share.lines] == [
        ("batch 64", [2, 4], [20.0, 20.0])
    ]


def pair(make: Make) -> Sequence[Traced]:
    return [Traced(make(), cnn_steps()), Traced(make(framework="JAX"), cnn_steps())]


def test_frameworks(make: Make) -> None:
    forward, backward = drawn(traced_study(Name.FRAMEWORKS, pair(make))).panels
    assert list(forward.rows) == ["features.0", "features.1", "features.2", "classifier"]
    assert bars_of(forward)["PyTorch", "features.0"] == 1.0
    assert forward.x.label == "time (µs)"
    assert bars_of(backward)["JAX", "features.0"] == 2.0


def test_both_passes_are_drawn_to_one_scale(make: Make) -> None:
    study = traced_study(Name.FRAMEWORKS, pair(make))
    longer = study.result.frame.with_columns(pl.col("backward_ns") * 10_000)
    picture = drawn(Study(study.name, study.title, (), type(study.result)(longer, {}, ())))
    assert [panel.x.label for panel in picture.panels] == ["time (ms)", "time (ms)"]
    assert bars_of(picture.panels[0])["PyTorch", "features.0"] == 0.001
    assert picture.one_scale


def test_too_many_layers_are_cut_with_a_note(make: Make) -> None:
    study = traced_study(Name.FRAMEWORKS, pair(make)[:1])
    row = study.result.frame.filter(pl.col("layer") == "features.0")
    many = [
        row.with_columns(
            pl.lit(f"layer {n:02}").alias("layer"),
            *(pl.lit(n).alias(name) for name in ("time_ns", "forward_ns", "backward_ns")),
        )
        for n in range(50)
    ]
    frame = pl.concat([one.cast(study.result.frame.schema) for one in many])
    result = type(study.result)(frame, {}, ())
    picture = drawn(Study(study.name, study.title, (), result))
    assert picture.conditions == ["30 of 50 rows, by time"]
    assert list(picture.panels[0].rows) == [f"layer {n:02}" for n in range(20, 50)]


def test_epilogues_with_what_was_printed(make: Make) -> None:
    (panel,) = drawn(with_published(traced_study(Name.EPILOGUES, pair(make)))).panels
    found = bars_of(panel)
    assert found["Theano 0.8.2 (Kim et al. 2017, Table IV)", "bias"] == 7.88
    assert found["PyTorch", "relu, forward"] == 0.0002
    assert [bars.printed for bars in panel.bars] == [False] * 2 + [True] * 5


def test_sgemm(make: Make) -> None:
    time, calls = drawn(traced_study(Name.SGEMM, [Traced(make(), products())])).panels
    assert bars_of(time) == {
        ("PyTorch", "64x64_nt, batched"): 30.0,
        ("PyTorch", "128x64_nn, plain"): 20.0,
    }
    assert bars_of(calls)["PyTorch", "128x64_nn, plain"] == 2.0


def test_transfers(make: Make) -> None:
    size, throughput, time = drawn(traced_study(Name.TRANSFERS, pair(make))).panels
    key = ("PyTorch", "HtoD, pageable")
    assert bars_of(size)[key] == 4.096
    assert bars_of(throughput)[key] == pytest.approx(40.96)
    assert bars_of(time)[key] == 100


def test_algorithms() -> None:
    time, memory = drawn(convolution_study(Name.ALGORITHMS, [timed()], [])).panels
    lines = {line.label: dict(zip(line.x, line.y, strict=True)) for line in time.lines}
    # Winograd ran on conv1 alone at batch 1: there the sums are over conv1.
    assert lines == {"GEMM": {1: 11.0, 2: 21.0}, "Winograd": {1: 5.0}}
    assert {line.label: list(line.y) for line in memory.lines} == {
        "GEMM": [300.0],
        "Winograd (not on all layers)": [50.0],
    }
    assert time.title == "forward"


def test_algorithms_of_traces_without_batch(make: Make) -> None:
    forward, backward = drawn(
        convolution_study(Name.ALGORITHMS, [], [Traced(make(batch=None), cnn_steps())])
    ).panels
    assert bars_of(forward) == {
        ("PyTorch", "Winograd"): 0.6,
        ("PyTorch", "implicit precomp GEMM"): 1.0,
    }
    assert bars_of(backward) == {("PyTorch", "implicit precomp GEMM"): 2.0}


def test_layerwise_is_of_the_largest_batch_with_operations_beside() -> None:
    study = convolution_study(Name.LAYERWISE, [timed(measurements=timed().measurements[:4])], [])
    time, operations = drawn(study).panels
    assert bars_of(time) == {
        ("Winograd", "conv1"): 5.0,
        ("GEMM", "conv1"): 11.0,
        ("GEMM", "conv2"): 20.0,
    }
    direct = 2 * 16 * 16 * 8 * 4 * 9
    assert bars_of(operations)["GEMM", "conv1"] == direct / 1e3
    whole = drawn(convolution_study(Name.LAYERWISE, [timed()], []))
    assert whole.title.endswith("batch 2")
