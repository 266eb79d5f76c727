"""FLOPs of XLA's instructions in closed form, and of a real program's layers."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.support.manifest import TRACES
from tests.support.opened import opened
from traceana.flops.hlo import instruction_flops
from traceana.flops.registry import FORMULAS
from traceana.runs.layer_manifest import Layer, read
from traceana.trace.schema import conform

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "xplane"
NHWC = {
    "input_batch": 0,
    "input_feature": 3,
    "input_spatial": [1, 2],
    "kernel_input_feature": 2,
    "kernel_output_feature": 3,
    "kernel_spatial": [0, 1],
    "output_batch": 0,
    "output_feature": 3,
    "output_spatial": [1, 2],
}
FORWARD, BACKWARD = "jit(f)/jvp(conv)/conv", "jit(f)/transpose(jvp(conv))/conv"


def row(opcode: str, inputs: list[Any], output: Any, **more: Any) -> dict[str, Any]:
    attributes = more.pop("attributes", None)
    return {
        "program": "jit_f",
        "opcode": opcode,
        "input_shapes": json.dumps(inputs),
        "output_shape": json.dumps(output),
        "output_type": "f32",
        "attributes": json.dumps(attributes) if attributes else None,
        **more,
    }


def conv(
    inputs: list[list[int]], output: list[int], numbers: dict[str, Any] = NHWC, **more: Any
) -> dict[str, Any]:
    window = {
        "size": [inputs[1][i] for i in numbers["kernel_spatial"]],
        **{key: more.pop(key, [0, 0]) for key in ("padding_low", "padding_high")},
        **{key: more.pop(key, [1, 1]) for key in ("stride", "base_dilation", "window_dilation")},
    }
    attributes = {"window": window, "dimension_numbers": numbers}
    return row("convolution", inputs, output, attributes=attributes, **more)


def table(*rows: dict[str, Any]) -> pl.DataFrame:
    return conform("instructions", pl.DataFrame(list(rows), infer_schema_length=None))


def flops(*rows: dict[str, Any]) -> dict[int, int]:
    found = instruction_flops(table(*rows))
    assert set(found["formula"]) <= set(FORMULAS)
    return dict(found.select("instruction", "flops").iter_rows())


def test_a_forward_convolution_counts_whole_windows() -> None:
    # AlexNet's first layer; that windows lie on padding makes no difference.
    first = conv([[4, 224, 224, 3], [11, 11, 3, 64]], [4, 55, 55, 64], stride=[4, 4])
    assert flops(first) == {0: 2 * 4 * 64 * 55 * 55 * 11 * 11 * 3}
    more: dict[str, Any] = {"stride": [4, 4], "padding_low": [2, 2], "padding_high": [2, 2]}
    assert flops(conv([[4, 224, 224, 3], [11, 11, 3, 64]], [4, 55, 55, 64], **more)) == flops(first)


def test_dimension_numbers_decide_not_the_order() -> None:
    nchw = {
        **NHWC,
        **{"input_feature": 1, "input_spatial": [2, 3], "output_feature": 1},
        **{"output_spatial": [2, 3], "kernel_output_feature": 0, "kernel_input_feature": 1},
        "kernel_spatial": [2, 3],
    }
    assert flops(conv([[2, 3, 9, 7], [5, 3, 3, 2]], [2, 5, 7, 6], nchw)) == {
        0: 2 * 2 * 5 * (7 * 6) * (3 * 2) * 3
    }


def test_an_image_exchanged_with_the_window_counts_as_the_window() -> None:
    # 4 x 4 images under windows of 5 x 5: XLA has the images slide over the mirrored windows.
    swapped = {
        **{"input_batch": 3, "input_feature": 2, "input_spatial": [0, 1]},
        **{"kernel_output_feature": 0, "kernel_input_feature": 3, "kernel_spatial": [1, 2]},
        **{"output_batch": 3, "output_feature": 0, "output_spatial": [1, 2]},
    }
    mirrored = conv([[5, 5, 2, 6], [8, 4, 4, 2]], [8, 4, 4, 6], swapped, scope=FORWARD)
    attributes = json.loads(mirrored["attributes"])
    attributes["window"]["reversal"] = [1, 1]
    mirrored["attributes"] = json.dumps(attributes)
    plain = conv([[8, 4, 4, 2], [5, 5, 2, 6]], [8, 4, 4, 6], scope=FORWARD)
    assert flops(mirrored) == flops(plain) == {0: 2 * 8 * 6 * (4 * 4) * (5 * 5) * 2}


def test_groups_sum_their_own_features_only() -> None:
    grouped = conv([[4, 28, 28, 16], [3, 3, 4, 32]], [4, 26, 26, 32])
    depthwise = conv([[4, 28, 28, 16], [3, 3, 1, 16]], [4, 26, 26, 16])
    assert flops(grouped, depthwise) == {
        0: 2 * 4 * 32 * 26 * 26 * 9 * 4,
        1: 2 * 4 * 16 * 26 * 26 * 9,
    }


def test_the_weight_gradient_of_a_depthwise_convolution_by_groups_of_the_batch() -> None:
    # Batch and features of input and gradient have changed places; 16 groups of the batch.
    swapped = {**NHWC, "input_batch": 3, "input_feature": 0, "kernel_input_feature": 0}
    swapped |= {"kernel_spatial": [1, 2], "output_batch": 2, "output_spatial": [0, 1]}
    gradient = conv([[4, 28, 28, 16], [4, 26, 26, 16]], [3, 3, 1, 16], swapped)
    assert flops(gradient) == {0: 2 * 4 * 16 * 26 * 26 * 9}


def test_of_a_dilated_base_only_the_elements_count() -> None:
    # The gradient of a strided convolution's input: 28 x 28, stride 2, 13 x 13.
    gradient = conv([[4, 13, 13, 32], [3, 3, 32, 16]], [4, 28, 28, 16], base_dilation=[2, 2])
    assert flops(gradient) == {0: 2 * 4 * 16 * 13 * 13 * 9 * 32}
    # The gradient of a transposed convolution's weight: 7 x 7, window 4 x 4, stride 2, 16 x 16.
    weight = conv([[16, 7, 7, 4], [16, 16, 4, 32]], [16, 4, 4, 32], base_dilation=[2, 2])
    assert flops(weight) == {0: 2 * 16 * 32 * 7 * 7 * 4 * 4 * 4}
    # Groups as a third dimension: each of the four meets itself.
    numbers = {**NHWC, "input_feature": 4, "output_feature": 4, "kernel_spatial": [0, 1, 2]}
    numbers |= {"input_spatial": [1, 2, 3], "output_spatial": [1, 2, 3]}
    numbers |= {"kernel_input_feature": 3, "kernel_output_feature": 4}
    ones = {"window_dilation": [1] * 3, "padding_low": [0] * 3, "padding_high": [0] * 3}
    groups = conv(
        [[4, 28, 28, 4, 4], [26, 26, 4, 4, 8]],
        [4, 3, 3, 4, 8],
        numbers,
        base_dilation=[1, 1, 4],
        stride=[1, 1, 3],
        **ones,
    )
    assert flops(groups) == {0: 2 * 4 * 8 * (3 * 26) * (3 * 26) * 4 * 4}


def test_gradients_have_their_forward_convolution_s_count() -> None:
    forward = conv([[8, 14, 14, 6], [5, 5, 6, 16]], [8, 10, 10, 16], scope=FORWARD)
    of_input = conv([[8, 10, 10, 16], [5, 5, 16, 6]], [8, 14, 14, 6], scope=BACKWARD)
    of_weight = conv([[6, 14, 14, 8], [10, 10, 8, 16]], [6, 5, 5, 16])
    expected = 2 * 8 * 16 * 10 * 10 * 25 * 6
    assert flops(forward, of_input, of_weight) == dict.fromkeys(range(3), expected)
    # Alone, its windows are counted, 14 x 14 of them.
    assert flops(of_input) == {0: 2 * 8 * 6 * 14 * 14 * 25 * 16}
    # Of another program nothing is known.
    assert flops(forward, {**of_input, "program": "jit_g"})[1] == flops(of_input)[0]


def test_two_forward_convolutions_of_the_same_sizes_decide_nothing() -> None:
    # 3x1 and 1x3 windows that leave as many elements, but not as many windows.
    one = conv([[1, 4, 4, 2], [3, 1, 2, 4]], [1, 4, 4, 2], scope=FORWARD)
    other = conv([[1, 4, 4, 2], [3, 2, 2, 2]], [1, 4, 4, 2], scope=FORWARD)
    gradient = conv([[1, 4, 4, 2], [3, 1, 2, 4]], [1, 4, 4, 2], scope=BACKWARD)
    found = flops(one, other, gradient)
    assert found[0] != found[1]
    assert found[2] == found[0]
    assert instruction_flops(table(one, other, gradient))["formula"][2] == "hlo.convolution"


def test_a_product_of_matrices() -> None:
    plain = row("dot", [[4, 9216], [9216, 4096]], [4, 4096], attributes={"lhs_contracting": [1]})
    batched = row(
        "dot",
        [[2, 3, 5, 7], [2, 3, 7, 11]],
        [2, 3, 5, 11],
        attributes={"lhs_contracting": [3], "lhs_batch": [0, 1]},
    )
    outer = row("dot", [[4], [5]], [4, 5], attributes={"lhs_contracting": []})
    assert flops(plain, batched, outer) == {
        0: 2 * 4 * 9216 * 4096,
        1: 2 * (2 * 3) * 5 * 7 * 11,
        2: 2 * 4 * 5,
    }


def library(target: str, inputs: list[Any], output: Any, **attributes: Any) -> dict[str, Any]:
    kind = '["f32","u8"]'
    return row("custom-call", inputs, [output, [99]], target=target, attributes=attributes) | {
        "output_type": kind
    }


def test_the_libraries_three_convolutions_have_one_count() -> None:
    x, w, y = [8, 28, 28, 16], [3, 3, 16, 32], [8, 13, 13, 32]
    expected = 2 * 8 * 32 * 13 * 13 * 9 * 16
    numbers = {"dimension_numbers": NHWC}
    assert flops(
        library("__cudnn$convForward", [x, w], y, **numbers),
        library("__cudnn$convBiasActivationForward", [x, w, [32]], y, **numbers),
        library("__cudnn$convBackwardInput", [y, w], x, **numbers),
        library("__cudnn$convBackwardFilter", [x, y], w, **numbers),
        library("__onednn$convolution", [x, w], y, **numbers),
    ) == dict.fromkeys(range(5), expected)


def test_the_libraries_products() -> None:
    contracted = {"lhs_contracting": [1]}
    assert flops(
        library("__cublas$gemm", [[64, 8], [8, 32]], [64, 32], **contracted),
        library("__cublas$lt$matmul$f8", [[64, 8], [8, 32], [], []], [64, 32], **contracted),
        library("__onednn$matmul", [[64, 8], [8, 32]], [64, 32]),
        library("__onednn$matmul", [[5, 8, 64], [5, 8, 32]], [5, 64, 32], transpose_a=True),
        library("__onednn$matmul", [[5, 64, 8], [8, 32]], [5, 64, 32]),
    ) == {0: 2 * 64 * 8 * 32, 1: 2 * 64 * 8 * 32, 2: 2 * 64 * 8 * 32} | dict.fromkeys(
        (3, 4), 2 * 5 * 64 * 8 * 32
    )


def test_what_holds_others_has_their_sum() -> None:
    dot = row("dot", [[2, 3], [3, 5]], [2, 5], attributes={"lhs_contracting": [1]})
    one = 2 * 2 * 3 * 5
    rows = (
        row("while", [], [], attributes={"trip_count": 7}),
        {**row("fusion", [], []), "parent": 0},
        {**dot, "parent": 1},
        {**dot, "parent": 1},
        row("while", [], []),
        {**dot, "parent": 4},
        row("call", [], []),
        {**row("conditional", [], []), "parent": 6},
        {**dot, "parent": 7},
        {**dot, "parent": 6},
        row("exponential", [[4]], [4]),
    )
    found = instruction_flops(table(*rows))
    assert dict(found.select("instruction", "flops").iter_rows()) == {
        **{0: 14 * one, 1: 2 * one, 4: one, 6: one},
        **dict.fromkeys((2, 3, 5, 8, 9), one),
    }
    # A loop of unknown length, and a branch that may have run.
    assert found.filter("at_least")["instruction"].to_list() == [4, 6]
    held = found.filter(pl.col("formula") == "hlo.inside")["instruction"].to_list()
    assert held == [0, 1, 4, 6]


@pytest.mark.parametrize(
    "bad",
    [
        {"input_shapes": None},
        {"input_shapes": "[[4,-1],[4,4]]"},
        {"input_shapes": "[[4,4]]"},
        {"input_shapes": "[null,[4,4]]"},
        {"input_shapes": "[[[4,4]],[4,4]]"},
        {"input_shapes": "[" * 100_000},
        {"input_shapes": '"x"'},
        {"output_shape": "[]", "output_type": "["},
        {"attributes": '{"lhs_contracting":[9]}'},
        {"attributes": '{"lhs_contracting":"1"}'},
        {"attributes": None},
    ],
)
def test_unmatched_shapes_are_not_counted_and_mark_the_parent(bad: dict[str, Any]) -> None:
    dot = row("dot", [[2, 3], [3, 5]], [2, 5], attributes={"lhs_contracting": [1]}, parent=0)
    found = instruction_flops(table(row("fusion", [], []), dot, {**dot, **bad}))
    assert found["instruction"].to_list() == [0, 1]
    assert found["at_least"].to_list() == [True, False]


def test_counts_beyond_64_bits_are_left_out() -> None:
    huge = 2**40
    dot = row("dot", [[huge, 3], [3, huge]], [huge, huge], attributes={"lhs_contracting": [1]})
    assert flops(dot) == {}
    strided = conv(
        [[1, huge, huge, 1], [1, 1, 1, 1]], [1, 9, 9, 1], base_dilation=[2, 2], stride=[3, 3]
    )
    assert flops(strided) == {}


def test_an_empty_table() -> None:
    assert instruction_flops(conform("instructions", pl.DataFrame())).is_empty()


def expected(layer: Layer) -> int:
    """Two operations for each of the weight's elements at each position of the output."""
    batch, _, *extents = layer.outputs[0]
    return 2 * batch * prod(extents) * prod(layer.parameters["weight"])


