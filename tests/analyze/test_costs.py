"""Costs of layers, on traces with known figures."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import polars as pl
import pytest

from tests.support.opened import opened
from tests.support.traces import TraceBuilder
from traceana.analyze.flops import flops, formulas
from traceana.analyze.flops import shapes as by_shape
from traceana.analyze.layers import layers
from traceana.analyze.roofline import roofline, utilization
from traceana.enrich import attribute, with_classes
from traceana.enrich.classify import rules_in_use
from traceana.flops.peaks import Peaks
from traceana.result import Result
from traceana.runs.layer_manifest import Layer, Manifest, find, manifest
from traceana.trace import Trace

FORWARD = 2 * 8 * 64 * 56 * 56 * 32 * 9
"""Of a convolution of 8 images, 32 to 64 channels of 56 x 56, window 3 x 3, padding 1."""
SHAPES = [[8, 32, 56, 56], [64, 32, 3, 3], [64], [], [], [], []]
TYPES = ["float", "float", "float", "", "", "", ""]
SCALARS = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"]

RECORDED = {
    "input_shapes": json.dumps(SHAPES),
    "input_types": json.dumps(TYPES),
    "inputs": json.dumps(SCALARS),
}


def convolution(kernel: str, *, shapes: bool = True) -> Trace:
    """Return a step in which one convolution ran one kernel for a microsecond."""
    b = TraceBuilder()
    b.row("ranges", text="ProfilerStep#1", kind="step", process=9, thread=1, start=0,
          duration=10_000)  # fmt: skip
    b.row("ops", name="aten::conv2d", process=9, thread=1, start=100, duration=500,
          **(RECORDED if shapes else {}))  # fmt: skip
    b.row("calls", name="cudaLaunchKernel", process=9, thread=1, start=200, duration=5,
          correlation=1)  # fmt: skip
    b.kernel(kernel, 1000, 1000, correlation=1, process=9, stream=7)
    built = attribute(b.build())
    rules = rules_in_use(None)
    return with_classes(built, rules)


def test_the_rate_is_of_the_direct_count_and_gemm_executes_just_that() -> None:
    trace = convolution("implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1>")
    row = layers(trace).frame.row(0, named=True)
    assert row["flops"] == FORWARD
    assert row["executed_flops"] == FORWARD
    assert row["flops_per_s"] == pytest.approx(FORWARD / 1e-6)
    elements = 8 * 32 * 56 * 56 + 64 * 32 * 9 + 64 + 8 * 64 * 56 * 56
    assert row["bytes"] == 4 * elements


def test_winograd_executes_less_than_the_direct_count() -> None:
    trace = convolution("maxwell_scudnn_winograd_128x128_ldg1_ldg4_tile148n_nt")
    row = layers(trace).frame.row(0, named=True)
    assert row["algorithm"] == "winograd"
    assert row["flops"] == FORWARD
    # F(2x2, 3x3): 16 multiplications in place of 36, and the transforms.
    assert FORWARD / 2.25 < row["executed_flops"] < FORWARD


def test_a_bias_has_no_algorithm_and_leaves_the_executed_count_known() -> None:
    b = TraceBuilder()
    sizes = [[8, 64, 56, 56], *SHAPES[:2], *[[]] * 8]
    op = b.row("ops", name="aten::convolution_backward", process=9, thread=1, start=100,
               duration=500, direction="backward", input_shapes=json.dumps(sizes),
               input_types=json.dumps([*["float"] * 3, *[""] * 8]),
               inputs=json.dumps(["", "", "", "[64]", "[1, 1]", "[1, 1]", "[1, 1]", "False",
                                  "[0, 0]", "1", "[False, True, True]"]))  # fmt: skip
    for number, kernel in enumerate(
        ("cudnn::cnn::wgrad_alg0_engine<float, 128, 5, 5, 3, 3, 3, false, 512>", "reduce_kernel"), 1
    ):
        b.row("calls", name="cudaLaunchKernel", process=9, thread=1, start=100 + 10 * number,
              duration=5, correlation=number)  # fmt: skip
        b.kernel(kernel, 1000 * number, 1000, correlation=number, process=9, stream=7)
    assert op is not None
    trace = with_classes(attribute(b.build()), rules_in_use(None))
    row = layers(trace).frame.row(0, named=True)
    bias = 8 * 64 * 56 * 56
    assert (row["flops"], row["executed_flops"]) == (FORWARD + bias, FORWARD + bias)


def test_a_row_of_several_precisions_is_rated_by_the_peak_of_each() -> None:
    """A product in FP64 lasts longest; FP16 products beside it are above the peak of FP64."""
    b = TraceBuilder()
    b.row("devices", device=0, name="NVIDIA A100-SXM4-80GB")
    b.name("d", category="gemm", precision="fp64", tensor_core=False)
    b.name("h", category="gemm", precision="fp16", tensor_core=True)
    b.step(0, 0, 40_000)
    columns = {"layer": b.layer("net.fc", "Linear"), "direction": "forward"}
    for number, (kernel, type_, ns) in enumerate((("d", "double", 4_000), ("h", "Half", 1_000))):
        at = 10_000 * number
        op = b.row("ops", name="aten::mm", start=at, duration=10, depth=0,
                   input_shapes="[[512,512],[512,512]]", input_types=f'["{type_}","{type_}"]',
                   **columns)  # fmt: skip
        b.kernel(kernel, at, ns, op=op, step=0, **columns)
    each = 2 * 512**3
    at_peak = each / 9.7e12 + each / 312e12
    trace = b.build()
    assert layers(trace).frame["of_peak"].to_list() == [pytest.approx(at_peak / 5_000e-9)]
    assert roofline(trace).frame["of_peak"].to_list() == [
        pytest.approx(each / 9.7e12 / 4_000e-9),
        pytest.approx(each / 312e12 / 1_000e-9),
    ]
    used = utilization(trace)
    assert used is not None
    assert used.mfu == pytest.approx(at_peak / 40_000e-9)


def test_a_routine_of_cudnn_has_its_gradient_and_what_its_algorithm_executes() -> None:
    """XLA calls it backward; its kernels have the class of a gradient, and their time its row."""
    b = TraceBuilder(framework="JAX")
    window = {"size": [3, 3], "stride": [1, 1], "padding_low": [1, 1], "base_dilation": [1, 1],
              "window_dilation": [1, 1]}  # fmt: skip
    numbers = {"kernel_input_feature": 1, "kernel_output_feature": 0, "input_batch": 0,
               "input_feature": 1, "output_batch": 0, "output_feature": 1,
               "kernel_spatial": [2, 3], "input_spatial": [2, 3],
               "output_spatial": [2, 3]}  # fmt: skip
    gradient = b.row(
        "instructions", name="c.1", opcode="custom-call", target="__cudnn$convBackwardFilter",
        input_shapes="[[8,32,56,56],[8,64,56,56]]", input_types='["f32","f32"]',
        output_shape="[[64,32,3,3],[0]]", output_type='["f32","u8"]',
        attributes=json.dumps({"window": window, "dimension_numbers": numbers}),
    )  # fmt: skip
    columns = {"layer": b.layer("net.conv", "Conv"), "direction": "backward"}
    b.name("data", category="conv", algorithm="winograd_nonfused", direction="wgrad")
    b.name("copy", category="layout")
    episode = b.row("episodes", algorithm="winograd_nonfused", direction="wgrad")
    b.kernel("copy", 0, 10, instruction=gradient, **columns)
    b.kernel("data", 100, 1000, instruction=gradient, episode=episode, **columns)
    b.step(0, 0, 2000)
    rows = {row["direction"]: row for row in layers(b.build(), direction=True).frame.to_dicts()}
    assert rows["backward"]["flops"] is None
    assert rows["wgrad"]["flops"] == FORWARD
    # F(3x3, 4x4): 36 products in place of 144, and the transforms.
    assert FORWARD / 4 < rows["wgrad"]["executed_flops"] < FORWARD


def test_without_shapes_costs_are_null_not_zero() -> None:
    trace = convolution("implicit_convolve_sgemm<float, float, 1024>", shapes=False)
    row = layers(trace).frame.row(0, named=True)
    assert (row["flops"], row["flops_per_s"], row["bytes"]) == (None, None, None)
    listed = flops(trace).frame.row(0, named=True)
    assert listed["flops"] is None
    for result in (layers(trace), flops(trace), roofline(trace)):
        assert "flops" not in result.totals
    assert listed["time_ns"] == 1000
    assert "shapes not recorded" in listed["reason"]


def test_flops_add_up_and_each_formula_is_derived() -> None:
    result = flops(convolution("implicit_convolve_sgemm<float, float, 1024>"))
    assert result.totals == {"flops": FORWARD, "time_ns": 1000}
    assert result.notes[0] == "1 multiply-accumulate = 2 FLOPs"
    used = formulas(result).frame
    assert used["formula"].to_list() == ["convolution.forward"]
    assert used["derivation"].str.contains("Each of the").all()


def test_work_of_no_operator_is_a_row() -> None:
    b = TraceBuilder()
    b.kernel("k", 0, 70)
    rows = flops(attribute(b.build())).frame
    assert rows.select("operator", "flops", "time_ns").row(0) == ("(no operator)", None, 70)
    assert flops(TraceBuilder().build()).frame.is_empty()


@pytest.mark.parametrize(
    ("calls", "correlation", "reason"),
    [
        ((1,), 1, "no operator recorded"),
        ((1,), 2, "launched before capture"),
        ((), None, "no operator recorded"),
    ],
)
def test_work_of_no_operator_has_its_own_reason_unless_its_launch_is_missing(
    calls: tuple[int, ...], correlation: int | None, reason: str
) -> None:
    b = TraceBuilder()
    for number in calls:
        b.row("calls", name="cudaLaunchKernel", process=9, thread=1, start=0, duration=5,
              correlation=number)  # fmt: skip
    b.kernel("k", 10, 70, process=9, correlation=correlation)
    assert flops(attribute(b.build())).frame["reason"].to_list() == [reason]


def test_a_selection_counts_its_own_operators_alone() -> None:
    from traceana.timeline.steps import select

    b = TraceBuilder()
    for step in range(3):
        at = step * 10_000
        b.row("ranges", text=f"ProfilerStep#{step}", kind="step", process=9, thread=1, start=at,
              duration=9_000)  # fmt: skip
        b.row("ops", name="aten::mm", process=9, thread=1, start=at + 10, duration=50,
              input_shapes="[[4, 5], [5, 6]]", input_types='["float", "float"]')  # fmt: skip
        b.row("calls", name="cudaLaunchKernel", process=9, thread=1, start=at + 20, duration=5,
              correlation=step)  # fmt: skip
        b.kernel("sgemm_128x64_nn", at + 100, 50, correlation=step, process=9, stream=7)
    trace = attribute(b.build())
    assert layers(trace).totals["flops"] == 3 * 2 * 4 * 5 * 6
    chosen = select(trace, steps=[1, 2])
    assert layers(chosen).totals["flops"] == 2 * 2 * 4 * 5 * 6
    assert flops(chosen).totals["flops"] == 2 * 2 * 4 * 5 * 6
    assert layers(chosen).frame.filter(pl.col("flops") > 0).height == 1


def test_a_class_has_the_flops_of_the_operators_that_are_mostly_of_it() -> None:
    trace = convolution("maxwell_scudnn_winograd_128x128_ldg1_ldg4_tile148n_nt")
    (row,) = roofline(trace).frame.to_dicts()
    assert (row["category"], row["part"], row["time_ns"]) == ("conv", "winograd", 1000)
    assert row["flops"] == FORWARD
    assert row["executed_flops"] == layers(trace).frame["executed_flops"].item()
    assert row["flops_per_s"] == pytest.approx(FORWARD / 1e-6)
    empty = roofline(TraceBuilder().build()).frame
    assert empty.is_empty()
    assert empty.schema == roofline(trace).frame.schema


FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


@pytest.mark.parametrize(
    "file", ["alexnet-cpu-ranges.json.gz", "xplane/alexnet-cpu-jax.xplane.pb"], ids=["ops", "xla"]
)
def test_classes_directions_and_layers_share_the_same_flops(file: str) -> None:
    """On a CPU no class tells dgrad from wgrad, and an operator has the time of those inside it."""
    trace = opened(FIXTURES / file)
    total = flops(trace).totals["flops"]
    assert total > 1e9
    assert roofline(trace).totals["flops"] == total
    assert layers(trace).totals["flops"] == total
    assert layers(trace, direction=True).totals["flops"] == total


def test_an_update_has_the_pass_that_layers_give_it() -> None:
    trace = opened(FIXTURES / "alexnet-cpu-ranges.json.gz")
    rows = flops(trace).frame.filter(pl.col("part") == "optimizer")
    assert set(rows["operator"]) == {"aten::add_", "aten::mul_"}
    updates = layers(trace).frame.filter(pl.col("role") == "optimizer")
    assert rows["flops"].sum() == updates["flops"].sum() > 0


def test_flops_without_a_kernel_of_theirs_are_in_no_class() -> None:
    b = TraceBuilder()
    b.row("ops", name="aten::mm", process=9, thread=1, start=10, duration=50,
          input_shapes="[[4, 5], [5, 6]]", input_types='["float", "float"]')  # fmt: skip
    b.row("calls", name="cudaMemsetAsync", process=9, thread=1, start=20, duration=5,
          correlation=1)  # fmt: skip
    b.row("activities", kind="memset", start=100, duration=50, correlation=1, process=9, device=0,
          stream=7)  # fmt: skip
    result = roofline(attribute(b.build()))
    assert "flops" not in result.totals
    assert any("FLOPs without a class: 100.0 %" in note for note in result.notes)


def _reasons(b: TraceBuilder) -> dict[str, str | None]:
    frame = flops(attribute(b.build())).frame
    return dict(frame.filter(pl.col("time_ns") > 0).select("operator", "reason").iter_rows())


def test_work_inside_an_operator_that_cannot_be_counted_has_its_reason() -> None:
    b = TraceBuilder()
    b.row("ops", name="aten::max_pool2d", process=9, thread=1, start=10, duration=50)
    b.row("ops", name="aten::max_pool2d_with_indices", process=9, thread=1, start=11, duration=48)
    b.row("calls", name="cudaLaunchKernel", process=9, thread=1, start=20, duration=5,
          correlation=1)  # fmt: skip
    b.kernel("max_pool_forward_nchw", 100, 50, correlation=1, process=9, stream=7)
    assert "shapes not recorded" in str(_reasons(b)["aten::max_pool2d_with_indices"])


PRODUCT = {"input_shapes": "[[4, 5], [5, 6]]", "input_types": '["float", "float"]'}


@pytest.mark.parametrize("also", [False, True])
def test_self_time_around_counted_operators_has_its_reason(also: bool) -> None:
    b = TraceBuilder()
    b.row("ops", name="Optimizer.step#SGD.step", process=9, thread=1, start=0, duration=1000)
    b.row("ops", name="aten::mm", process=9, thread=1, start=100, duration=300, **PRODUCT)
    if also:
        b.row("ops", name="mine::op", process=9, thread=1, start=500, duration=300)
    reason = _reasons(b)["Optimizer.step#SGD.step"]
    assert reason is not None
    assert ("partly counted" in reason) is also
    notes = flops(attribute(b.build())).notes
    assert ("time with partial FLOP counts: 40.0 %" in notes) is also


def test_self_time_around_operators_without_a_count_has_its_reason() -> None:
    b = TraceBuilder()
    b.row("ops", name="Optimizer.step#SGD.step", process=9, thread=1, start=0, duration=1000)
    b.row("ops", name="aten::mkldnn_rnn_layer_backward", process=9, thread=1, start=100,
          duration=300)  # fmt: skip
    assert _reasons(b)["Optimizer.step#SGD.step"] == "child operators have no FLOP count"
    no_flops, share = flops(attribute(b.build())).notes
    assert no_flops.startswith("no FLOPs")
    assert share == "time without FLOP counts: 100.0 %"


@pytest.mark.parametrize("name", ["aten::copy_", "aten::view"])
def test_operators_without_flops_do_not_lack_the_shapes_that_they_have(name: str) -> None:
    b = TraceBuilder()
    b.row("ops", name=name, process=9, thread=1, start=0, duration=100, **PRODUCT)
    trace = attribute(b.build())
    for result in (flops(trace), layers(trace), roofline(trace)):
        assert not [note for note in result.notes if "shapes" in note]


def test_kernels_of_a_wrapper_have_no_count() -> None:
    """A replayed graph has no operators below the region that launches it."""
    b = TraceBuilder()
    b.row("ops", name="Torch-Compiled Region: 0/0", process=9, thread=1, start=0, duration=50)
    b.row("ops", name="aten::mm", process=9, thread=1, start=100, duration=50, **PRODUCT)
    _launches(b, 10, ("sgemm_128x64_tn", 900))
    _launches(b, 110, ("sgemm_128x64_nn", 100))
    trace = attribute(b.build())
    assert "time without FLOP counts: 90.0 %" in flops(trace).notes
    reasons = dict(flops(trace).frame.select("operator", "reason").iter_rows())
    assert reasons == {"Torch-Compiled Region: 0/0": "no operator recorded", "aten::mm": None}


def test_the_rate_of_a_layer_is_over_the_time_of_what_is_counted() -> None:
    b = TraceBuilder()
    b.row("ops", name="aten::mm", process=9, thread=1, start=10, duration=50, **PRODUCT)
    b.row("ops", name="mine::op", process=9, thread=1, start=70, duration=50)
    for number, (start, time) in enumerate([(20, 100), (80, 300)]):
        b.row("calls", name="cudaLaunchKernel", process=9, thread=1, start=start, duration=5,
              correlation=number)  # fmt: skip
        b.kernel("k", 1000 * (number + 1), time, correlation=number, process=9, stream=7)
    result = layers(attribute(b.build()), by="type")
    assert "time without FLOP counts: 75.0 %" in result.notes
    row = result.frame.filter(pl.col("flops") > 0).row(0, named=True)
    assert row["flops_per_s"] == pytest.approx(2 * 4 * 5 * 6 / 100e-9)


def test_unused_peaks_of_another_machine_have_no_note() -> None:
    b = TraceBuilder()
    b.row("devices", device=0, name="Tesla V100-SXM2-16GB")
    b.row("ops", name="aten::mm", process=9, thread=1, start=10, duration=50, **PRODUCT)
    b.row("calls", name="cudaLaunchKernel", process=9, thread=1, start=20, duration=5,
          correlation=1)  # fmt: skip
    b.kernel("k", 100, 50, correlation=1, process=9, stream=7)
    trace = attribute(b.build())
    other = Peaks("other", "measured", "elsewhere", {}, None)
    for result in (layers(trace, peaks=other), roofline(trace, peaks=other)):
        assert any("V100" in note for note in result.notes)
        assert "elsewhere" not in result.notes


def _input_shapes(*operators: tuple[str, str]) -> list[str | None]:
    """Return the inputs of layers with one operator each, each with a kernel."""
    b = TraceBuilder()
    for number, (name, shapes) in enumerate(operators):
        at = 100 * number
        b.row("ranges", text=f"nn.Module: M_{number}", kind="module", process=9, thread=1, start=at,
              duration=90)  # fmt: skip
        b.row("ops", name="aten::add_", process=9, thread=1, start=at + 1, duration=5,
              input_shapes="[[], [], []]")  # fmt: skip
        b.row("ops", name=name, process=9, thread=1, start=at + 10, duration=50,
              input_shapes=shapes)  # fmt: skip
        b.row("calls", name="cudaLaunchKernel", process=9, thread=1, start=at + 20, duration=5,
              correlation=number)  # fmt: skip
        b.kernel("k", 1000 + at, 50, correlation=number, process=9, stream=7)
    frame = layers(attribute(b.build())).frame
    return frame.filter(pl.col("role") == "layer")["input_shape"].to_list()


def test_the_input_of_a_layer_is_what_its_first_operator_takes() -> None:
    assert _input_shapes(
        ("aten::batch_norm", "[[2, 3, 4, 4], [3], [3], [3], [3], [], [], [], []]"),
        ("aten::embedding", "[[100, 32], [2, 16], [], [], []]"),
        # Of TorchScript, with a value of the interpreter's in front.
        ("aten::relu", "[[9, 9], [2, 3]]"),
    ) == ["[2, 3, 4, 4]", "[2, 16]", "[2, 3]"]


def _with_manifest(file: str, change: tuple[str, str]) -> tuple[str, ...]:
    beside = find(FIXTURES / file)
    assert beside is not None
    text = beside.read_text("utf-8")
    model = msgspec.json.decode(text.replace(*change), type=Manifest)
    return layers(opened(FIXTURES / file), model=model).notes


def test_a_manifest_of_another_batch_or_model_has_a_note() -> None:
    recorded, other = "alexnet-cpu-ranges.json.gz", "differs in batch or model"
    assert not any(other in note for note in _with_manifest(recorded, ("", "")))
    assert any(other in note for note in _with_manifest(recorded, ("[8, ", "[4, ")))
    notes = _with_manifest(recorded, ('"conv1"', '"stem.first"'))
    assert not any("not in the trace" in note for note in notes)  # by type and order


@pytest.mark.parametrize(("dilation", "fits"), [((2, 2), True), ((1, 1), False)])
def test_the_rearranged_input_of_a_dilated_convolution_is_of_the_manifest(
    dilation: tuple[int, int], fits: bool
) -> None:
    """TensorFlow convolves four times as many, smaller images, with padding."""
    b = TraceBuilder(framework="TensorFlow")
    columns = {"layer": b.layer("net.conv", "Conv2D"), "direction": "forward"}
    b.row("ops", name="SpaceToBatchND", scope="net/conv/SpaceToBatchND", start=0, duration=1,
          depth=0, layer=columns["layer"])  # fmt: skip
    op = b.row("ops", name="Conv2D", scope="net/conv/Conv2D", start=1, duration=9, depth=0,
               input_shapes="[[8,10,10,3],[3,3,3,4]]", **columns)  # fmt: skip
    b.operator("Conv2D", 0, 10, op=op, step=0, **columns)
    b.step(0, 0, 1000)
    described = Layer(path="net/conv", type="Conv2d", framework_type="Conv2D", position=0,
                      inputs=((2, 3, 16, 16),), outputs=((2, 4, 16, 16),), kernel=(3, 3),
                      stride=(1, 1), dilation=dilation, groups=1,
                      parameters={"weight": (4, 3, 3, 3)})  # fmt: skip
    model = manifest(network="n", framework="Keras", inputs=(), layers=(described,))
    found = layers(b.build(), model=model)
    assert found.frame["input_shape"].to_list() == ["[2, 3, 16, 16]" if fits else "[8, 10, 10, 3]"]
    assert fits != any("1 layer has another input size" in note for note in found.notes)


def test_manifest_layers_missing_in_the_trace_have_a_note() -> None:
    notes = _with_manifest("alexnet-cpu-torchscript.json.gz", ("", ""))
    assert any("manifest layers not found in the trace" in note for note in notes)


def test_counts_of_a_manifest_beyond_64_bits_are_left_out() -> None:
    notes = _with_manifest(
        "alexnet-cpu-nsys-2024.2.sqlite",
        ('"position": 0,', '"position": 0, "calls": 1000000000000000,'),
    )
    assert any("19 layers" in note for note in notes)


def test_a_manifest_counts_the_steps_in_which_a_layer_ran_on_the_selected_devices() -> None:
    from traceana.timeline.steps import select

    b = TraceBuilder()
    for process, runs in ((1, 3), (2, 1)):
        for step in range(3):
            at = step * 10_000
            b.row("ranges", text=f"ProfilerStep#{step}", kind="step", process=process,
                  thread=process, start=at, duration=9_000)  # fmt: skip
            if step >= runs:
                continue
            correlation = 10 * process + step
            b.row("ranges", text="nn.Module: Linear_0", kind="module", process=process,
                  thread=process, start=at + 5, duration=90)  # fmt: skip
            b.row("ops", name="aten::linear", process=process, thread=process, start=at + 10,
                  duration=50)  # fmt: skip
            b.row("calls", name="cudaLaunchKernel", process=process, thread=process, start=at + 20,
                  duration=5, correlation=correlation)  # fmt: skip
            b.kernel("sgemm_128x64_nn", at + 100, 50, correlation=correlation, process=process,
                     device=process, stream=7)  # fmt: skip
    layer = Layer(path="fc", type="Linear", framework_type="Linear", position=0, inputs=((4, 5),),
                  outputs=((4, 6),), parameters={"weight": (6, 5)})  # fmt: skip
    model = manifest(network="n", framework=None, inputs=(), layers=(layer,))
    trace, once = attribute(b.build()), 2 * 4 * 5 * 6
    for devices, steps in ((None, 4), ([1], 3), ([2], 1)):
        chosen = select(trace, devices=devices)
        assert layers(chosen, model=model).totals["flops"] == steps * once


@pytest.mark.parametrize(
    ("known", "parts"),
    [(None, (2, 3)), (False, (2, 2)), (True, (3, 3))],
)
def test_a_manifest_counts_the_gradients_of_inputs_that_are_computed(
    known: bool | None, parts: tuple[int, int]
) -> None:
    b = TraceBuilder()
    b.row("steps", number=0, start=0, duration=1000, source="train")
    described = []
    for number, name in enumerate(("da", "db")):
        row = b.layer(name, "Linear")
        for at, direction in ((10, "forward"), (500, "backward")):
            b.kernel("sgemm_128x64_nn", at + 100 * number, 50, layer=row, direction=direction,
                     stream=7, step=0)  # fmt: skip
        described.append(
            Layer(
                path=name,
                type="Linear",
                framework_type="Linear",
                position=number,
                inputs=((4, 5),),
                outputs=((4, 6),),
                parameters={"weight": (6, 5)},
                input_gradient=known,
            )
        )
    model = manifest(network="n", framework=None, inputs=(), layers=tuple(described))
    found = layers(b.build(), model=model).frame
    assert found["flops"].to_list() == [part * 2 * 4 * 5 * 6 for part in parts]


def _of_tensorflow(type_: str, *runs: tuple[str, str, str, int | None]) -> Result:
    """Return the layers of a trace of one layer: ``runs`` are operator, scope, direction, step."""
    b = TraceBuilder(framework="TensorFlow")
    b.name("MatMul", category="gemm")
    row = b.layer("net.fc", type_)
    for number in range(2):
        b.step(number, 1000 * number, 1000)
    for at, (name, scope, direction, step) in enumerate(runs):
        columns = {"layer": row, "direction": direction}
        op = b.row("ops", name=name, scope=scope, start=10 * at, duration=10, depth=0, **columns)
        b.operator(name, 10 * at, 10, op=op, step=step, **columns)
    described = Layer(path="net/fc", type=type_, framework_type=type_, position=0,
                      inputs=((4, 5),), outputs=((4, 6),), parameters={"weight": (6, 5)},
                      input_gradient=False)  # fmt: skip
    model = manifest(network="n", framework="Keras", inputs=(), layers=(described,))
    return layers(b.build(), direction=True, model=model)


_FORWARD, _GRADIENT = "net/fc/BiasAdd", "gradient_tape/net/fc/MatMul/MatMul_1"


def _flops(result: Result) -> dict[str, int | None]:
    return dict(result.frame.select("direction", "flops").iter_rows())


def test_a_manifest_counts_the_forward_passes_of_an_evaluation() -> None:
    training = [
        ("MatMul", scope, direction, step)
        for step in range(2)
        for scope, direction in ((_FORWARD, "forward"), (_GRADIENT, "backward"))
    ]
    # The graph of the evaluation has another operator fused into the product.
    evaluation = [("MatMul", "net/fc/Relu", "forward", step) for step in (1, 1, 1, None)]
    once = 2 * 4 * 5 * 6
    found = _of_tensorflow("Linear", *training)
    assert _flops(found) == {"forward": 2 * once, "backward": 2 * once}
    assert not any("several forward passes" in note for note in found.notes)
    found = _of_tensorflow("Linear", *training, *evaluation)
    assert _flops(found) == {"forward": 6 * once, "backward": 2 * once}
    assert any("several forward passes" in note for note in found.notes)


def test_a_manifest_counts_a_pass_with_a_loop_once() -> None:
    turns = [("MatMul", "net/while/fc/MatMul", "forward", step) for step in range(2)] * 5
    assert _flops(_of_tensorflow("Linear", *turns)) == {"forward": 2 * 2 * 4 * 5 * 6}


def test_a_manifest_counts_no_layer_with_an_unknown_number_of_passes() -> None:
    training = [("Relu", "net/fc/Relu", "forward", step) for step in range(2)]
    assert _flops(_of_tensorflow("ReLU", *training, training[1])) == {"forward": 3 * 4 * 5}
    evaluation = [("Maximum", "net/fc/Maximum", "forward", 1)] * 3
    found = _of_tensorflow("ReLU", *training, *evaluation)
    assert _flops(found) == {"forward": None}
    assert "no FLOPs: number of passes unknown (net.fc)" in found.notes


def test_a_manifest_does_not_count_again_what_an_xla_program_of_no_layer_computed() -> None:
    """Keras compiles grouped convolutions apart on a CPU: their layer has the bias alone."""
    b = TraceBuilder(framework="TensorFlow")
    b.name("MatMul", category="gemm")
    product = b.row(
        "instructions", name="dot.1", opcode="dot", input_shapes="[[4,5],[5,6]]",
        input_types='["f32","f32"]', output_shape="[4,6]", output_type="f32",
        attributes='{"lhs_contracting":[1],"rhs_contracting":[0],"lhs_batch":[],"rhs_batch":[]}',
    )  # fmt: skip
    described = []
    for number, (path, name) in enumerate([("apart", "BiasAdd"), ("fc", "MatMul")]):
        columns = {"layer": b.layer(f"net.{path}", "Linear"), "direction": "forward"}
        op = b.row("ops", name=name, scope=f"net/{path}/{name}", start=10 * number, duration=10,
                   depth=0, **columns)  # fmt: skip
        b.operator(name, 10 * number, 10, op=op, step=0, **columns)
        described.append(
            Layer(
                path=f"net/{path}",
                type="Linear",
                framework_type="Dense",
                position=number,
                inputs=((4, 5),),
                outputs=((4, 6),),
                parameters={"weight": (6, 5)},
                input_gradient=False,
            )
        )
    b.step(0, 0, 1000)
    op = b.row("ops", name="dot.1", start=100, duration=50, depth=0, instruction=product)
    outside = b.layer("(outside all layers)", role="unattributed")
    b.operator("dot.1", 100, 50, op=op, step=0, instruction=product, layer=outside)
    model = manifest(network="n", framework="Keras", inputs=(), layers=tuple(described))
    found = layers(b.build(), model=model)
    once = 2 * 4 * 5 * 6
    assert dict(found.frame.select("layer", "flops").iter_rows()) == {
        "net.apart": None,
        "net.fc": once,
        "(outside all layers)": once,
    }
    assert "no FLOPs: counted outside layers, in XLA programs (net.apart)" in found.notes


def test_a_manifest_counts_nothing_without_steps_and_the_note_has_the_reason() -> None:
    b = TraceBuilder()
    b.row("ranges", text="nn.Module: Linear_0", kind="module", process=9, thread=1, start=5,
          duration=90)  # fmt: skip
    b.row("ops", name="aten::linear", process=9, thread=1, start=10, duration=50)
    layer = Layer(path="fc", type="Linear", framework_type="Linear", position=0, inputs=((4, 5),),
                  outputs=((4, 6),), parameters={"weight": (6, 5)})  # fmt: skip
    model = manifest(network="n", framework=None, inputs=(), layers=(layer,))
    for command in (layers, flops):
        result = command(attribute(b.build()), model=model)
        assert not result.totals.get("flops")
        texts = [note for note in result.notes if "FLOPs" in note]
        assert any("layer manifest" in note and "without steps" in note for note in texts)
        assert not any("in neither the trace nor" in note for note in texts)


def _launches(b: TraceBuilder, at: int, *kernels: tuple[str, int]) -> None:
    """Launch ``kernels`` (name, time) from the host at ``at``, one after the other."""
    for number, (name, time) in enumerate(kernels):
        b.row("calls", name="cudaLaunchKernel", process=9, thread=1, start=at + 2 * number,
              duration=1, correlation=at + number)  # fmt: skip
        b.kernel(name, 100_000 * at + 10_000 * number, time, correlation=at + number, process=9,
                 stream=7)  # fmt: skip


def _refined(b: TraceBuilder) -> Trace:
    built, rules = attribute(b.build()), rules_in_use(None)
    return with_classes(built, rules)


BIAS = "void bias_activation_kernel<float, 4>(float*)"
TRANSPOSE = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false>(int)"
GEMM = "volta_sgemm_128x64_nn"


@pytest.mark.parametrize("beside", [BIAS, TRANSPOSE, "void at::native::elementwise_kernel<1>()"])
def test_the_flops_of_a_product_are_of_its_product_kernel_however_short(beside: str) -> None:
    b = TraceBuilder()
    b.row("ops", name="aten::mm", process=9, thread=1, start=10, duration=50, **PRODUCT)
    _launches(b, 20, (beside, 900), (GEMM, 100))
    rows = {row["category"]: row for row in roofline(_refined(b)).frame.to_dicts()}
    assert rows["gemm"]["flops"] == 240
    assert rows["gemm"]["flops_per_s"] == pytest.approx(240 / 100e-9)
    (other,) = (row for category, row in rows.items() if category != "gemm")
    assert (other["flops"], other["flops_per_s"], other["bytes"]) == (None, None, None)


def test_a_product_whose_kernel_was_not_recorded_is_in_no_class() -> None:
    b = TraceBuilder()
    b.row("ops", name="aten::mm", process=9, thread=1, start=10, duration=50, **PRODUCT)
    _launches(b, 20, (TRANSPOSE, 900))
    result = roofline(_refined(b))
    assert result.frame["flops"].null_count() == 1
    assert any("FLOPs without a class: 100.0 %" in note for note in result.notes)


BACKWARD = {
    "input_shapes": json.dumps(
        [[8, 64, 56, 56], [8, 32, 56, 56], [64, 32, 3, 3], [], [], [], [], [], [], [], []]
    ),
    "input_types": json.dumps(["float", "float", "float", *[""] * 8]),
    "inputs": json.dumps(
        ["", "", "", "[64]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1",
         "[True, True, True]"]
    ),
}  # fmt: skip


def test_gradients_whose_time_stands_together_have_no_time_of_their_own() -> None:
    b = TraceBuilder()
    b.row("ops", name="aten::convolution_backward", process=9, thread=1, start=10, duration=500,
          **BACKWARD)  # fmt: skip
    rows = flops(attribute(b.build())).frame
    parts = rows.filter(pl.col("flops") > 0)
    assert parts["part"].sort().to_list() == ["bias_grad", "dgrad", "wgrad"]
    assert parts["time_ns"].null_count() == 3
    assert rows.filter(pl.col("flops").is_null())["time_ns"].to_list() == [500]
    assert flops(attribute(b.build())).totals["time_ns"] == 500
    (shape,) = by_shape(attribute(b.build())).frame.to_dicts()
    assert (shape["flops"], shape["time_ns"]) == (parts["flops"].sum(), 500)


def _recurrent_step(recurrent: dict[str, str]) -> TraceBuilder:
    """Return a step of a layer that ran a product of 100 ns and a recurrent kernel of 900 ns."""
    b = TraceBuilder()
    b.row("ranges", text="ProfilerStep#1", kind="step", process=9, thread=1, start=0,
          duration=900)  # fmt: skip
    b.row("ranges", text="nn.Module: LSTM_0", kind="module", process=9, thread=1, start=5,
          duration=500)  # fmt: skip
    b.row("ops", name="aten::mm", process=9, thread=1, start=10, duration=50, **PRODUCT)
    b.row("ops", name="mine::lstm", process=9, thread=1, start=100, duration=50, **recurrent)
    _launches(b, 20, (GEMM, 100))
    _launches(b, 110, ("lstm_cell_kernel", 900))
    return b


def test_a_layer_that_is_counted_in_part_has_no_rate() -> None:
    trace = attribute(_recurrent_step({}).build())
    row = layers(trace).frame.filter(pl.col("role") == "layer").row(0, named=True)
    assert (row["flops"], row["flops_per_s"], row["of_attainable"]) == (240, None, None)
    shares = [
        note
        for result in (layers(trace), flops(trace), roofline(trace))
        for note in result.notes
        if "without FLOP counts" in note
    ]
    assert shares == ["time without FLOP counts: 90.0 %"] * 3


def test_a_layer_whose_only_count_is_that_of_a_copy_has_none() -> None:
    b = TraceBuilder()
    b.row("ranges", text="nn.Module: Moe_0", kind="module", process=9, thread=1, start=0,
          duration=1_000)  # fmt: skip
    moved = {"input_shapes": "[[4, 8], [4, 8]]", "input_types": '["float", "float"]'}
    for at, name, recorded in ((100, "aten::copy_", moved), (400, "custom::fused_moe", {})):
        b.row("ops", name=name, process=9, thread=1, start=at, duration=200, **recorded)
        b.row("calls", name="cudaLaunchKernel", process=9, thread=1, start=at + 10, duration=5,
              correlation=at)  # fmt: skip
        b.kernel("volta_sgemm_128x64_nn", 1_000 + at, 50, correlation=at, process=9, stream=7)
    trace = with_classes(attribute(b.build()), rules_in_use(None))
    (row,) = layers(trace).frame.filter(pl.col("role") == "layer").to_dicts()
    assert row["layer"] == "Moe_0"
    assert row["flops"] is row["executed_flops"] is row["bytes"] is row["bound"] is None


def test_the_manifest_counts_a_layer_that_the_trace_counts_in_part() -> None:
    trace = attribute(_recurrent_step({}).build())
    layer = Layer(path="LSTM_0", type="Linear", framework_type="Linear", position=0,
                  inputs=((40, 50),), outputs=((40, 60),),
                  parameters={"weight": (60, 50)})  # fmt: skip
    model = manifest(network="n", framework=None, inputs=(), layers=(layer,))
    whole = 2 * 40 * 50 * 60
    found = layers(trace, model=model)
    row = found.frame.filter(pl.col("role") == "layer").row(0, named=True)
    assert row["flops"] == whole
    assert row["flops_per_s"] == pytest.approx(whole / 1e-6)
    results = (found, flops(trace, model), roofline(trace, model=model))
    assert {result.totals["flops"] for result in results} == {whole}
    assert not any("without FLOP counts" in note for one in results for note in one.notes)
    assert flops(trace, model).totals["time_ns"] == 1000


def test_work_of_no_operator_has_no_flop_count_in_any_command() -> None:
    b = TraceBuilder()
    b.row("ops", name="aten::mm", process=9, thread=1, start=10, duration=50, **PRODUCT)
    _launches(b, 20, (GEMM, 100))
    b.kernel("k", 9_000_000, 300, process=9, stream=7)
    b.row("activities", kind="memcpy", start=9_100_000, duration=100, process=9, device=0,
          stream=7)  # fmt: skip
    trace = _refined(b)
    for result in (layers(trace), flops(trace), roofline(trace)):
        assert "time without FLOP counts: 60.0 %" in result.notes


def _attention(causal: str | None) -> Trace:
    b = TraceBuilder()
    shape = [2, 4, 16, 8]
    recorded = {} if causal is None else {
        "inputs": json.dumps(["", "", "", "", "0.", causal, "", "False"])
    }  # fmt: skip
    b.row("ops", name="aten::scaled_dot_product_attention", process=9, thread=1, start=10,
          duration=50, input_shapes=json.dumps([shape, shape, shape, [], [], [], [], []]),
          input_types=json.dumps(["float"] * 3 + [""] * 5), **recorded)  # fmt: skip
    _launches(b, 20, ("flash_fwd_kernel", 100))
    return _refined(b)


def test_causal_attention_has_the_count_of_the_square_and_of_what_the_mask_keeps() -> None:
    square = 2 * 2 * 4 * 16 * 16 * (8 + 8)
    kept = square * (16 * 17 // 2) // (16 * 16)
    for causal, executed in (("True", kept), ("False", square), (None, None)):
        trace = _attention(causal)
        for result in (flops(trace), layers(trace), roofline(trace)):
            row = result.frame.filter(pl.col("flops") > 0).row(0, named=True)
            assert (row["flops"], row["executed_flops"]) == (square, executed)
            reported = any(note.startswith("causal attention:") for note in result.notes)
            assert reported is (causal == "True")


def test_the_flops_of_work_without_a_pass_are_beside_its_time() -> None:
    """XLA drops scopes: a product of an unknown pass stands beside work of a known one."""
    b = TraceBuilder()
    product = b.row(
        "instructions", name="dot.1", opcode="dot", input_shapes="[[8,8],[8,8]]",
        input_types='["f32","f32"]', output_shape="[8,8]", output_type="f32",
        attributes='{"lhs_contracting":[1],"rhs_contracting":[0],"lhs_batch":[],"rhs_batch":[]}',
    )  # fmt: skip
    b.row("ops", name="dot.1", process=9, thread=1, start=0, duration=50, instruction=product)
    for start, scope in ((60, "jit(f)/jvp()/exp"), (70, "jit(f)/transpose(jvp())/mul")):
        b.row("ops", name="fusion", process=9, thread=1, start=start, duration=5, scope=scope)
    found = layers(attribute(b.build()), direction=True).frame
    rows = found.select(pl.col("direction").cast(pl.String), "time_ns", "flops").rows()
    assert set(rows) == {(None, 50, 2 * 8**3), ("forward", 5, None), ("backward", 5, None)}


def test_a_convolution_that_is_timed_in_a_following_row_has_no_rate() -> None:
    b = TraceBuilder(framework="TensorFlow")
    b.name("_FusedConv2D", category="conv")
    b.name("Conv2D", category="conv")
    b.name("Conv2DBackpropFilter", category="conv")
    described = []
    weight: dict[str, tuple[int, ...]] = {"weight": (4, 4, 3, 3)}
    calls: dict[str, tuple[str, dict[str, tuple[int, ...]], list[tuple[str, str]]]] = {
        "alone": ("Conv2d", weight, [("Conv2D", "forward"), ("Conv2DBackpropFilter", "backward")]),
        "conv": ("Conv2d", weight, [("ReadVariableOp", "forward"),
                                    ("Conv2DBackpropFilter", "backward")]),
        "relu": ("ReLU", {}, [("_FusedConv2D", "forward"), ("ReluGrad", "backward")]),
    }  # fmt: skip
    b.step(0, 0, 1000)
    at = 0
    for number, (name, (kind, parameters, ran)) in enumerate(calls.items()):
        row = b.layer(f"net.{name}", kind)
        for operator, direction in ran:
            columns = {"layer": row, "direction": direction}
            scope = f"net/{name}/{operator}"
            op = b.row("ops", name=operator, scope=scope, start=at, duration=50, depth=0, **columns)
            b.operator(operator, at, 50, op=op, step=0, **columns)
            at += 60
        described.append(
            Layer(path=f"net/{name}", type=kind, framework_type=kind, position=number,
                  inputs=((2, 4, 8, 8),), outputs=((2, 4, 8, 8),), parameters=parameters,
                  kernel=(3, 3) if parameters else None, groups=1 if parameters else None)
        )  # fmt: skip
    model = manifest(network="net", framework="Keras", inputs=(), layers=tuple(described))
    found = layers(b.build(), model=model)
    rates = dict(found.frame.select("layer", "flops_per_s").iter_rows())
    assert rates["net.alone"] and rates["net.conv"] is None and rates["net.relu"] is None
    assert "no rate, fused into a following layer's row: 66.7 %" in found.notes
    assert set(found.frame.filter(pl.col("layer") != "net.relu")["flops"].is_null()) == {False}
