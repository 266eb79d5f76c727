"""The analyses on a trace whose every figure is known: see ``cnn_steps``."""

from __future__ import annotations

from functools import partial

import polars as pl
import pytest

from tests.support.traces import TraceBuilder, cnn_steps
from traceana.analyze.classes import breakdown, condensed
from traceana.analyze.devices import busy, devices
from traceana.analyze.facts import facts
from traceana.analyze.kernels import kernels
from traceana.analyze.layers import layers
from traceana.analyze.transfers import transfers
from traceana.timeline.steps import measured_steps, steps
from traceana.trace import Trace

WORK_NS = 3 * 4400


@pytest.fixture(scope="module")
def trace() -> Trace:
    return cnn_steps()


def test_the_breakdown_names_algorithms_products_and_directions(trace: Trace) -> None:
    result = breakdown(trace)
    rows = result.frame.select("category", "part", "calls", "time_ns", "step_ns").rows()
    assert rows == [
        ("conv", "implicit_precomp_gemm", 6, 9000, 3000),
        ("conv", "winograd", 3, 1800, 600),
        ("gemm", "batched sgemm", 3, 900, 300),
        ("activation", "relu", 3, 600, 200),
        ("optimizer", None, 3, 450, 150),
        ("memcpy", "HtoD", 3, 300, 100),
        ("layout", "nchw_to_nhwc", 3, 150, 50),
    ]
    assert result.totals == {"calls": 24, "time_ns": WORK_NS}
    assert result.frame["share"].sum() == pytest.approx(1.0)
    assert any("warm-up step 1 excluded" in note for note in result.notes)
    assert any("synchronization events excluded: 1" in note for note in result.notes)


@pytest.mark.parametrize(
    ("classes", "part"),
    [
        ({"precision": "fp32", "batched": False}, "sgemm"),
        ({"precision": "tf32", "batched": False}, "sgemm"),
        ({"precision": "fp32", "batched": True}, "batched sgemm"),
        ({"precision": "fp32"}, "sgemm (plain or batched)"),
        ({"precision": "fp16", "batched": False}, "hgemm"),
        ({"precision": "fp64", "batched": True}, "batched dgemm"),
        ({"precision": "bf16", "batched": False}, "bf16 gemm"),
        ({"precision": "c64", "batched": False}, "cgemm"),
        ({"batched": True}, "batched gemm"),
        ({"batched": False}, "gemm"),
        ({}, "unknown"),
    ],
)
def test_a_product_is_called_by_precision_and_batching(
    classes: dict[str, object], part: str
) -> None:
    builder = TraceBuilder()
    builder.name("product", category="gemm", **classes)
    builder.kernel("product", 0, 10)
    assert breakdown(builder.build()).frame["part"].to_list() == [part]


def test_a_copy_is_classified_by_kind_not_by_name() -> None:
    builder = TraceBuilder()
    builder.name("Memcpy DtoH", category="other")
    builder.copy("DtoH", 0, 5)
    builder.memset(5, 7)
    rows = breakdown(builder.build()).frame.select("category", "part", "time_ns").rows()
    assert rows == [("memset", None, 7), ("memcpy", "DtoH", 5)]


def test_kernels_are_rows_of_distinct_names(trace: Trace) -> None:
    result = kernels(trace)
    columns = ("name", "calls", "time_ns", "mean_ns", "median_ns", "min_ns", "max_ns")
    assert result.frame.select(columns).rows()[:2] == [
        ("scudnn", 6, 9000, 1500, 1500, 1000, 2000),
        ("winograd", 3, 1800, 600, 600, 600, 600),
    ]
    assert result.totals == {"calls": 21, "time_ns": 3 * 4300}
    assert result.frame["algorithm"][0] == "implicit_precomp_gemm"
    assert "copies and memsets excluded" in result.notes[0]


@pytest.mark.parametrize(("longest", "noted"), [(300_000, True), (900, False)])
def test_one_far_call_that_makes_a_layer_has_a_note(longest: int, *, noted: bool) -> None:
    build = TraceBuilder(framework="PyTorch")
    build.name("copy", category="elementwise")
    flatten, other = build.layer("flatten", "Flatten"), build.layer("conv1", "Conv2d")
    for number in range(20):
        at = number * 400_000
        build.kernel("copy", at, longest if number == 7 else 100, layer=flatten)
        # The same kernel takes long in another layer.
        build.kernel("copy", at + 350_000, 20_000, layer=other)
    notes = [note for note in layers(build.build()).notes if "one call" in note]
    expected = "one call of 300 µs, 3,000 times its kernel's median of 0.1 µs: flatten"
    assert notes == ([expected] if noted else [])