def weighted_layers() -> list[Layer]:
    """Return the layers of the JAX recording's manifest that have a weight."""
    model = read(FIXTURES / "alexnet-cpu-jax.layers.json")
    return [layer for layer in model.layers if "weight" in layer.parameters]


def test_the_layers_of_alexnet_in_jax() -> None:
    trace = opened(FIXTURES / "alexnet-cpu-jax.xplane.pb")
    weighted = weighted_layers()
    counted = (
        trace.tables.instructions.with_row_index("instruction")
        .join(instruction_flops(trace.tables.instructions), on="instruction")
        .filter(pl.col("opcode").cast(pl.String).is_in(["convolution", "dot"]))
    )
    assert not counted["at_least"].any()
    scope = pl.col("scope").cast(pl.String)
    forward = counted.filter(scope.str.contains("/jvp(alexnet)/", literal=True))
    assert {
        scope.split("/")[2]: count for scope, count in forward.select("scope", "flops").iter_rows()
    } == {layer.path: expected(layer) for layer in weighted}
    # Backward: the gradient of each weight, and of each input but the images.
    gradients = counted.join(forward, on="instruction", how="anti")["flops"].sort().to_list()
    twice = [expected(layer) for layer in weighted for _ in range(2)]
    twice.remove(expected(weighted[0]))
    assert gradients == sorted(twice)


