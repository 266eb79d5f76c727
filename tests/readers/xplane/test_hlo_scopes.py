"""Scopes that XLA's optimizer lost are inferred where the program determines them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.readers.xplane.hlo_writing import Made, array, computation, module, ran, write_programs
from tests.readers.xplane.writing import number, trace_of

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "xplane"
X, W, Y = array(8, 28, 28, 16), array(3, 3, 16, 32), array(8, 26, 26, 32)
CONV1, CONV2 = "jit(f)/jvp(net)/conv1/conv", "jit(f)/jvp(net)/conv2/conv"
BACKWARD1 = "jit(f)/transpose(jvp(net))/conv1/conv"


def scopes(tmp_path: Path, *instructions: Made, holding: bytes = b"") -> dict[str, str | None]:
    program = module(1, holding, computation(1, instructions[-1].key, *instructions))
    table = trace_of(
        write_programs(tmp_path / "x.pb", ran(("jit_f", 1, "any")), jit_f_1=program)
    ).tables.instructions
    names = table.select("name", pl.col("scope").cast(pl.String))
    return dict(names.iter_rows())


def inputs() -> list[Made]:
    return [
        Made(1, "x", "parameter", X),
        Made(2, "w", "parameter", W),
        Made(3, "dy", "parameter", Y),
    ]


def test_a_weight_gradient_is_matched_by_its_tensors(tmp_path: Path) -> None:
    forward = Made(4, "forward", "convolution", Y, CONV1, (1, 2))
    gradient = Made(5, "wgrad", "convolution", W, "", (1, 3))
    found = scopes(tmp_path, *inputs(), forward, gradient)
    assert found == {"forward": CONV1, "wgrad": BACKWARD1}


def test_layers_of_equal_tensors_are_not_guessed_between(tmp_path: Path) -> None:
    one = Made(4, "one", "convolution", Y, CONV1, (1, 2))
    other = Made(5, "other", "convolution", Y, CONV2, (1, 2))
    gradient = Made(6, "wgrad", "convolution", W, "", (1, 3))
    assert scopes(tmp_path, *inputs(), one, other, gradient)["wgrad"] is None


def test_a_weight_gradient_is_matched_with_a_convolution_that_became_a_product(
    tmp_path: Path,
) -> None:
    """XLA converts the convolution of 1x1 windows, and not the gradient of its weight."""
    x, w, y = array(8 * 28 * 28, 16), array(16, 32), array(8 * 28 * 28, 32)
    made = [Made(number, f"p{number}", "parameter", of) for number, of in enumerate((x, w, y), 1)]
    scope = "jit(f)/jvp(net)/conv1/conv_general_dilated"
    gradient = Made(6, "wgrad", "convolution", array(16, 1, 1, 32), "", (1, 3))
    found = scopes(tmp_path, *made, Made(4, "dot", "dot", y, scope, (1, 2)), gradient)
    assert found["wgrad"] == "jit(f)/transpose(jvp(net))/conv1/conv_general_dilated"
    # Of two layers of equal tensors it may be of either, whatever they became.
    other = Made(5, "other", "convolution", y, CONV2, (1, 2))
    found = scopes(tmp_path, *made, Made(4, "dot", "dot", y, scope, (1, 2)), other, gradient)
    assert found["wgrad"] is None
    # Another product is no convolution.
    dense = Made(4, "dot", "dot", y, "jit(f)/jvp(net)/fc/dot_general", (1, 2))
    assert scopes(tmp_path, *made, dense, gradient)["wgrad"] is None


TAPE = "gradient_tape/net/conv/Conv2D"
BACKWARD_DOT = "jit(f)/transpose(jvp(net))/conv1/conv_general_dilated"
TAPE_OF_DW = "gradient_tape/net/dw/depthwise"


@pytest.mark.parametrize(
    ("opcode", "scope", "expected"),
    [
        ("convolution", "net/conv/Conv2D", TAPE),
        ("dot", "net/conv/Conv2D", TAPE),
        ("dot", f"{TAPE}/Conv2DBackpropInput", TAPE),
        ("convolution", f"{TAPE}/Conv2DBackpropInput", TAPE),
        (
            "convolution",
            "gradient_tape/net/up/conv_transpose/Conv2D",
            "gradient_tape/net/up/conv_transpose",
        ),
        ("dot", "net/dense/MatMul", None),
        ("dot", "gradient_tape/net/dense/MatMul/MatMul_1", None),
    ],
)
def test_tensorflows_gradients_are_matched_too(
    opcode: str, scope: str, expected: str | None, tmp_path: Path
) -> None:
    """XLA drops the scope of a weight's gradient where it converts the convolution to a product."""
    known = Made(4, "known", opcode, Y, scope, (1, 2))
    other = Made(6, "other", "negate", Y, "gradient_tape/net/loss/Neg", (3,))
    gradient = Made(5, "wgrad", "convolution", W, "", (1, 3))
    assert scopes(tmp_path, *inputs(), known, other, gradient)["wgrad"] == expected


