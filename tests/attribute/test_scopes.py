"""Layers and direction from name scopes, as TensorFlow and XLA write them."""

from __future__ import annotations

import polars as pl
import pytest

from traceana.attribute.layers.scopes import ScopeLayers
from traceana.trace.schema import conform


def told(
    scopes: list[str], operators: list[str] | None = None
) -> list[tuple[str, str, str | None]]:
    """Return (path, role, direction) of each scope; no path is an empty one."""
    names = operators or ["Op"] * len(scopes)
    ops = conform("ops", pl.DataFrame({"name": names, "scope": scopes}))
    found = ScopeLayers.of(ops, conform("activities", pl.DataFrame()))
    directions = found.direction_of(ops["scope"]).to_list()
    rows = [found.layers[i] if i >= 0 else ("", "", "") for i in found.layer_of(ops["scope"])]
    return [
        (path, role or "", direction)
        for (path, _, role), direction in zip(rows, directions, strict=True)
    ]


@pytest.mark.parametrize(
    ("scope", "path", "direction"),
    [
        ("AlexNet/conv1/Conv2D", "AlexNet.conv1", None),
        ("AlexNet/conv1/convolution/ReadVariableOp", "AlexNet.conv1", None),
        ("gradient_tape/AlexNet/conv1/convolution/Conv2DBackpropFilter",
         "AlexNet.conv1", "backward"),
        ("gradients/AlexNet/fc/MatMul_grad/MatMul_1", "AlexNet.fc", "backward"),
        ("replica_3/bert/layer_5/dropout_1/dropout/random_uniform/RandomUniform",
         "bert.layer_5.dropout_1", None),
        ("cond_4/then/_48/net/fc/MatMul", "net.fc", None),
        ("net_1/sum_1/ArithmeticOptimizer/AddOpsRewrite_Leaf_0_Add", "net.sum", None),
        ("ConstantFolding/gradient_tape/net/fc/MatMul/MatMul", "net.fc", "backward"),
        ("gradient_tape/net/bn/batchnorm/add_1/Sum", "net.bn", "backward"),
        ("gradient_tape/net/bn/moments/mean/truediv/Mul", "net.bn", "backward"),
        ("jit(step)/jit(main)/jvp(AlexNet)/conv1/conv_general_dilated", "AlexNet.conv1", None),
        ("jit(step)/jvp(conv1)/conv_general_dilated", "conv1", None),
        ("jit(step)/transpose(jvp(conv1))/conv_general_dilated", "conv1", "backward"),
        ("jit(step)/transpose(jvp(net))/relu1/jit(relu)/max", "net.relu1", "backward"),
        ("jit(step)/while/body/net/fc/dot_general", "net.fc", None),
        ("jit(step)/jvp()/neg", "", None),
        ("AssignVariableOp", "", None),
        ("", "", None),
    ],
)  # fmt: skip
def test_one_scope(scope: str, path: str, direction: str | None) -> None:
    ((found, _, way),) = told([scope])
    assert (found, way) == (path, direction)


def test_the_optimizer_is_a_role() -> None:
    found = told(["SGD/AssignSub", "jit(step)/optimizer/sub", "adam_1/mul"])
    assert [role for _, role, _ in found] == ["optimizer"] * 3


def test_numbers_of_a_model_built_twice_are_taken_off_and_no_others() -> None:
    twice = told(["net_1/conv_1/Conv2D", "net_1/fc_1/MatMul"])
    assert [path for path, *_ in twice] == ["net.conv", "net.fc"]
    blocks = told(["stage_1/conv_1/Conv2D", "stage_1/conv_2/Conv2D", "stage_2/conv_1/Conv2D"])
    assert [path for path, *_ in blocks] == ["stage_1.conv_1", "stage_1.conv_2", "stage_2.conv_1"]


def test_what_the_graph_optimizer_rewrote_keeps_no_number_on_the_others() -> None:
    twice = told(
        [
            "net_1/bn_1/batchnorm/add",
            "gradient_tape/net_1/bn_1/batchnorm/add_1/Sum",
            "net_1/sum_1/ArithmeticOptimizer/AddOpsRewrite_Add",
        ]
    )
    assert [path for path, *_ in twice] == ["net.bn", "net.bn", "net.sum"]


def test_an_operator_s_own_name_is_no_layer() -> None:
    found = told(["net/loss/Softmax", "net/loss/Softmax/sub"], ["Softmax", "Sub"])
    assert [path for path, *_ in found] == ["net.loss", "net.loss"]


@pytest.mark.parametrize(
    ("scope", "operator"),
    [
        ("jit(step)/jvp(net)/conv1/conv_general_dilated", "conv_general_dilated"),
        ("jit(step)/jvp(net)/relu1/jit(relu)/max", "relu"),
        # A function of JAX's own inner workings says less than its primitive.
        ("jit(step)/jvp(net)/drop/jit(_where)/select_n", "select_n"),
        ("jit(step)", "jit(step)"),
        ("net/bn/batchnorm/mul_1", "batchnorm"),
        ("gradient_tape/net/bn/batchnorm/mul_1/Mul", "batchnorm"),
        ("net/conv1/convolution", None),
        ("batchnorm/mul", None),
    ],
)
def test_what_an_operator_is_by_its_scope(scope: str, operator: str | None) -> None:
    ops = conform("ops", pl.DataFrame({"name": ["fusion.3"], "scope": [scope]}))
    found = ScopeLayers.of(ops, conform("activities", pl.DataFrame()))
    assert found.operator_of(ops["scope"]).to_list() == [operator]
