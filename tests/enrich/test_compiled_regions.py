"""Layers inside regions of ``torch.compile``: built graphs, whose answer is known."""

from __future__ import annotations

import json
from collections.abc import Sequence

import polars as pl
import pytest

from tests.enrich.test_attribution import annotate, launch, op, paths
from tests.support.traces import TraceBuilder
from traceana.analyze.layers import layers
from traceana.enrich import attribute
from traceana.trace import Trace

Called = tuple[str, Sequence[Sequence[int]]]
"""The name of a call of a compiled graph, and the shapes of its inputs."""

LONG, PAUSE = 10, 5


class Program:
    """Steps of one compiled region, at 1 µs from each other."""

    def __init__(self, *, on_device: bool = False) -> None:
        self.builder = TraceBuilder()
        self._on_device = on_device
        self._time = 0
        self._launches = 0

    def step(
        self,
        forward: Sequence[Called],
        backward: Sequence[Called] = (),
        evaluation: Sequence[Called] = (),
    ) -> None:
        """Add a step: a graph, its backward graph, then a graph without gradients."""
        b, begin = self.builder, self._time
        b.step(begin // 100_000, begin, 90_000, process=9)
        number = 1 + begin // 100_000
        end = self._graph("0/0", forward, begin, sequence=number)
        if evaluation:
            self._graph("0/1", evaluation, begin + 50_000)
        begin = end + 1_000
        end = begin + 20 + self._length(backward)
        node = "CompiledFunctionBackward"
        op(b, f"autograd::engine::evaluate_function: {node}", begin, end + 20, sequence=number)
        op(b, node, begin + 10, end, sequence=number)
        self._calls(backward, begin + 10)
        self._time += 100_000

    def _graph(
        self, number: str, calls: Sequence[Called], begin: int, sequence: int | None = None
    ) -> int:
        end = begin + 20 + self._length(calls)
        op(self.builder, f"Torch-Compiled Region: {number}", begin, end + 20)
        op(self.builder, "CompiledFunction", begin + 10, end, sequence=sequence)
        self._calls(calls, begin + 10)
        return end

    def trace(self) -> Trace:
        return attribute(self.builder.build())

    def _length(self, calls: Sequence[Called]) -> int:
        return (LONG + PAUSE) * len(calls) + PAUSE

    def _calls(self, calls: Sequence[Called], begin: int) -> None:
        for place, (name, shapes) in enumerate(calls):
            start = begin + PAUSE + place * (LONG + PAUSE)
            text = json.dumps([list(shape) for shape in shapes]) if shapes else None
            op(self.builder, name, start, start + LONG, input_shapes=text)
            if self._on_device:
                self._launches += 1
                launch(self.builder, self._launches, start + 1)


def of_calls(trace: Trace, name: str) -> list[str | None]:
    """Return the layers of the calls of ``name``, in order of time."""
    ops = trace.tables.ops.filter(trace.tables.ops["name"] == name).sort("start")
    return trace.tables.layers["path"].gather(ops["layer"]).to_list()


CONV_1 = ("aten::convolution", [[2, 3, 8, 8], [4, 3, 3, 3], [4]])
CONV_2 = ("aten::convolution", [[2, 4, 8, 8], [4, 4, 3, 3], [4]])
OF_CONV_1 = ("aten::convolution_backward", [[2, 4, 8, 8], [2, 3, 8, 8], [4, 3, 3, 3]])
OF_CONV_2 = ("aten::convolution_backward", [[2, 4, 8, 8], [2, 4, 8, 8], [4, 4, 3, 3]])
LINEAR = ("aten::addmm", [[10], [2, 256], [256, 10]])
OF_INPUT = ("aten::mm", [[2, 10], [10, 256]])
OF_WEIGHT = ("aten::mm", [[10, 2], [2, 256]])


@pytest.mark.parametrize("steps", [1, 3])
def test_calls_are_layers_and_gradients_have_those_of_their_forward_calls(steps: int) -> None:
    program = Program()
    for _ in range(steps):
        program.step(
            [CONV_1, ("graph_0_cpp_fused_relu_0", []), CONV_2, LINEAR],
            # The gradient of a weight may run at the end, the first of an input is not needed.
            [
                OF_INPUT,
                OF_CONV_2,
                ("graph_1_cpp_fused_convolution_backward_threshold_backward_1", []),
                OF_CONV_1,
                OF_WEIGHT,
            ],
        )
    trace = program.trace()
    assert of_calls(trace, "aten::convolution") == ["convolution_0", "convolution_1"] * steps
    assert of_calls(trace, "aten::convolution_backward") == [
        "convolution_1", "convolution_0",
    ] * steps  # fmt: skip
    assert of_calls(trace, "aten::mm") == ["addmm_0"] * 2 * steps
    assert of_calls(trace, "graph_0_cpp_fused_relu_0") == ["fused_relu_0"] * steps
    behind = "graph_1_cpp_fused_convolution_backward_threshold_backward_1"
    assert of_calls(trace, behind) == ["fused_relu_0"] * steps
    assert set(trace.tables.activities["direction"]) == {"forward", "backward"}


def test_kernels_on_a_device_have_the_layer_of_the_call_that_launched_them() -> None:
    program = Program(on_device=True)
    relu, its_gradient = "triton_poi_fused_relu_0", "triton_poi_fused_threshold_backward_0"
    program.step([CONV_1, (relu, []), CONV_2], [OF_CONV_2, (its_gradient, []), OF_CONV_1])
    assert paths(program.trace()) == [
        *("convolution_0", "fused_relu_0", "convolution_1"),
        *("convolution_1", "fused_relu_0", "convolution_0"),
    ]


def test_products_that_shapes_do_not_tell_apart_have_two_gradients_each() -> None:
    square = ("aten::addmm", [[4], [8, 4], [4, 4]])
    of_input, of_weight = ("aten::mm", [[8, 4], [4, 4]]), ("aten::mm", [[4, 8], [8, 4]])
    program = Program()
    program.step([square] * 3, [of_input, of_weight] * 3)
    twice = [name for name in ("addmm_2", "addmm_1", "addmm_0") for _ in range(2)]
    assert of_calls(program.trace(), "aten::mm") == twice


def test_a_wide_and_a_narrow_product_of_the_same_extents_are_told_apart() -> None:
    up, down = ("aten::addmm", [[9], [8, 4], [4, 9]]), ("aten::addmm", [[4], [8, 9], [9, 4]])
    program = Program()
    program.step(
        [up, down],
        [
            ("aten::mm", [[4, 8], [8, 9]]),
            ("aten::mm", [[8, 4], [4, 9]]),
            ("aten::mm", [[8, 9], [9, 4]]),
            ("aten::mm", [[9, 8], [8, 4]]),
        ],
    )
    assert of_calls(program.trace(), "aten::mm") == ["addmm_1", "addmm_1", "addmm_0", "addmm_0"]


def test_gradients_that_are_too_many_stay_with_the_region() -> None:
    program = Program()
    program.step([CONV_2], [OF_CONV_2] * 2)
    region = "Torch-Compiled Region: 0/0_0"
    assert of_calls(program.trace(), "aten::convolution_backward") == [region] * 2


def test_a_call_that_a_checkpoint_repeats_is_told_by_its_operands_or_not_at_all() -> None:
    program = Program()
    program.step([CONV_1, CONV_2, CONV_2], [CONV_1, CONV_2, OF_CONV_2, OF_CONV_2, OF_CONV_1])
    assert of_calls(program.trace(), "aten::convolution") == [
        *("convolution_0", "convolution_1", "convolution_2"),
        *("convolution_0", "Torch-Compiled Region: 0/0_0"),
    ]


def test_a_product_that_a_checkpoint_repeats_is_not_a_gradient() -> None:
    """A bias shows which of the products of equal operands are computed again."""
    wide, narrow = ("aten::addmm", [[9], [8, 4], [4, 9]]), ("aten::addmm", [[4], [8, 9], [9, 4]])
    # That of the narrow product's input first, whose operands are the wide product's.
    gradients = [
        ("aten::mm", [[8, 4], [4, 9]]),
        ("aten::mm", [[4, 8], [8, 9]]),
        ("aten::mm", [[8, 9], [9, 4]]),
        ("aten::mm", [[9, 8], [8, 4]]),
    ]
    program = Program()
    program.step([wide, narrow], [wide, *gradients])
    trace = program.trace()
    assert of_calls(trace, "aten::addmm") == ["addmm_0", "addmm_1", "addmm_0"]
    assert of_calls(trace, "aten::mm") == ["addmm_1", "addmm_1", "addmm_0", "addmm_0"]
    # Of two equal products it is unknown which one is computed again, but not whose gradients are.
    program = Program()
    program.step([wide, narrow] * 2, [wide, *gradients, wide, *gradients])
    trace = program.trace()
    region = "Torch-Compiled Region: 0/0_0"
    assert of_calls(trace, "aten::addmm")[4:] == [region] * 2
    assert of_calls(trace, "aten::mm") == [
        name for name in ("addmm_3", "addmm_2", "addmm_1", "addmm_0") for _ in range(2)
    ]


def test_generated_code_without_events_is_behind_the_call_before_it() -> None:
    program = Program()
    program.step([CONV_1, CONV_2], [OF_CONV_2, OF_CONV_1])
    trace = program.trace()
    name = trace.tables.names["name"].gather(trace.tables.activities["name_id"]).cast(pl.String)
    stretches = trace.tables.activities.filter(name.str.starts_with("CompiledFunction")).sort(
        "start"
    )
    # Forward: before, between and behind the calls; backward: the same places in reverse.
    assert trace.tables.layers["path"].gather(stretches["layer"]).to_list() == [
        *("fused_0", "fused_1", "fused_2"),
        *("fused_2", "fused_1", "fused_0"),
    ]


def test_the_gradient_of_a_convolution_that_runs_as_a_product_is_that_products() -> None:
    """Inductor multiplies where the window is one pixel; the gradient is still a convolution's."""
    of_wide = ("aten::convolution_backward", [[2, 6, 8, 8], [2, 4, 8, 8], [6, 4, 1, 1]])
    of_narrow = ("aten::convolution_backward", [[2, 4, 8, 8], [2, 6, 8, 8], [4, 6, 1, 1]])
    wide, narrow = ("aten::mm", [[128, 4], [4, 6]]), ("aten::addmm", [[4], [128, 6], [6, 4]])
    program = Program()
    program.step([wide, narrow, wide], [of_wide, of_narrow, of_wide])
    assert of_calls(program.trace(), "aten::convolution_backward") == ["mm_1", "addmm_0", "mm_0"]
    # Which of three products has the two gradients is unknown.
    program = Program()
    program.step([CONV_1, wide, wide, wide], [of_wide, of_wide, OF_CONV_1])
    layers_ = of_calls(program.trace(), "aten::convolution_backward")
    assert layers_ == ["Torch-Compiled Region: 0/0_0"] * 2 + ["convolution_0"]


SCATTER = ("aten::scatter_reduce_", [[2, 64, 64], [], [2, 64, 16], [2, 64, 16]])
"""In the gradient of a max pooling, whose forward pass is generated code."""
POOLING = ("aten::max_pool2d_with_indices", [[2, 4, 8, 8]])


def test_a_call_amid_generated_code_is_part_of_it() -> None:
    program = Program()
    program.step([CONV_1, CONV_2], [OF_CONV_2, SCATTER, OF_CONV_1, SCATTER])
    assert of_calls(program.trace(), "aten::scatter_reduce_") == ["fused_1", "fused_0"]


def test_a_call_amid_generated_code_is_the_gradient_of_the_call_that_it_names() -> None:
    program = Program()
    of_pooling = ("aten::max_pool2d_with_indices_backward", [[2, 4, 8, 8]])
    drawn: Called = ("aten::bernoulli_", [])
    program.step([CONV_1, POOLING, CONV_2], [OF_CONV_2, of_pooling, OF_CONV_1])
    program.step([CONV_1, drawn, CONV_2], [OF_CONV_2, SCATTER, OF_CONV_1])
    trace = program.trace()
    assert of_calls(trace, of_pooling[0]) == ["max_pool2d_with_indices_0"]
    (layer,) = of_calls(trace, SCATTER[0])
    assert str(layer).startswith("fused_")


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([CONV_1, CONV_2], ["convolution_0", "convolution_1"]),
        # A part of a module, such as its rotary embedding, tells less than the module.
        ([CONV_1], ["Net_0"]),
    ],
)
def test_graphs_of_several_products_are_looked_into_inside_a_module_too(
    calls: list[Called], expected: list[str]
) -> None:
    program = Program()
    program.step(calls)
    annotate(program.builder, "nn.Module: Net_0", 0, 500, kind="module")
    assert of_calls(program.trace(), "aten::convolution") == expected


