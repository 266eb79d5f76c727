"""The picture of each study has the values of its frame."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.study.conftest import Make
from tests.study.conftest import make as make
from tests.study.test_convolutions import timed
from tests.study.test_traced import products
from tests.study.test_trials import PATTERN
from tests.study.test_trials import sweep as sweep
from tests.support import charts
from tests.support.traces import cnn_steps
from traceana.report.charts.colours import PALETTE
from traceana.report.charts.plot import page_file
from traceana.report.charts.specification import specification
from traceana.report.page import Chart, Data, Facts, Page, Panels, Rows
from traceana.report.pages.study_pictures import picture_of
from traceana.study import Name
from traceana.study.recorded_runs import Traced
from traceana.study.step_times import Communication, batch_study, ratio_study, scaling_study
from traceana.study.study import Study, with_published
from traceana.study.timed_convolutions import convolution_study, trials_study
from traceana.study.trace_tables import traced_study
from traceana.study.trials import find_trials, read_trials

MS = 1_000_000
DEAD = {"complete": False, "reason": "out of memory", "steps_ns": ()}


def drawn(study: Study, *remarks: str) -> tuple[Chart, ...]:
    """Return the charts of ``study``, which can be drawn, below ``remarks``."""
    *above, panels = picture_of(study)
    assert [row for block in above if isinstance(block, Facts) for row in block.rows] == [
        ("", remark) for remark in remarks
    ]
    assert isinstance(panels, Panels)
    assert page_file(Page("study", (panels,), Data(Rows(pl.DataFrame()))), "svg")
    return panels.charts


def marks_of(chart: Chart, shape: str) -> dict[str, Any]:
    """Return the columns of the marks of a ``shape``, those of several together."""
    found: dict[str, Any] = {}
    for one in charts.drawn(chart):
        if one["shape"] == shape:
            for name, values in one.items():
                if isinstance(values, list):
                    found.setdefault(name, []).extend(values)
    return found


def bars_of(chart: Chart) -> dict[tuple[str, str], float]:
    """Return the length of each bar by series and row."""
    marks = marks_of(chart, "bar")
    return dict(zip(zip(marks["colour"], marks["y"], strict=True), marks["x"], strict=True))


def lines_of(chart: Chart, shape: str = "line") -> dict[str, dict[float, float]]:
    """Return the points of each line."""
    marks = marks_of(chart, shape)
    found: dict[str, dict[float, float]] = {}
    for name, x, y in zip(marks["colour"], marks["x"], marks["y"], strict=True):
        found.setdefault(name, {})[x] = y
    return found


def axis_of(chart: Chart, of: str) -> tuple[str, str]:
    """Return the title and the scale of an axis."""
    found = specification(chart)["layer"][0]["encoding"][of]
    return found["title"][0], found["scale"]["type"]


def test_batch(make: Make) -> None:
    runs = [make(batch=batch) for batch in (1, 2)]
    runs += [make(batch=4, **DEAD), make(batch=1, framework="JAX", network="vgg16")]
    alexnet, vgg = drawn(batch_study(runs), "shaded: interquartile range of the steps")
    assert (alexnet.title, vgg.title) == ("alexnet", "vgg16")
    assert axis_of(alexnet, "x") == ("batch size", "log")
    assert axis_of(alexnet, "y") == ("time per image (ms)", "log")
    assert lines_of(alexnet) == {"PyTorch": {1: 10.0, 2: 5.0}}
    band = marks_of(alexnet, "band")
    assert (band["y"], band["y_end"]) == ([9.5, 4.75], [11.0, 5.5])
    crosses = marks_of(alexnet, "cross")
    assert (crosses["x"], crosses["text"]) == ([4], ["out of memory \u00d7"])
    # Each batch has a tick, the failed one too.
    x = specification(alexnet)["layer"][0]["encoding"]["x"]["axis"]
    assert (x["values"], "tickCount" in x) == ([1, 2, 4], False)


def test_a_band_is_one_area_for_each_run(make: Make) -> None:
    runs = [make(batch=batch, framework=one) for batch in (1, 2, 4) for one in ("PyTorch", "JAX")]
    (chart,) = drawn(batch_study(runs), "shaded: interquartile range of the steps")
    svg = page_file(Page("study", (chart,), Data(Rows(pl.DataFrame()))), "svg").decode()
    areas = re.findall(r'<path d="([^"]*)" fill="[^"]*" opacity="0.15"', svg)
    # Through the upper bounds, and back through the lower ones.
    assert [len(re.findall("[ML]", area)) for area in areas] == [6, 6]


def test_batch_of_runs_that_all_died(make: Make) -> None:
    (panel,) = drawn(batch_study([make(batch=4, **DEAD)]))
    assert marks_of(panel, "cross")["x"] == [4]
    assert not marks_of(panel, "line")


def test_only_the_first_failure_of_a_reason_has_it(make: Make) -> None:
    runs = [make(batch=batch, **DEAD) for batch in (4, 8)]
    runs += [make(), make(batch=16, complete=False, reason="died", steps_ns=())]
    (chart,) = drawn(batch_study(runs), "shaded: interquartile range of the steps")
    assert marks_of(chart, "cross")["text"] == ["out of memory \u00d7", "\u00d7", "died \u00d7"]


def test_failures_of_two_runs_are_not_printed_over_each_other(make: Make) -> None:
    (chart,) = drawn(batch_study([make(**DEAD), make(framework="JAX", **DEAD)]))
    heights = [one["encoding"]["y"].get("value") for one in specification(chart)["layer"]]
    assert len(set(heights) - {None}) == 2


def test_ratio(make: Make) -> None:
    runs = [make(), make(framework="JAX", steps_ns=(20 * MS,)), make(framework="Keras", **DEAD)]
    (panel,) = drawn(ratio_study(runs), "images/s relative to PyTorch")
    row = "alexnet, batch 8, CPU"
    assert bars_of(panel) == {("PyTorch", row): 1.0, ("JAX", row): 0.5}
    values = marks_of(panel, "value")
    texts = dict(zip(values["colour"], values["text"], strict=True))
    assert texts == {"PyTorch": "1.00", "JAX": "0.50", "Keras": "out of memory"}
    assert marks_of(panel, "rule")["x"] == [1.0]


def test_networks_of_different_runs_have_references_of_their_own(make: Make) -> None:
    frameworks = ("PyTorch", "JAX", "Keras", "TensorFlow")
    runs = [make(framework=one, network=f"net{at}") for at, one in enumerate(frameworks)]
    drawn(ratio_study(runs), "images/s relative to PyTorch, JAX, Keras, TensorFlow")


def scaled(make: Make, batches: Sequence[int] = (64,)) -> Study:
    """Return series on 1, 2 and 4 devices, in which each further device costs 10 ms."""
    runs = [
        make(
            folder=f"{batch}/{n}",
            batch=batch,
            devices=n,
            steps_ns=(80 * MS // n + batch * MS * (n - 1) * 10 // 64,),
        )
        for batch in batches
        for n in (1, 2, 4)
    ]
    reported = Communication(10 * MS, 5 * MS, 0.2, 0.1, None)
    return scaling_study(runs, [reported if run.devices > 1 else None for run in runs])


def test_scaling(make: Make) -> None:
    speed, share = drawn(scaled(make))
    lines = lines_of(speed)
    assert lines == {"batch 64": pytest.approx({1: 1.0, 2: 80 / 50, 4: 80 / 50})}
    models = lines_of(speed, "rule")
    assert models == {"ideal": {1: 1, 2: 2, 4: 4}, "batch 64": pytest.approx(lines["batch 64"])}
    assert marks_of(speed, "text")["text"] == ["ideal", "model O(N-1)"]
    assert lines_of(share) == {"batch 64": {2: 0.2, 4: 0.2}}
    assert share.title == "PyTorch, alexnet: communication share"
    # A model has no colour of the palette.
    assert charts.drawn(speed)[2]["colours"] == {"batch 64": PALETTE[0]}


def test_models_of_two_series_are_two_lines(make: Make) -> None:
    speed, _ = drawn(scaled(make, (64, 128)))
    assert set(lines_of(speed, "rule")) == {"ideal", "batch 64", "batch 128"}
    assert sorted(marks_of(speed, "text")["text"]) == ["ideal", "model O(N-1)", "model O(N-1)"]


def pair(make: Make) -> Sequence[Traced]:
    return [Traced(make(), cnn_steps()), Traced(make(framework="JAX"), cnn_steps())]


def test_frameworks(make: Make) -> None:
    forward, backward = drawn(traced_study(Name.FRAMEWORKS, pair(make)))
    assert (forward.title, backward.title) == ("forward", "backward")
    rows = dict.fromkeys(row for _, row in bars_of(forward))
    assert list(rows) == ["features.0", "features.1", "features.2", "classifier"]
    assert bars_of(forward)["PyTorch", "features.0"] == 1.0
    assert axis_of(forward, "x") == ("time (µs)", "linear")
    assert bars_of(backward)["JAX", "features.0"] == 2.0


def test_both_passes_are_drawn_to_one_scale(make: Make) -> None:
    study = traced_study(Name.FRAMEWORKS, pair(make))
    longer = study.result.frame.with_columns(pl.col("backward_ns") * 10_000)
    both = drawn(
        Study(study.name, study.title, (), type(study.result)(longer, {}, (), study.result.columns))
    )
    shown = [specification(panel)["layer"][0]["encoding"]["x"] for panel in both]
    assert [one["title"] for one in shown] == [["time (ms)"], ["time (ms)"]]
    assert shown[0]["scale"]["domainMax"] == shown[1]["scale"]["domainMax"]
    assert bars_of(both[0])["PyTorch", "features.0"] == 0.001


def test_rows_of_one_run_alone_stand_where_they_belong(make: Make) -> None:
    study = traced_study(Name.FRAMEWORKS, pair(make))
    missing = (pl.col("run") == "PyTorch") & (pl.col("layer") == "features.1")
    frame = study.result.frame.with_columns(
        pl.when(~missing).then("forward_ns").alias("forward_ns")
    )
    forward, _ = drawn(
        Study(study.name, study.title, (), type(study.result)(frame, {}, (), study.result.columns))
    )
    rows = dict.fromkeys(marks_of(forward, "bar")["y"])
    assert list(rows) == ["features.0", "features.1", "features.2", "classifier"]


def test_too_many_layers_are_cut_with_a_remark(make: Make) -> None:
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
    result = type(study.result)(frame, {}, (), study.result.columns)
    forward, _ = drawn(Study(study.name, study.title, (), result), "30 of 50 rows, by time")
    assert [row for _, row in bars_of(forward)] == [f"layer {n:02}" for n in range(20, 50)]


def test_epilogues_with_what_was_printed(make: Make) -> None:
    (panel,) = drawn(with_published(traced_study(Name.EPILOGUES, pair(make))))
    found = bars_of(panel)
    assert found["Theano 0.8.2 (Kim et al. 2017, Table IV)", "bias"] == 7.88
    assert found["PyTorch", "ReLU, forward"] == pytest.approx(0.0002)
    marks = marks_of(panel, "bar")
    pale = dict(zip(marks["colour"], marks["faint"], strict=True))
    assert [*pale.values()] == [False] * 2 + [True] * 5


def test_sgemm(make: Make) -> None:
    time, calls = drawn(traced_study(Name.SGEMM, [Traced(make(), products())]))
    assert bars_of(time) == {
        ("PyTorch", "64x64_nt, batched"): 30.0,
        ("PyTorch", "128x64_nn, plain"): 20.0,
    }
    assert bars_of(calls)["PyTorch", "128x64_nn, plain"] == 2.0
    assert "2" in marks_of(calls, "value")["text"]


def test_transfers(make: Make) -> None:
    size, bandwidth, time = drawn(traced_study(Name.TRANSFERS, pair(make)))
    key = ("PyTorch", "HtoD, pageable")
    assert (bars_of(size)[key], axis_of(size, "x")[0]) == (4.096, "bytes (kB)")
    assert bars_of(bandwidth)[key] == pytest.approx(40.96)
    assert axis_of(bandwidth, "x")[0] == "bandwidth (GB/s)"
    assert bars_of(time)[key] == 100


def test_algorithms() -> None:
    remark = "times: sums over the layers on which all algorithms ran; * not on all layers"
    time, memory = drawn(convolution_study(Name.ALGORITHMS, [timed()], []), remark)
    # Winograd ran on conv1 alone at batch 1: there the sums are over conv1.
    assert lines_of(time) == {"GEMM": {1: 11.0, 2: 21.0}, "Winograd *": {1: 5.0}}
    assert lines_of(memory) == {"GEMM": {1: 300}, "Winograd *": {1: 50}}
    assert (time.title, memory.title) == ("forward", "forward: workspace")
    # A series has one colour in all panels.
    assert charts.drawn(time)[0]["colours"] == charts.drawn(memory)[0]["colours"]


def test_times_of_chosen_algorithms_are_beside_those_of_all(make: Make) -> None:
    traced = [Traced(make(batch=2), cnn_steps())]
    panels = drawn(
        convolution_study(Name.ALGORITHMS, [timed()], traced),
        "times: sums over the layers on which all algorithms ran; * not on all layers",
    )
    assert [panel.title for panel in panels] == [
        "forward",
        "forward, as recorded",
        "backward, as recorded",
        "forward: workspace",
    ]
    assert lines_of(panels[1])["PyTorch, Winograd"] == {2: 0.6}


def test_algorithms_of_traces_without_batch(make: Make) -> None:
    forward, backward = drawn(
        convolution_study(Name.ALGORITHMS, [], [Traced(make(batch=None), cnn_steps())])
    )
    assert bars_of(forward) == {
        ("PyTorch", "Winograd"): 0.6,
        ("PyTorch", "implicit precomp GEMM"): 1.0,
    }
    assert bars_of(backward) == {("PyTorch", "implicit precomp GEMM"): 2.0}


def test_trials_have_the_interval_of_their_median(sweep: Path) -> None:
    trials = read_trials(find_trials([sweep], PATTERN)[0], print)
    (chart,) = drawn(trials_study(trials), "shaded: 95 % interval of the trials' median")
    band = marks_of(chart, "band")
    assert (band["x"], band["y"]) == ([2, 16], pytest.approx([1.0, 10.001]))
    assert band["y_end"] == pytest.approx([7.0, 10.006])


def test_layerwise_is_of_the_largest_batch_with_operations_beside() -> None:
    study = convolution_study(Name.LAYERWISE, [timed(measurements=timed().measurements[:4])], [])
    time, operations = drawn(study, "batch 1")
    assert bars_of(time) == {
        ("Winograd", "conv1"): 5.0,
        ("GEMM", "conv1"): 11.0,
        ("GEMM", "conv2"): 20.0,
    }
    direct = 2 * 16 * 16 * 8 * 4 * 9
    assert bars_of(operations)["GEMM", "conv1"] == pytest.approx(direct / 1e3)
    drawn(convolution_study(Name.LAYERWISE, [timed()], []), "batch 2")


def test_a_study_without_values_has_no_picture(make: Make) -> None:
    study = ratio_study([make()])
    empty = study.result.frame.with_columns(
        relative_speed=pl.lit(None, pl.Float64), status=pl.lit("ok")
    )
    assert not picture_of(
        Study(study.name, "", (), type(study.result)(empty, {}, (), study.result.columns))
    )
