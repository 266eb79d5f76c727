"""Pairs of recordings that others made."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import polars as pl
import pytest

import traceana
from traceana.compare import Diff, diff
from traceana.compare.rows import IDLE
from traceana.compare.views import VIEWS
from traceana.trace import Trace

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
PAIRS = {
    "timesformer": ("kineto/timesformer_h100.json.gz", "kineto/timesformer_mi300x.json.gz"),
    "transformer": (
        "nsys/transformer_2xh100_before.schema3.25.sqlite",
        "nsys/transformer_2xh100_after.schema3.25.sqlite",
    ),
    "control": ("kineto/diff_control_a100.json.gz", "kineto/diff_test_v100.json.gz"),
    "workers": (
        "kineto/resnet50_train_v100_workers0.json.gz",
        "kineto/resnet50_train_v100_workers4.json.gz",
    ),
}


@cache
def opened(name: str) -> Trace:
    path = TRACES / name
    if not path.exists():
        pytest.skip("no shared traces")
    return traceana.open(path)


@cache
def of(pair: str) -> Diff:
    a, b = PAIRS[pair]
    return diff(opened(a), opened(b))


@pytest.mark.parametrize("pair", PAIRS)
def test_rows_add_up_to_the_difference_of_the_steps(pair: str) -> None:
    found = of(pair)
    steps = [one.steps["available_ns"] for one in (found.sample_a, found.sample_b)]
    whole = [int(column.sum()) // len(column) for column in steps]
    for by in VIEWS:
        assert int(found.by(by)["delta_ns"].sum()) == whole[1] - whole[0]


@pytest.mark.parametrize("pair", PAIRS)
def test_a_recording_is_the_same_as_itself(pair: str) -> None:
    trace = opened(PAIRS[pair][0])
    found = diff(trace, trace)
    assert found.counts["only_a"] == found.counts["only_b"] == found.counts["moved"] == 0
    layers = found.layers
    assert (layers["a"] == layers["b"]).all()
    assert (layers["delta_ns"] == 0).all()
    assert set(layers["verdict"]) <= {"same", "not enough steps"}
    assert found.changes.is_empty()


@pytest.mark.parametrize("pair", PAIRS)
def test_turned_around_it_is_mirrored(pair: str) -> None:
    there = of(pair)
    a, b = PAIRS[pair]
    back = diff(opened(b), opened(a))
    columns = ["a", "b", "confidence", "time_a_ns", "time_b_ns", "delta_ns", "p"]
    mirrored = back.layers.select(
        pl.col("b").alias("a"),
        pl.col("a").alias("b"),
        "confidence",
        pl.col("time_b_ns").alias("time_a_ns"),
        pl.col("time_a_ns").alias("time_b_ns"),
        -pl.col("delta_ns"),
        "p",
    )
    order = ["a", "b", "time_a_ns"]
    assert there.layers.select(columns).sort(order).equals(mirrored.sort(order))


def test_one_model_on_two_vendors_gpus_is_paired_layer_by_layer() -> None:
    found = of("timesformer")
    rows = found.layers.filter(pl.col("role") == "layer")
    assert (rows["a"] == rows["b"]).all()
    assert found.counts["pairs"] == 172
    assert found.step.verdict == "not enough steps"


def test_the_same_work_with_more_workers_is_the_data_loader() -> None:
    found = of("workers")
    assert found.step.verdict == "faster"
    assert found.counts["only_a"] == found.counts["only_b"] == found.counts["moved"] == 0
    assert found.changes["change"].to_list()[:2] == ["data_loader", "idle"]
    assert found.changes["verdict"].to_list()[:2] == ["faster", "faster"]
    idle = found.layers.row(by_predicate=pl.col("a") == IDLE, named=True)
    whole = found.step.mean.b - found.step.mean.a
    # All that the step gained, the device idles less; its own work differs by 2 of 100 ms.
    assert idle["delta_ns"] == pytest.approx(whole, rel=0.1)
    # What is said of kernels is true: cuDNN's search chose others in some convolutions.
    for row in found.changes.filter(pl.col("change") == "algorithm").iter_rows(named=True):
        assert abs(row["of_step"]) < 0.005
    others = found.layers.filter(
        (pl.col("role") == "layer") & pl.col("verdict").is_in(["faster", "slower"])
    )
    assert set(others["type_a"]) == {"conv2d"}
    assert others["of_step"].abs().sum() < 0.01


def test_another_gpu_without_tf32_is_told_by_its_products() -> None:
    found = of("control")
    assert found.step.verdict == "slower"
    row = found.changes.row(by_predicate=pl.col("change") == "precision", named=True)
    assert (row["before"], row["after"], row["verdict"]) == ("tf32", "fp32", "slower")
    same = found.layers.filter(pl.col("a") == "linear_0")
    assert same["b"].to_list() == ["linear_0"]


def test_without_steps_nobody_can_tell() -> None:
    found = of("transformer")
    assert found.step.verdict == "not enough steps"
    assert any("marks no steps" in note for note in found.notes)