def test_the_range_around_a_compiled_graph_is_no_layer() -> None:
    program = Program()
    program.step([CONV_1])
    annotate(program.builder, "## Call CompiledFxGraph fxyz ##", 12, 40)
    assert of_calls(program.trace(), "aten::convolution") == ["convolution_0"]


def test_without_recorded_shapes_the_backward_graph_stays_with_the_region() -> None:
    program = Program()
    relu, its_gradient = "triton_poi_fused_relu_0", "triton_poi_fused_convolution_backward_1"
    calls = [name for name, _ in (CONV_1, (relu, []), CONV_2)]
    gradients = [name for name, _ in (OF_CONV_2, (its_gradient, []), OF_CONV_1)]
    program.step([(name, []) for name in calls], [(name, []) for name in gradients])
    trace = program.trace()
    assert of_calls(trace, "aten::convolution") == ["convolution_0", "convolution_1"]
    region = "Torch-Compiled Region: 0/0_0"
    assert of_calls(trace, "aten::convolution_backward") == [region] * 2
    assert of_calls(trace, its_gradient) == [region]
    (note,) = (one for one in layers(trace).notes if "torch.compile" in one)
    assert note.startswith("backward time in regions of torch.compile: 50.0 % (without recorded")


def test_a_graph_of_generated_kernels_is_paired_by_what_they_name() -> None:
    program = Program()
    gelu = "triton_poi_fused_gelu_0"
    program.step([(gelu, [])], [("triton_poi_fused_gelu_backward_0", [])])
    assert of_calls(program.trace(), "triton_poi_fused_gelu_backward_0") == ["fused_gelu_0"]


