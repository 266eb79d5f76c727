"""Matrix products by M, N, K and layout, over the time of their kernels alone."""

from __future__ import annotations

import polars as pl
import pytest

from tests.support.manifest import FIXTURES
from tests.support.opened import opened
from tests.support.traces import TraceBuilder
from traceana.analyze.flops import shapes
from traceana.analyze.gemms import gemms
from traceana.analyze.layers import layers
from traceana.enrich.attribution import attribute
from traceana.trace import Trace

FLOAT = '["float", "float"]'


def products() -> Trace:
    """Return two launches of [64, 32] · [32, 16], each with a copy, one of 8 batches, a ReLU."""
    b = TraceBuilder()
    b.name("gemm_nn", category="gemm", gemm_layout="nn", precision="fp32", tensor_core=False)
    b.name("gemm_tn", category="gemm", gemm_layout="tn", precision="fp32", tensor_core=False)
    b.name("transpose", category="layout")
    b.name("relu", category="activation")
    launches = (
        ("aten::mm", "[[64, 32], [32, 16]]", (("transpose", 400), ("gemm_nn", 1000))),
        ("aten::mm", "[[64, 32], [32, 16]]", (("gemm_nn", 3000),)),
        ("aten::linear", "[[64, 32], [16, 32]]", (("gemm_tn", 500),)),
        ("aten::bmm", "[[8, 4, 5], [8, 5, 6]]", (("gemm_nn", 700),)),
        ("aten::relu", "[[64, 16]]", (("relu", 100),)),
    )
    correlation = 0
    for at, (name, extents, kernels) in enumerate(launches):
        start = 10_000 * at
        types = FLOAT if "], [" in extents else '["float"]'
        b.row("ops", name=name, process=9, thread=1, start=start, duration=5_000,
              input_shapes=extents, input_types=types)  # fmt: skip
        for kernel, duration in kernels:
            correlation += 1
            b.row("calls", name="cudaLaunchKernel", process=9, thread=1,
                  start=start + 10 * correlation, duration=5, correlation=correlation)  # fmt: skip
            b.kernel(kernel, start + 1_000 * correlation, duration, correlation=correlation,
                     process=9, stream=7)  # fmt: skip
    return attribute(b.build())


def test_a_row_has_the_extents_layout_and_kernels_of_a_product() -> None:
    result = gemms(products())
    columns = ["m", "n", "k", "batch", "gemm_layout", "precision", "operators", "calls", "time_ns"]
    assert result.frame.select(columns).rows() == [
        (64, 16, 32, 1, "nn", "fp32", "aten::mm", 2, 4000),
        (4, 6, 5, 8, "nn", "fp32", "aten::bmm", 1, 700),
        (64, 16, 32, 1, "tn", "fp32", "aten::linear", 1, 500),
    ]
    product = result.frame.row(0, named=True)
    flops, moved = 2 * 2 * 64 * 16 * 32, 2 * 4 * (64 * 32 + 32 * 16 + 64 * 16)
    assert (product["flops"], product["bytes"]) == (flops, moved)
    assert product["flops_per_s"] == pytest.approx(flops / 4000e-9)
    assert product["bytes_per_s"] == pytest.approx(moved / 4000e-9)
    assert product["arithmetic_intensity"] == pytest.approx(flops / moved)
    assert product["share"] == pytest.approx(4000 / 5700)
    assert result.totals == {"calls": 4, "time_ns": 5200, "flops": result.frame["flops"].sum()}


def test_the_flops_are_those_of_the_rows_by_shape() -> None:
    trace = opened(FIXTURES / "gpu/alexnet_b128.json.gz")
    by_shape = shapes(trace).frame.filter(pl.col("operator").is_in(["aten::linear", "aten::mm"]))
    assert gemms(trace).totals["flops"] == by_shape["flops"].sum()
    kernels = trace.kernels().frame.filter(pl.col("category") == "gemm")
    assert gemms(trace).totals["time_ns"] <= kernels["time_ns"].sum()


def test_without_shapes_there_are_no_rows() -> None:
    b = TraceBuilder()
    b.name("gemm_nn", category="gemm")
    b.kernel("gemm_nn", 0, 100)
    result = gemms(b.build())
    assert result.frame.is_empty()
    assert result.notes == ("no matrix products with recorded shapes",)


def test_layers_name_the_bytes_by_which_their_bound_differs_from_their_products() -> None:
    """A product at 21 FLOP per byte is compute-bound on a V100; with its bias gradient, memory."""
    b = TraceBuilder()
    b.row("devices", device=0, name="Tesla V100-SXM2-16GB", vendor="NVIDIA",
          compute_capability="7.0")  # fmt: skip
    b.name("sgemm", category="gemm", precision="fp32", tensor_core=False)
    b.name("reduce", category="bias")
    layer = b.layer("linear_0", "linear")
    for at, (kernel, operator, extents, types) in enumerate((
        ("sgemm", "aten::mm", "[[128, 128], [128, 128]]", FLOAT),
        ("reduce", "aten::sum", "[[1024, 1024]]", '["float"]'),
    )):  # fmt: skip
        op = b.row("ops", name=operator, process=9, thread=1, start=1_000 * at, duration=500,
                   depth=0, layer=layer, input_shapes=extents, input_types=types)  # fmt: skip
        b.kernel(kernel, 1_000 * at, 600, op=op, layer=layer, process=9, stream=7)
    trace = b.build()
    assert gemms(trace).frame["bound"].to_list() == ["compute"]
    result = layers(trace)
    assert result.frame["bound"].to_list() == ["memory"]
    assert any(
        note.startswith("1 memory-bound layer has compute-bound products (flops --by gemm)")
        for note in result.notes
    )