def test_layers_of_equal_tensors_are_told_apart_by_what_they_read(tmp_path: Path) -> None:
    """The gradient of a weight reads the input of its layer, behind changes of its layout."""
    x, w = array(8, 28, 28, 16), array(1, 1, 16, 16)
    inner = [
        Made(90, "p", "parameter", x),
        Made(91, "transposed", "transpose", x, "", (90,)),
        Made(92, "copied", "copy", x, "", (91,)),
    ]
    moving = computation(9, 92, *inner)
    moved = [
        Made(8, "copy", "copy", x, "", (5,)),
        Made(9, "transpose_copy_fusion.3", "fusion", x, "", (8,), (9,)),
    ]
    made = [
        Made(1, "x", "parameter", x),
        Made(2, "w1", "parameter", w),
        Made(3, "w2", "parameter", w),
        Made(4, "one", "convolution", x, "jit(f)/jvp(net)/conv1/conv", (1, 2)),
        Made(5, "relu", "maximum", x, "jit(f)/jvp(net)/relu", (4,)),
        Made(6, "other", "convolution", x, "jit(f)/jvp(net)/conv2/conv", (5, 3)),
        Made(7, "dy", "negate", x, "jit(f)/transpose(jvp(net))/neg", (6,)),
        *moved,
        Made(10, "wgrad", "convolution", w, "", (9, 7)),
        Made(11, "of_first", "convolution", w, "", (1, 7)),
    ]
    found = scopes(tmp_path, *made, holding=moving)
    assert found["wgrad"] == "jit(f)/transpose(jvp(net))/conv2/conv"
    assert found["of_first"] == BACKWARD1
    # A fusion that computes makes another result, whatever its name is.
    inner[1] = Made(91, "negated", "negate", x, "", (90,))
    computing = computation(9, 92, *inner)
    assert scopes(tmp_path, *made, holding=computing)["wgrad"] is None


def test_a_result_that_a_fusion_computes_again_is_the_same_result(tmp_path: Path) -> None:
    """XLA computes the activation in each fusion that reads it, in the layout of its reader."""
    x, w = array(8, 16, 16, 8), array(3, 3, 1, 8)

    def activation(key: int, *after: str) -> bytes:
        made = [
            Made(key + 1, "p", "parameter", x, more=number(9, 0)),
            Made(key + 2, "zero", "constant", array()),
            Made(key + 3, "zeros", "broadcast", x, "", (key + 2,)),
            Made(key + 4, "max", "maximum", x, "net/relu", (key + 1, key + 3)),
        ]
        for place, opcode in enumerate(after, key + 5):
            made.append(Made(place, opcode, opcode, x, "", (place - 1,)))
        return computation(key, made[-1].key, *made)

    made = [
        Made(1, "before", "parameter", x),
        Made(2, "w", "parameter", w, more=number(9, 1)),
        Made(3, "dy", "parameter", x, more=number(9, 2)),
        Made(4, "relu", "fusion", x, "net/relu/Relu", (1,), (100,)),
        Made(5, "forward", "convolution", x, "net/dw/depthwise", (4, 2)),
        Made(6, "dgrad", "convolution", x, f"{TAPE_OF_DW}/BackpropInput", (3, 2)),
        Made(7, "again", "fusion", x, "", (1,), (200,)),
        Made(8, "wgrad", "convolution", array(8, 3, 3, 8), "", (7, 3)),
    ]
    both = activation(100) + activation(200, "convert", "transpose", "copy")
    assert scopes(tmp_path, *made, holding=both)["wgrad"] == TAPE_OF_DW
    other = activation(100) + activation(200, "tanh")
    assert scopes(tmp_path, *made, holding=other)["wgrad"] is None