@pytest.mark.parametrize("network", ["googlenet", "resnet50"])
def test_the_forward_layers_of_networks_with_branches_in_jax(network: str) -> None:
    stem = f"{network}-cpu-jax"
    folder = FIXTURES.parent / "networks"
    instructions = opened(folder / f"{stem}.xplane.pb.gz").tables.instructions
    forward = (
        instructions.with_row_index("instruction")
        .join(instruction_flops(instructions), on="instruction")
        .filter(
            pl.col("opcode").cast(pl.String).is_in(["convolution", "dot"]),
            pl.col("scope").cast(pl.String).str.contains(f"/jvp({network})/", literal=True),
        )
    )
    described = read(folder / f"{stem}.layers.json").layers
    assert {
        scope.split("/")[2]: count for scope, count in forward.select("scope", "flops").iter_rows()
    } == {
        layer.path: expected(layer)
        for layer in described
        if len(layer.parameters.get("weight", ())) > 1
    }


def test_every_step_of_alexnet_runs_them_all() -> None:
    trace = opened(FIXTURES / "alexnet-cpu-jax.xplane.pb")
    weighted = [expected(layer) for layer in weighted_layers()]
    ran = trace.tables.activities.select("instruction", "step").unique()
    per_step = (
        ran.join(instruction_flops(trace.tables.instructions), on="instruction")
        .group_by("step")
        .agg(pl.col("flops").sum())
    )
    assert per_step["flops"].to_list() == [3 * sum(weighted) - weighted[0]] * 3


