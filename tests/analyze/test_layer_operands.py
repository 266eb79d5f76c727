"""Inputs and weights of layers, in traces without a layer manifest."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

import traceana
from tests.support.traces import TraceBuilder
from traceana.analyze.layer_operands import operands
from traceana.runs.layer_manifest import find, read

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.mark.parametrize(
    ("operator", "shapes", "taken", "weight"),
    [
        ("aten::linear", [[8, 5], [7, 5], [7]], (8, 5), (7, 5)),
        # The bias stands in front.
        ("aten::addmm", [[7], [8, 5], [5, 7], [], []], (8, 5), (5, 7)),
        ("aten::_addmm_activation", [[7], [8, 5], [5, 7], [], [], []], (8, 5), (5, 7)),
        # TorchScript's, with two values of the interpreter's in front of the bias.
        ("aten::addmm", [[3, 3], [], [7], [8, 5], [5, 7], [], [], []], (8, 5), (5, 7)),
        ("aten::embedding", [[100, 32], [2, 16], [], [], []], (2, 16), (100, 32)),
        ("aten::embedding_bag", [[100, 32], [32], [2], [], [], [], [], [], []], (32,), (100, 32)),
        ("aten::_embedding_bag", [[100, 32], [32], [2], [], [], [], [], [], []], (32,), (100, 32)),
        (
            "mkldnn::_convolution_pointwise_",
            [[2, 6, 4, 4], [2, 4, 8, 8], [6, 4, 3, 3], [6]],
            (2, 4, 8, 8),
            (6, 4, 3, 3),
        ),
        ("aten::layer_norm", [[2, 9], [], [9], [9], [], []], (2, 9), (9,)),
        ("aten::relu", [[2, 9]], (2, 9), None),
        ("Conv2D", [[2, 8, 8, 3], [5, 5, 3, 4]], (2, 8, 8, 3), (5, 5, 3, 4)),
        ("_FusedMatMul", [[8, 5], [5, 7], [7]], (8, 5), (5, 7)),
        ("_MklNativeConv2DWithBias", [[2, 8, 8, 3], [5, 5, 3, 4]], (2, 8, 8, 3), (5, 5, 3, 4)),
        ("FusedBatchNormV3", [[2, 8, 8, 3], [3], [3]], (2, 8, 8, 3), (3,)),
    ],
)
def test_an_operator_of_pytorch(
    operator: str, shapes: list[list[int]], taken: tuple[int, ...], weight: tuple[int, ...] | None
) -> None:
    b = TraceBuilder()
    layer = b.layer("one")
    b.row("ops", name=operator, process=1, thread=1, start=0, duration=9, depth=0, layer=layer,
          input_shapes=json.dumps(shapes))  # fmt: skip
    found = operands(b.build())[layer]
    assert (found.input, found.weight) == (taken, weight)


@pytest.mark.parametrize(
    "before",
    [
        [("aten::_weight_norm", [[8, 3, 3, 3], [8, 1, 1, 1], []])],
        [
            ("aten::flatten", [[8, 3, 3, 3], [], []]),
            ("aten::mv", [[8, 27], [27]]),
            ("aten::matmul", [[8, 27], [27, 27]]),
        ],
        # A standardized weight.
        [
            ("aten::reshape", [[8, 3, 3, 3], []]),
            ("aten::batch_norm", [[1, 8, 27], [], [], [], []]),
        ],
    ],
)
def test_a_layer_that_computes_its_weight_has_the_operands_of_its_convolution(
    before: list[tuple[str, list[list[int]]]],
) -> None:
    b = TraceBuilder()
    layer = b.layer("one")
    convolution = ("aten::conv2d", [[4, 3, 16, 16], [8, 3, 3, 3], [8], [], [], [], []])
    for number, (operator, shapes) in enumerate([*before, convolution]):
        b.row("ops", name=operator, process=1, thread=1, start=number, duration=1, depth=0,
              layer=layer, input_shapes=json.dumps(shapes))  # fmt: skip
    found = operands(b.build())[layer]
    assert (found.input, found.weight) == ((4, 3, 16, 16), (8, 3, 3, 3))
    assert found.parameter


def test_what_a_layer_does_to_its_input_first_has_the_input() -> None:
    b = TraceBuilder()
    layer = b.layer("one")
    for number, (operator, shapes) in enumerate(
        [
            ("aten::pad", [[4, 3, 16, 16], [], [], []]),
            ("aten::conv2d", [[4, 3, 18, 18], [8, 3, 3, 3], [8], [], [], [], []]),
        ]
    ):
        b.row("ops", name=operator, process=1, thread=1, start=number, duration=1, depth=0,
              layer=layer, input_shapes=json.dumps(shapes))  # fmt: skip
    assert operands(b.build())[layer].input == (4, 3, 16, 16)


def test_a_hook_in_front_has_no_weight() -> None:
    b = TraceBuilder()
    layer = b.layer("one")
    for number, (operator, shapes) in enumerate(
        [("BackwardHookFunction", "[[8, 5], [8, 5]]"), ("aten::linear", "[[8, 5], [7, 5], [7]]")]
    ):
        b.row("ops", name=operator, process=1, thread=1, start=number, duration=1, depth=0,
              layer=layer, input_shapes=shapes)  # fmt: skip
    assert operands(b.build())[layer][:3] == ((8, 5), (7, 5), None)


def _instruction(b: TraceBuilder, opcode: str, **columns: Any) -> int:
    return b.row("instructions", program="p", program_id=1, name=opcode, opcode=opcode,
                 output_type="f32", **columns)  # fmt: skip


def test_a_convolution_in_a_fusion_in_any_layout() -> None:
    b = TraceBuilder()
    layer = b.layer("one")
    fusion = _instruction(b, "fusion", input_shapes="[[3],[2,8,9,4]]", output_shape="[2,8,9,3]")
    numbers = {
        "input_batch": 0, "input_feature": 3, "input_spatial": [1, 2], "output_batch": 0,
        "output_feature": 3, "output_spatial": [1, 2], "kernel_input_feature": 2,
        "kernel_output_feature": 3,
    }  # fmt: skip
    _instruction(b, "convolution", parent=fusion, input_shapes="[[2,8,9,4],[1,1,4,3]]",
                 output_shape="[2,8,9,3]",
                 attributes=json.dumps({"dimension_numbers": numbers}))  # fmt: skip
    b.row("ops", name="fusion", process=1, thread=1, start=0, duration=9, depth=0, layer=layer,
          instruction=fusion)  # fmt: skip
    found = operands(b.build())[layer]
    assert (found.input, found.weight, found.output) == ((2, 4, 8, 9), (1, 1, 4, 3), (2, 3, 8, 9))


@pytest.mark.parametrize("output", ["[2,8,9,3]", "[2,3]"])
def test_numbers_of_dimensions_that_are_none_give_no_shape(output: str) -> None:
    """Nor do the output's numbers, which are not recorded."""
    b = TraceBuilder()
    layer = b.layer("one")
    numbers = {"input_batch": 7, "kernel_input_feature": 2, "kernel_output_feature": 3}
    row = _instruction(b, "convolution", parent=0, input_shapes="[[2,8,9,4],[1,1,4,3]]",
                       output_shape=output,
                       attributes=json.dumps({"dimension_numbers": numbers}))  # fmt: skip
    b.row("ops", name="convolution", process=1, thread=1, start=0, duration=9, depth=0,
          layer=layer, instruction=row)  # fmt: skip
    assert operands(b.build())[layer][:3] == (None, (1, 1, 4, 3), None)