def test_layers_and_roles_add_up_to_the_work(trace: Trace) -> None:
    result = layers(trace)
    columns = (
        *("layer", "role", "calls", "forward_ns", "backward_ns", "optimizer_ns", "other_ns"),
        "time_ns",
    )
    assert result.frame.select(*columns, "algorithm").rows() == [
        ("features.0", "layer", 6, 3000, 6000, 0, 0, 9000, "implicit_precomp_gemm"),
        ("features.1", "layer", 3, 600, 0, 0, 0, 600, None),
        ("features.2", "layer", 6, 1950, 0, 0, 0, 1950, "winograd"),
        ("classifier", "layer", 3, 900, 0, 0, 0, 900, None),
        ("(optimizer)", "optimizer", 3, 0, 0, 450, 0, 450, None),
        ("(outside all layers)", "unattributed", 3, None, None, None, 300, 300, None),
    ]
    assert result.totals["time_ns"] == WORK_NS
    by_direction = layers(trace, direction=True)
    assert by_direction.totals["time_ns"] == WORK_NS
    assert by_direction.frame.filter(pl.col("layer") == "features.0").select(
        "direction", "time_ns", "algorithm"
    ).rows() == [
        ("forward", 3000, "implicit_precomp_gemm"),
        ("backward", 6000, "implicit_precomp_gemm"),
    ]


def test_algorithms_of_a_layer_are_listed_by_their_time() -> None:
    builder = TraceBuilder()
    conv = builder.layer("conv1", "Conv2d")
    for name, algorithm, time in (("a", "fft", 5), ("b", "winograd", 9), ("c", "fft", 6)):
        builder.name(name, category="conv", algorithm=algorithm)
        builder.kernel(name, 0, time, layer=conv)
    assert layers(builder.build()).frame["algorithm"].to_list() == ["fft, winograd"]


def test_busy_and_idle_add_up_to_the_span() -> None:
    builder = TraceBuilder()
    builder.kernel("k", 100, 50)
    builder.kernel("k", 120, 50, stream=2)  # overlaps: 100-170
    builder.copy("HtoD", 160, 30)  # copy alone from 170 to 190
    builder.kernel("k", 250, 10)
    builder.sync(0, 1000)
    builder.kernel("k", 0, 7, device=1)
    result = busy(builder.build())
    columns = ("device", "span_ns", "busy_ns", "kernel_ns", "memops_only_ns", "idle_ns", "sum_ns")
    assert result.frame.select(columns).rows() == [
        (0, 260, 100, 80, 20, 160, 140),
        (1, 260, 7, 7, 0, 253, 7),
    ]


def test_a_graph_recorded_whole_counts_as_a_kernel_in_busy_time() -> None:
    builder = TraceBuilder()
    builder.copy("HtoD", 0, 100)
    row = {"name_id": builder.name("graph"), "kind": "graph", "device": 0}
    builder.row("activities", start=50, duration=100, **row)
    trace = builder.build()
    columns = ("busy_ns", "kernel_ns", "memops_only_ns")
    assert busy(trace).frame.select(columns).rows() == [(150, 100, 50)]
    assert devices(trace).frame.select(columns).rows() == [(150, 100, 50)]
    assert transfers(trace).totals["exposed_ns"] == 50


def test_steps_have_the_busy_time_of_the_device(trace: Trace) -> None:
    columns = ("step", "wall_ns", "calls", "work_ns", "busy_ns", "devices", "warm_up")
    assert steps(trace).frame.select(columns).rows() == [
        (1, 15_000, 8, 4400, 4400, 1, True),
        (2, 5_000, 8, 4400, 4400, 1, False),
        (3, 5_000, 8, 4400, 4400, 1, False),
    ]


def test_work_counts_where_it_ran_and_is_of_the_step_that_launched_it() -> None:
    builder = TraceBuilder()
    first, second = builder.step(0, 0, 100), builder.step(1, 100, 100)
    builder.kernel("k", 80, 60, step=first)  # runs on into the second step
    builder.kernel("k", 150, 10, step=second)
    columns = ("work_ns", "busy_ns")
    assert steps(builder.build()).frame.select(columns).rows() == [(60, 60), (10, 10)]


@pytest.mark.parametrize(
    ("walls", "measured"),
    [
        ([100, 100], [0, 1]),
        ([900, 100], [0, 1]),  # too few steps
        ([300, 100, 100, 100], [1, 2, 3]),
        ([300, 200, 100, 100, 100], [2, 3, 4]),
        ([100, 300, 100, 100], [0, 1, 2, 3]),  # a slow step in the middle is no warm-up
        ([125, 100, 100, 100], [0, 1, 2, 3]),  # not over 1.25 times the median
        ([126, 100, 100, 100], [1, 2, 3]),
        ([900, 900, 900, 100, 100], [0, 1, 2, 3, 4]),  # the median itself is slow
    ],
)
def test_warm_up_is_slow_steps_at_the_beginning(walls: list[int], measured: list[int]) -> None:
    builder = TraceBuilder()
    start = 0
    for number, wall in enumerate(walls):
        builder.step(number, start, wall)
        start += wall
    found = measured_steps(builder.build())
    assert found.rows == tuple(measured)
    assert len(found.notes) == 1