@pytest.mark.skipif(not (TRACES / "xplane").is_dir(), reason="no shared traces")
def test_what_ran_on_a_gpu_is_within_its_peak() -> None:
    trace = opened(TRACES / "xplane" / "jax_gemm_mi300.xplane.pb")
    found = instruction_flops(trace.tables.instructions).filter(pl.col("formula") == "hlo.dot")
    sizes = [(256,) * 3, (1024,) * 3, (4096,) * 3, (8192, 4096, 8192), (2048, 8192, 2048)]
    sizes.append((16384, 1024, 4096))
    assert found["flops"].to_list() == [2 * m * k * n for m, k, n in sizes]
    rates = trace.tables.activities.join(found, on="instruction").select(
        (pl.col("flops") / pl.col("duration")).max().alias("highest")
    )
    # In operations a nanosecond; MI300X: 1307.4 TFLOP/s of bfloat16, dense.
    assert 500e3 < float(rates["highest"][0]) < 1307.4e3

    trace = opened(TRACES / "xplane" / "jax_conv_mi300.xplane.pb")
    (flops,) = instruction_flops(trace.tables.instructions)["flops"]
    assert flops == 2 * (34 * 31 * 53 * 5120) * (1 * 2 * 2 * 16)
    reported = trace.tables.activities.filter(pl.col("instruction").is_not_null())
    assert int(reported["duration"].sum()) > 0.97 * int(trace.tables.activities["duration"].sum())
