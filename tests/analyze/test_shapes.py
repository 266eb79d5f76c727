"""Rates by operator and shapes, kernels by shapes, and FLOP utilization of the steps."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.support.graph_replays import PRODUCTS, network, write
from tests.support.opened import opened
from traceana import Trace
from traceana.analyze.roofline import utilization
from traceana.commands import FlopsBy
from traceana.errors import UsageError
from traceana.report.machine import json_object
from traceana.report.terminal import render

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Return a trace of three steps of 900 us, each with two convolutions and a product."""
    return traceana.open(write(network(3), tmp_path_factory.mktemp("shapes") / "eager.json"))


def test_each_shape_has_its_rate(built: Trace) -> None:
    frame = built.flops(by="shape").frame
    shapes = frame.select("operator", "shapes", "calls", "time_ns", "flops").rows()
    second = 2 * 8 * 32 * 28 * 28 * 16 * 9
    assert ("aten::conv2d", "[8,16,30,30] [32,16,3,3] [32]", 3, 60_000, 3 * second) in shapes
    assert frame["operator"].to_list().count("aten::conv2d") == 2
    row = frame.row(by_predicate=pl.col("shapes") == "[8,16,30,30] [32,16,3,3] [32]", named=True)
    assert row["flops_per_s"] == pytest.approx(3 * second / 60e-6)
    assert row["of_peak"] == pytest.approx(3 * second / 60e-6 / 15.7e12)
    assert row["mean_ns"] == 20_000
    assert (row["part"], row["types"]) == ("forward", "float")


def test_model_flop_utilization_is_products_over_what_the_steps_could_compute(built: Trace) -> None:
    found = utilization(built)
    assert found is not None
    assert found.model_flops == PRODUCTS
    assert found.mfu == found.hfu == pytest.approx(PRODUCTS / (900e-6 * 15.7e12))
    assert not found.at_least


def test_products_without_a_count_make_it_a_lower_bound(tmp_path: Path) -> None:
    whole = network(3)
    for event in whole["traceEvents"]:
        if event["name"] == "aten::linear":
            del event["args"]["Input Dims"]
    trace = traceana.open(write(whole, tmp_path / "t.json"))
    found = utilization(trace)
    assert found is not None
    assert found.at_least
    assert found.model_flops == PRODUCTS - 2 * 8 * 10 * 25088
    assert "MFU  at least " in render(trace.flops().page())


@pytest.mark.parametrize("by", ["operator", "class", "shape"])
def test_the_json_has_the_utilization_of_the_screen(built: Trace, by: FlopsBy) -> None:
    whole = json_object(built.flops(by=by).page())
    (row,) = whole["sections"]["utilization"]
    assert row["mfu"] == row["hfu"] == pytest.approx(PRODUCTS / (900e-6 * 15.7e12))
    assert row["model_flops"] == PRODUCTS
    assert row["peak_flops_per_s"] == pytest.approx(15.7e12)
    assert row["at_least"] is False
    units = whole["meta"]["units"]
    assert (units["mfu"], units["hfu"]) == ("fraction of 1", "fraction of 1")
    assert (units["model_flops"], units["peak_flops_per_s"]) == ("FLOP", "FLOP/s")


def test_there_is_none_without_a_peak() -> None:
    assert utilization(opened(FIXTURES / "alexnet-cpu-ranges.json.gz")) is None


def test_all_shapes_add_up_to_the_flops_and_the_kernels() -> None:
    trace = opened(FIXTURES / "alexnet-cpu-ranges.json.gz")
    by_shape, by_operator = trace.flops(by="shape"), trace.flops()
    assert by_shape.totals["flops"] == by_operator.totals["flops"]
    assert by_shape.totals["time_ns"] <= by_operator.totals["time_ns"]
    by_kernel = trace.kernels(by="shape")
    assert dict(by_kernel.totals) == {k: trace.kernels().totals[k] for k in by_kernel.totals}


def test_kernels_by_shape_have_the_shapes_around_the_launch(built: Trace) -> None:
    frame = built.kernels(by="shape").frame
    of_conv = frame.filter(pl.col("name") == "implicit_convolve_sgemm")
    assert sorted(of_conv["shapes"]) == [
        "[8,16,30,30] [32,16,3,3] [32]",
        "[8,3,32,32] [16,3,3,3] [16]",
    ]
    assert of_conv["calls"].to_list() == [3, 3]


def test_classes_by_shape_are_refused(built: Trace) -> None:
    with pytest.raises(UsageError, match="leave out unclassified="):
        built.kernels(by="shape", unclassified=True)
