"""Layers of a manifest: the same costs as the operators that run them."""

from __future__ import annotations

import pytest

from tests.flops.test_convolution import call
from traceana.flops.call import Cost, Refusal, Shape
from traceana.flops.layer_formulas import Layer, layer_costs
from traceana.flops.registry import cost


def of(layer: Layer, *, backward: bool = False) -> dict[str, Cost]:
    result = layer_costs(layer, backward=backward)
    assert not isinstance(result, Refusal), result
    return {one.part: one for one in result}


def test_a_convolution_costs_what_its_operators_do() -> None:
    x, weight, output = (2, 4, 9, 9), (6, 2, 3, 3), (2, 6, 5, 5)
    reported = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]"]
    forward = cost(call("aten::conv2d", [x, weight, (6,), (), (), (), ()], [*reported, "2"]))
    backward = cost(
        call(
            "aten::convolution_backward",
            [output, x, weight, *[()] * 8],
            ["", "", "", "[6]", *reported[3:], "False", "[0, 0]", "2", "[True, True, True]"],
        )
    )
    assert not isinstance(forward, Refusal)
    assert not isinstance(backward, Refusal)
    parameters = {"weight": weight, "bias": (6,)}
    layer = Layer("Conv2d", (x,), (output,), parameters, groups=2)
    assert layer_costs(layer, backward=True) == (*forward, *backward)
    first = Layer("Conv2d", (x,), (output,), parameters, groups=2, first=True)
    assert set(of(first, backward=True)) == {"forward", "wgrad", "bias_grad"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            Layer("Conv2d", ((2, 3, 8, 8),), ((2, 5, 6, 6),), {"weight": (5, 3, 3, 3)}),
            Layer("Conv2D", ((2, 3, 8, 8),), ((2, 5, 6, 6),), {"kernel": (5, 3, 3, 3)}),
        ),
        (
            Layer("ConvTranspose2d", ((2, 3, 4, 4),), ((2, 5, 8, 8),), {"weight": (3, 5, 2, 2)}),
            Layer("Conv2DTranspose", ((2, 3, 4, 4),), ((2, 5, 8, 8),), {"weight": (3, 5, 2, 2)}),
        ),
        (
            Layer("Linear", ((2, 7),), ((2, 5),), {"weight": (5, 7), "bias": (5,)}),
            Layer("Dense", ((2, 7),), ((2, 5),), {"kernel": (5, 7), "bias": (5,)}),
        ),
        (
            Layer("BatchNorm2d", ((2, 3, 4, 4),), ((2, 3, 4, 4),), {"weight": (3,)}),
            Layer("BatchNormalization", ((2, 3, 4, 4),), ((2, 3, 4, 4),), {"gamma": (3,)}),
        ),
        (
            Layer("MaxPool2d", ((2, 3, 4, 4),), ((2, 3, 2, 2),), kernel=(2, 2)),
            Layer("MaxPooling2D", ((2, 3, 4, 4),), ((2, 3, 2, 2),), kernel=(2, 2)),
        ),
    ],
)
def test_frameworks_agree(one: Layer, other: Layer) -> None:
    assert layer_costs(one, backward=True) == layer_costs(other, backward=True)
    assert of(one)["forward"].flops > 0


IMAGE: Shape = (2, 3, 4, 4)


@pytest.mark.parametrize(
    ("layer", "forward", "backward"),
    [
        (Layer("ReLU", (IMAGE,), (IMAGE,)), 96, 96),
        (Layer("swish", (IMAGE,), (IMAGE,)), 5 * 96, 9 * 96),
        (Layer("GELU", (IMAGE,), (IMAGE,)), 5 * 96, 11 * 96),
        (Layer("Dropout", (IMAGE,), (IMAGE,)), 2 * 96, 2 * 96),
        (Layer("BatchNorm2d", (IMAGE,), (IMAGE,), {"weight": (3,)}), 8 * 96, 9 * 96),
        (Layer("LayerNorm", ((2, 3, 4),), ((2, 3, 4),), {"weight": (4,)}), 8 * 24, 13 * 24),
        (Layer("LocalResponseNorm", (IMAGE,), (IMAGE,), neighbours=5), 10 * 96, 20 * 96),
        (Layer("AvgPool2d", (IMAGE,), ((2, 3, 2, 2),), kernel=(2, 2)), 24 * 5, 24 * 5),
        (Layer("AdaptiveAvgPool2d", (IMAGE,), ((2, 3, 1, 1),)), 96 + 6, 96 + 6),
        (Layer("Softmax", ((2, 5),), ((2, 5),)), 50, 40),
        (Layer("Conv1d", ((2, 3, 8),), ((2, 4, 8),), {"weight": (4, 3, 3)}),
         2 * 16 * 36, 4 * 16 * 36),
        (Layer("Conv", ((1, 2, 4, 4, 4),), ((1, 3, 4, 4, 4),), {"weight": (3, 2, 3, 3, 3)}),
         2 * 64 * 162, 4 * 64 * 162),
    ],
)  # fmt: skip
def test_closed_form(layer: Layer, forward: int, backward: int) -> None:
    assert of(layer)["forward"].flops == forward
    both = layer_costs(layer, backward=True)
    assert not isinstance(both, Refusal)
    assert sum(one.flops for one in both) == forward + backward


def test_reshaping_costs_nothing() -> None:
    assert layer_costs(Layer("Flatten", (IMAGE,), ((2, 48),)), backward=True) == ()


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Layer("Capsule", (IMAGE,), (IMAGE,)), "no FLOP formula"),
        (Layer("Conv2d", (IMAGE,), (IMAGE,)), "no convolution weight"),
        (Layer("Conv2d", (IMAGE,), (IMAGE,), {"weight": (3, 5, 3, 3)}), "does not match"),
        (Layer("Conv2d", (IMAGE,), ((2, 3),), {"weight": (3, 3, 3, 3)}), "rank mismatch"),
        (Layer("Linear", ((2, 7),), ((2, 5),), {"weight": (5, 8)}), "does not match"),
        (Layer("MaxPool2d", (IMAGE,), (IMAGE,)), "window"),
        (Layer("LocalResponseNorm", (IMAGE,), (IMAGE,)), "LRN size"),
    ],
)
def test_what_does_not_fit_is_refused(layer: Layer, reason: str) -> None:
    result = layer_costs(layer)
    assert isinstance(result, Refusal)
    assert reason in result.reason
