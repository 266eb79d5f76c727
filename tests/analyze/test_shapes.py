"""Rates by operator and shapes, kernels by shapes, and FLOP utilization of the steps."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.support.graph_replays import PRODUCTS, network, write
from tests.support.opened import opened
from tests.support.traces import TraceBuilder
from traceana import Trace
from traceana.analyze.charges import MACS
from traceana.analyze.roofline import utilization
from traceana.errors import UsageError
from traceana.report.machine import json_object
from traceana.report.terminal import render
from traceana.vocabulary.option_words import FlopsBy

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
    whole = json_object(built.with_meta(as_recorded=True).flops(by=by).page())
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


def test_gradients_with_kernels_of_their_own_have_rows_of_their_own() -> None:
    """8 images, 32 to 64 channels of 56 x 56, window 3 x 3, and the sum of the bias' gradient."""
    b = TraceBuilder()
    sizes = [[8, 64, 56, 56], [8, 32, 56, 56], [64, 32, 3, 3], *[[]] * 8]
    scalars = ["[64]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, True]"]
    op = b.row("ops", name="aten::convolution_backward", process=1, thread=1, start=0, duration=10,
               depth=0, direction="backward", input_shapes=json.dumps(sizes),
               input_types=json.dumps([*["float"] * 3, *[""] * 8]),
               inputs=json.dumps(["", "", "", *scalars]))  # fmt: skip
    for direction, time in (("dgrad", 300), ("wgrad", 200)):
        b.name(direction, category="conv", algorithm="implicit_gemm", direction=direction)
        b.kernel(direction, time, time, op=op)
    b.name("sum", category="bias", function="sum")
    b.kernel("sum", 1_000, 40, op=op)
    outputs = 8 * 64 * 56 * 56
    product = 2 * outputs * 32 * 9
    assert b.build().flops(by="shape").frame.select("part", "time_ns", "flops").rows() == [
        ("dgrad", 300, product),
        ("wgrad", 200, product),
        ("backward", 40, outputs),
    ]


def test_a_product_of_the_optimizer_is_counted() -> None:
    """An instruction of XLA has the pass of its work; the optimizer is not a pass of a layer."""
    b = TraceBuilder(framework="JAX")
    product = b.row(
        "instructions", name="dot.1", opcode="dot", input_shapes="[[8,32],[32,64]]",
        input_types='["f32","f32"]', output_shape="[8,64]", output_type="f32",
        attributes='{"lhs_contracting": [1]}',
    )  # fmt: skip
    b.name("gemm", category="gemm")
    b.kernel("gemm", 0, 100, instruction=product, direction="optimizer")
    assert b.build().flops().frame.select("time_ns", "flops").rows() == [(100, 2 * 8 * 32 * 64)]


def test_copies_alone_need_no_note_on_multiply_accumulates() -> None:
    b = TraceBuilder()
    b.name("copy", category="elementwise", function="copy")
    op = b.row("ops", name="aten::copy_", process=1, thread=1, start=0, duration=10, depth=0,
               input_shapes="[[8,4],[8,4]]", input_types='["float","float"]')  # fmt: skip
    b.kernel("copy", 0, 70, op=op)
    result = b.build().flops()
    assert result.frame["flops"].to_list() == [0]
    assert MACS not in result.notes
