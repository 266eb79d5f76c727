"""Pairs of recordings that others made."""

from __future__ import annotations

import polars as pl
import pytest

import traceana
from tests.comparison import shared
from tests.comparison.shared import diff
from traceana.comparison.diff import IDLE, VIEWS, Diff

PAIRS = {
    "timesformer": shared.TIMESFORMER,
    "transformer": shared.TRANSFORMER,
    "control": shared.CONTROL,
    "workers": shared.WORKERS,
}


def of(pair: str) -> Diff:
    return shared.diff_of(*PAIRS[pair])


@pytest.mark.slow
@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize("pair", PAIRS)
def test_rows_add_up_to_the_difference_of_the_steps(pair: str) -> None:
    found = of(pair)
    steps = [one.frame["available_ns"] for one in (found.baseline.steps, found.candidate.steps)]
    whole = [int(column.sum()) // len(column) for column in steps]
    for by in VIEWS:
        rows = found.by(by)
        assert int((rows["time_b_ns"] - rows["time_a_ns"]).sum()) == whole[1] - whole[0]
        if not found.same_work:
            continue
        # Low-confidence pairs of layers have no difference.
        untold = rows.filter(pl.col("delta_ns").is_null())
        assert untold.is_empty() or (by == "layer" and (untold["confidence"] < 0.5).all())


@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize("pair", PAIRS)
def test_a_recording_is_the_same_as_itself(pair: str) -> None:
    trace = shared.opened(PAIRS[pair][0])
    found = diff(trace, trace)
    assert found.counts["only_a"] == found.counts["only_b"] == found.counts["moved"] == 0
    layers = found.by("layer")
    assert (layers["a"] == layers["b"]).all()
    assert (layers["delta_ns"] == 0).all()
    assert set(layers["verdict"]) == {"same"}
    assert found.changes.is_empty()


@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize("pair", PAIRS)
def test_turned_around_it_is_mirrored(pair: str) -> None:
    there = of(pair)
    a, b = PAIRS[pair]
    back = shared.diff_of(b, a)
    columns = ["a", "b", "confidence", "time_a_ns", "time_b_ns", "delta_ns", "p"]
    mirrored = back.by("layer").select(
        pl.col("b").alias("a"),
        pl.col("a").alias("b"),
        "confidence",
        pl.col("time_b_ns").alias("time_a_ns"),
        pl.col("time_a_ns").alias("time_b_ns"),
        -pl.col("delta_ns"),
        "p",
    )
    order = ["a", "b", "time_a_ns"]
    assert there.by("layer").select(columns).sort(order).equals(mirrored.sort(order))


def test_one_model_on_two_vendors_gpus_is_paired_layer_by_layer() -> None:
    found = of("timesformer")
    rows = found.by("layer").filter(pl.col("role") == "layer")
    assert (rows["a"] == rows["b"]).all()
    assert found.counts["pairs"] == 172
    assert found.step.verdict == "not enough steps"


def test_the_same_work_with_more_workers_is_the_data_loader() -> None:
    found = of("workers")
    assert found.step.verdict == "faster"
    assert found.counts["only_a"] == found.counts["only_b"] == found.counts["moved"] == 0
    first = found.changes.row(0, named=True)
    assert (first["change"], first["subject"]) == ("idle", "data_loader")
    assert first["verdict"] == "faster"
    idle = found.by("layer").row(by_predicate=pl.col("a") == IDLE, named=True)
    whole = found.step.mean.b - found.step.mean.a
    # All that the step gained, the device idles less; its own work differs by 2 of 100 ms.
    assert idle["delta_ns"] == pytest.approx(whole, rel=0.1)
    # The kernel changes are real: cuDNN's search chose others in some convolutions.
    for row in found.changes.filter(pl.col("change") == "algorithm").iter_rows(named=True):
        assert abs(row["of_step"]) < 0.005
    others = found.by("layer").filter(
        (pl.col("role") == "layer") & pl.col("verdict").is_in(["faster", "slower"])
    )
    assert set(others["type_a"]) == {"conv2d"}
    assert others["of_step"].abs().sum() < 0.01


@pytest.mark.exhaustive
def test_a_gpu_without_tf32_changes_gemm_precision() -> None:
    found = of("control")
    assert found.step.verdict == "slower"
    row = found.changes.row(by_predicate=pl.col("change") == "precision", named=True)
    assert (row["before"], row["after"], row["verdict"]) == ("tf32", "fp32", "slower")
    reported = {
        (row["p"], row["verdict"])
        for frame in (
            found.by("layer").filter(pl.col("a") == "(collective)"),
            found.by("algorithm").filter(category="collective"),
            found.changes.filter(change="communication"),
        )
        for row in frame.to_dicts()
    }
    assert len(reported) == 1
    compiled = found.changes.row(by_predicate=pl.col("change") == "compiled", named=True)
    assert (compiled["count_a"], compiled["verdict"]) == (0, "slower")
    assert not {"kernels", "layers"} & set(found.changes["change"])
    rows = found.by("layer")
    over = "## forward:over_arch ##"
    # What one run compiled is a row of its range: the layers that the other has inside are there.
    row = rows.row(by_predicate=pl.col("b") == over, named=True)
    assert (row["a"], row["shape_a"], row["shape_b"]) == (over, None, None)
    assert row["time_b_ns"] / row["time_a_ns"] == pytest.approx(2.91, abs=0.01)
    assert not rows["a"].str.starts_with(f"{over}.").any()
    assert found.counts["only_a"] == found.counts["only_b"] == 0
    first = "## forward:bottom_mlp ##.linear_0"
    assert rows.filter(pl.col("a") == first)["b"].to_list() == [first]


def test_without_steps_significance_is_unknown() -> None:
    found = of("transformer")
    assert found.step.verdict == "not enough steps"
    assert any("no steps marked" in note for note in found.notes)


@pytest.mark.slow
def test_captures_of_different_work_are_not_compared() -> None:
    """One capture has 4,010 kernels and the other 3,587: other numbers of iterations."""
    found = of("transformer")
    assert not found.same_work
    assert "times not compared: no steps marked, and different work (4,010 and 3,587 kernels)" in (
        found.notes
    )
    for by in VIEWS:
        assert set(found.by(by)["verdict"]) == {"not compared"}
        assert found.by(by)["delta_ns"].null_count() == found.by(by).height
    assert not set(found.changes["change"]) & {"idle", "layers", "communication", "copies"}
    page = traceana.diff(*(shared.opened(name) for name in shared.TRANSFORMER))
    assert "not compared: different work" in str(page)