def test_transfers_by_direction_and_host_memory() -> None:
    builder = TraceBuilder()
    builder.copy("HtoD", 0, 100, bytes=1000, source_memory="pageable")
    builder.copy("HtoD", 0, 300, bytes=3000, source_memory="pageable")
    builder.copy("HtoD", 0, 50, bytes=1000, source_memory="pinned")
    builder.copy("DtoH", 0, 10, bytes=10, destination_memory="pinned", source_memory="device")
    builder.copy("DtoD", 0, 5)
    result = transfers(builder.build())
    columns = ("direction", "host_memory", "count", "bytes", "mean_bytes", "time_ns", "bytes_per_s")
    assert result.frame.select(columns).rows() == [
        ("HtoD", "pageable", 2, 4000, 2000, 400, 1e10),
        ("HtoD", "pinned", 1, 1000, 1000, 50, 2e10),
        ("DtoH", "pinned", 1, 10, 10, 10, 1e9),
        ("DtoD", None, 1, None, None, 5, None),
    ]
    assert "copy size not recorded: 1 of 5 copies" in result.notes[0]


def test_folding_loses_nothing() -> None:
    builder = TraceBuilder()
    for category, algorithm, time in (
        ("conv", "winograd", 5000),
        ("conv", "fft", 4000),
        ("conv", "direct", 10),
        ("conv", "gemm", 11),
        ("pooling", None, 900),
        ("softmax", None, 20),
        ("loss", None, 30),
    ):
        name = f"{category} {algorithm}"
        builder.name(name, category=category, algorithm=algorithm)
        builder.kernel(name, 0, time)
    frame = breakdown(builder.build()).frame
    lines = condensed(frame)
    shown = [(line.depth, line.category, line.part, line.time_ns, line.folded) for line in lines]
    assert shown == [
        (0, "conv", None, 9021, 0),
        (1, "conv", "winograd", 5000, 0),
        (1, "conv", "fft", 4000, 0),
        (1, None, None, 21, 2),
        (0, "pooling", None, 900, 0),
        (0, None, None, 50, 2),
    ]
    assert sum(line.time_ns for line in lines if line.depth == 0) == frame["time_ns"].sum()


def test_facts_count_what_is_there(trace: Trace) -> None:
    known = facts(trace)
    expected = {
        "kernels": 21,
        "kernel_ns": 3 * 4300,
        "distinct_kernel_names": 6,
        "memcpy": {"HtoD": 3},
        "memset": 0,
        "steps": 3,
        "step_numbers": "1-3",
        "layers": 4,
        "synchronizations": 1,
        "ledger": [],
        "span_ns": 25_000,
    }
    assert {key: known[key] for key in expected} == expected
    assert [(d["device"], d["activities"]) for d in known["devices"]] == [(0, 24)]


@pytest.mark.parametrize(
    "analysis", [breakdown, kernels, layers, partial(layers, direction=True), busy]
)
def test_an_empty_result_has_the_reason(analysis: object) -> None:
    builder = TraceBuilder()
    builder.row("ops", name="aten::conv2d", start=0, duration=10)
    result = analysis(builder.build())  # type: ignore[operator]
    assert result.frame.is_empty()
    assert result.notes[-1] == "no device activities in the file, only 1 operator"


def test_waiting_alone_is_no_work() -> None:
    builder = TraceBuilder()
    builder.sync(0, 10)
    trace = builder.build()
    assert "synchronization events" in busy(trace).notes[0]
    assert facts(trace)["span_ns"] is None
    assert steps(trace).notes == ("no steps: the trace has no step markers",)
    assert transfers(trace).notes[0].startswith("no copies")


def test_on_the_cpu_the_leaf_operators_are_the_kernels() -> None:
    builder = TraceBuilder()
    builder.name("aten::convolution", category="conv")
    builder.operator("aten::convolution", 0, 10)
    trace = builder.build()
    assert kernels(trace).frame["name"].to_list() == ["aten::convolution"]
    assert breakdown(trace).frame.row(0)[:4] == ("conv", "unknown", 1, 10)
    assert facts(trace)["kernels"] == 0
    assert facts(trace)["cpu_operators"] == 1
    assert busy(trace).frame["device"].to_list() == [-1]


def test_kernels_of_a_printed_summary_have_its_times() -> None:
    """Of two rows of one name there is no median, and no least time where one has none."""
    b = TraceBuilder()
    for name, calls, total, times in (
        ("one", 4, 100, (20, 10, 40)),
        ("two", 3, 30, (10, 5, 20)),
        ("two", 1, 11, (11, None, 11)),
    ):
        times_of = dict(zip(("median_ns", "min_ns", "max_ns"), times, strict=True))
        b.row("summary", name=name, name_id=b.name(name, category="gemm"), kind="kernel",
              counted=True, device=0, calls=calls, total_ns=total, **times_of)  # fmt: skip
    columns = ("name", "calls", "time_ns", "mean_ns", "median_ns", "min_ns", "max_ns")
    summary = b.build()
    assert kernels(summary).frame.select(columns).rows() == [
        ("one", 4, 100, 25, 20, 10, 40),
        ("two", 4, 41, 10, None, None, 20),
    ]
    by_class = breakdown(summary).frame.select("category", "calls", "time_ns", "step_ns")
    assert by_class.rows() == [("gemm", 8, 141, None)]