def test_an_image_smaller_than_the_window_is_exchanged_with_it() -> None:
    b = TraceBuilder()
    layer = b.layer("one")
    numbers = {
        "input_batch": 3, "input_feature": 2, "input_spatial": [0, 1], "output_batch": 3,
        "output_feature": 0, "output_spatial": [1, 2], "kernel_input_feature": 3,
        "kernel_output_feature": 0, "kernel_spatial": [1, 2],
    }  # fmt: skip
    window = {"size": [4, 4], "stride": [1, 1], "padding_low": [1, 1], "base_dilation": [1, 1],
              "window_dilation": [1, 1], "reversal": [1, 1]}  # fmt: skip
    attributes = json.dumps({"window": window, "dimension_numbers": numbers})
    row = _instruction(b, "convolution", input_shapes="[[5,5,2,6],[8,4,4,2]]",
                       output_shape="[8,4,4,6]", attributes=attributes)  # fmt: skip
    b.row("ops", name="convolution", process=1, thread=1, start=0, duration=9, depth=0,
          layer=layer, instruction=row)  # fmt: skip
    assert operands(b.build())[layer][:3] == ((8, 2, 4, 4), (5, 5, 2, 6), (8, 6, 4, 4))


@pytest.mark.parametrize("name", ["alexnet-cpu-jax", "googlenet-cpu-jax", "resnet50-cpu-jax"])
def test_a_compiled_network_has_the_operands_of_its_manifest(name: str) -> None:
    folder = FIXTURES / ("xplane" if "alexnet" in name else "networks")
    (file,) = folder.glob(f"{name}.xplane.pb*")
    beside = find(file)
    assert beside is not None
    described = {one.path: one for one in read(beside).layers}
    trace = traceana.open(file)
    found = operands(trace)
    paths = trace.tables.layers["path"].str.split(".").list.last().to_list()
    weighted = {one.path for one in described.values() if len(one.parameters.get("weight", ())) > 1}
    assert {paths[row] for row in found} == weighted
    for row, one in found.items():
        layer = described[paths[row]]
        assert one.weight is not None
        assert prod(one.weight) == prod(layer.parameters["weight"])
        assert one.input in (None, tuple(layer.inputs[0]))
        assert one.output in (None, tuple(layer.outputs[0]))
    # One convolution of 1 x 1 became a plain product.
    assert sum(one.input is None for one in found.values()) == (0 if "alexnet" in name else 1)