def test_the_call_of_a_graph_may_be_an_operator() -> None:
    """As PyTorch writes it without recorded shapes."""
    b, call = TraceBuilder(), "## Call CompiledFxGraph fxyz ##"
    op(b, "Torch-Compiled Region: 0/0", 0, 100)
    op(b, "CompiledFunction", 5, 95, sequence=1)
    op(b, call, 10, 90)
    op(b, "aten::convolution", 20, 30)
    op(b, "aten::addmm", 40, 50)
    trace = attribute(b.build())
    assert of_calls(trace, "aten::addmm") == ["addmm_0"]
    name = trace.tables.names["name"].gather(trace.tables.activities["name_id"])
    own = trace.tables.activities.filter(name == call).sort("start")
    assert trace.tables.layers["path"].gather(own["layer"]).to_list() == [
        "fused_0",
        "fused_1",
        "fused_2",
    ]


def test_a_graph_without_products_is_not_divided() -> None:
    program = Program()
    program.step([("aten::max_pool2d_with_indices", [[2, 3, 8, 8]])])
    trace = program.trace()
    assert not any(str(path).startswith("fused_") for path in trace.tables.layers["path"])


def test_regions_without_calls_are_one_layer() -> None:
    """All of their code is generated, and has no events on a CPU."""
    program = Program()
    program.step([], [])
    trace = program.trace()
    assert set(trace.tables.layers["path"]) == {"Torch-Compiled Region: 0/0_0"}


def test_a_function_of_that_name_outside_a_region_is_one_operator() -> None:
    b = TraceBuilder()
    op(b, "CompiledFunction", 0, 100)
    op(b, "aten::copy_", 10, 20)
    launch(b, 1, 12)
    assert paths(attribute(b.build())) == ["CompiledFunction_0"]