def test_programs_that_call_themselves_or_repeat_a_number_are_read(tmp_path: Path) -> None:
    itself = Made(91, "itself", "call", X, "jit(f)/itself", (90,), (9,))
    recursive = computation(9, 91, Made(90, "p", "parameter", X), itself)
    made = [
        *inputs(),
        Made(4, "call", "call", X, "jit(f)/call", (1,), (9,)),
        Made(5, "forward", "convolution", Y, CONV1, (4, 2)),
        Made(6, "wgrad", "convolution", W, "", (4, 3)),
    ]
    again = computation(1, 1, Made(1, "x", "parameter", X))
    found = scopes(tmp_path, *made, holding=recursive + recursive + again)
    assert found["wgrad"] == BACKWARD1


def test_a_product_that_reads_what_a_convolution_and_its_gradient_read_is_its_weight_s(
    tmp_path: Path,
) -> None:
    """XLA converts gradients of 1x1 windows on one pixel too, and computes in called functions."""
    x, w, y = array(8, 16), array(16, 32), array(8, 32)
    scope = "jit(f)/jvp(net)/conv1/conv_general_dilated"
    called = computation(
        100,
        103,
        Made(101, "a", "parameter", x, more=number(9, 0)),
        Made(102, "b", "parameter", y, more=number(9, 1)),
        Made(103, "product", "dot", w, "", (101, 102)),
    )
    made = [
        Made(1, "x", "parameter", x),
        Made(2, "w", "parameter", w, more=number(9, 1)),
        Made(3, "dy", "parameter", y, more=number(9, 2)),
        Made(4, "forward", "dot", y, scope, (1, 2)),
        Made(5, "dgrad", "dot", x, BACKWARD_DOT, (3, 2)),
        Made(6, "wgrad", "dot", w, "", (1, 3)),
        Made(7, "call", "call", w, "", (1, 3), (100,)),
    ]
    found = scopes(tmp_path, *made, holding=called)
    assert found["wgrad"] == found["product"] == BACKWARD_DOT
    # One of the two may be another layer's as well.
    made[5] = Made(6, "wgrad", "dot", w, "", (1, 1))
    assert scopes(tmp_path, *made, holding=called)["wgrad"] is None


def test_a_fusion_that_converts_its_result_belongs_to_what_computed_it(tmp_path: Path) -> None:
    """Where a device lacks bfloat16, XLA computes in float32 and adds conversions."""
    fused = computation(
        9,
        92,
        Made(90, "p", "parameter", W),
        Made(91, "update", "subtract", W, "jit(f)/sgd/sub", (90, 90)),
        Made(92, "result", "convert", W, "", (91,)),
    )
    made = Made(4, "fusion", "fusion", W, "", (2,), (9,))
    assert scopes(tmp_path, *inputs(), made, holding=fused)["fusion"] == "jit(f)/sgd/sub"
    # A change of layout is for its reader.
    moved = computation(
        9,
        92,
        Made(90, "p", "parameter", W),
        Made(91, "update", "subtract", W, "jit(f)/sgd/sub", (90, 90)),
        Made(92, "result", "copy", W, "", (91,)),
    )
    uses = Made(6, "use", "exponential", W, "jit(f)/exp", (4,))
    assert scopes(tmp_path, *inputs(), made, uses, holding=moved)["fusion"] == "jit(f)/exp"


def test_a_gradient_in_another_size_is_of_the_layer_whose_input_and_gradient_it_reads(
    tmp_path: Path,
) -> None:
    """On a CPU, XLA computes the gradient of a depthwise weight for all pairs of channels."""
    x, w = array(8, 16, 16, 8), array(3, 3, 1, 8)
    made = [
        Made(1, "x", "parameter", x),
        Made(2, "w", "parameter", w),
        Made(3, "dy", "parameter", x),
        Made(4, "forward", "convolution", x, "net/dw/depthwise", (1, 2)),
        Made(5, "dgrad", "convolution", x, "gradient_tape/net/dw/depthwise/BackpropInput", (3, 2)),
    ]
    both = Made(6, "wgrad", "convolution", array(8, 3, 3, 8), "", (1, 3))
    assert scopes(tmp_path, *made, both)["wgrad"] == "gradient_tape/net/dw/depthwise"
    # A separable convolution has the gradient of its depthwise part in its own scope.
    made[4] = Made(5, "dgrad", "convolution", x, "gradient_tape/net/dw/BackpropInput", (3, 2))
    assert scopes(tmp_path, *made, both)["wgrad"] == "gradient_tape/net/dw"
    one = Made(6, "wgrad", "convolution", array(8, 3, 3, 8), "", (1, 1))
    assert scopes(tmp_path, *made, one)["wgrad"] is None


def test_the_gradient_of_a_called_function_belongs_to_the_layer_that_called_it(
    tmp_path: Path,
) -> None:
    """Keras calls a tf.function for each grouped convolution on the CPU."""
    lost = "PartitionedCall/gradients/convolution_grad/Conv2DBackprop"
    made = [
        *inputs(),
        Made(
            4, "forward", "convolution", Y, "net/conv/StatefulPartitionedCall/convolution", (1, 2)
        ),
        Made(5, "dgrad", "convolution", X, f"{lost}Input", (3, 2)),
        Made(6, "moved", "copy", Y, f"{lost}Filter", (3,)),
        Made(7, "wgrad", "convolution", W, f"{lost}Filter", (1, 6)),
        Made(8, "other", "negate", Y, "gradient_tape/net/loss/Neg", (3,)),
    ]
    found = scopes(tmp_path, *made)
    of_layer = "gradient_tape/net/conv/StatefulPartitionedCall/convolution"
    assert found["dgrad"] == found["wgrad"] == found["moved"] == of_layer
    # Without a layer that it may be of it keeps its scope.
    del made[3]
    assert scopes(tmp_path, *made)["wgrad"] == f"{lost}Filter"


def test_what_was_not_differentiated_has_no_gradient(tmp_path: Path) -> None:
    forward = Made(4, "forward", "convolution", Y, "jit(f)/net/conv1/conv", (1, 2))
    nameless = Made(5, "nameless", "convolution", W, "", (1, 3))
    assert scopes(tmp_path, *inputs(), forward, nameless)["nameless"] is None


def test_a_copy_belongs_to_what_alone_uses_it(tmp_path: Path) -> None:
    copies = [Made(4, "copy", "copy", X, "", (1,)), Made(5, "again", "transpose", X, "", (4,))]
    uses = Made(6, "use", "exponential", X, "jit(f)/exp", (5,))
    assert scopes(tmp_path, *inputs(), *copies, uses) == {
        "copy": "jit(f)/exp",
        "again": "jit(f)/exp",
        "use": "jit(f)/exp",
    }
    more = Made(7, "more", "negate", X, "jit(f)/neg", (4,))
    found = scopes(tmp_path, *inputs(), *copies, uses, more)
    assert (found["copy"], found["again"]) == (None, "jit(f)/exp")


def test_a_product_is_not_the_optimizer_s_that_uses_it(tmp_path: Path) -> None:
    fused = computation(9, 90, Made(90, "inner", "dot", W))
    products = [
        Made(4, "dot", "dot", W, "", (1, 3)),
        Made(5, "fusion", "fusion", W, "", (1, 3), (9,)),
    ]
    uses = Made(6, "use", "add", W, "jit(f)/optimizer/add", (4, 5))
    found = scopes(tmp_path, *inputs(), *products, uses, holding=fused)
    assert (found["dot"], found["fusion"], found["inner"]) == (None, None, None)


def test_almost_all_of_a_training_step_is_on_a_layer() -> None:
    trace = traceana.open(FIXTURES / "alexnet-cpu-jax.xplane.pb")
    placed = trace.tables.activities.with_columns(
        trace.tables.layers["role"]
        .gather(trace.tables.activities["layer"])
        .cast(pl.String)
        .alias("role"),
        trace.tables.layers["path"].gather(trace.tables.activities["layer"]).alias("path"),
    )
    reported = pl.col("role").is_in(["layer", "optimizer"]).fill_null(False)
    # The rest is time in which it is not known which thunk has not completed.
    assert time(placed.filter(reported)) > 0.998 * time(placed)
    # The gradient of the weight takes about as long as the forward convolution.
    first = placed.filter(pl.col("path") == "alexnet.conv1")
    assert time(first.filter(pl.col("direction") == "backward")) > 0.4 * time(first)


def time(activities: pl.DataFrame) -> int:
    return int(activities["duration"].sum())
