"""Layers of Keras models of every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.frameworks import needs
from traceana import describe
from traceana.errors import InvalidInputError

if TYPE_CHECKING:
    import keras
    from keras import layers

needs("tensorflow")
pytestmark = pytest.mark.frameworks


@pytest.fixture(scope="module", autouse=True)
def _keras() -> None:
    """Import Keras where a test runs: each worker collects, and an import takes five seconds."""
    import keras
    from keras import layers

    globals().update(keras=keras, layers=layers)


def functional() -> Any:
    images = keras.Input((33, 32, 3), name="images")
    inner = keras.Sequential(
        [keras.Input((17, 16, 12)), layers.Conv2D(4, 1, name="a"), layers.Activation("gelu")],
        name="inner",
    )
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu", name="stem")(images)
    x = layers.BatchNormalization(name="norm")(x)
    x = layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same", name="depth")(x)
    x = layers.SeparableConv2D(12, 3, padding="same", name="separable")(x)
    x = inner(x)
    x = layers.Conv2DTranspose(6, 4, strides=2, padding="same", name="up")(x)
    x = layers.AveragePooling2D(2, name="pool")(x)
    x = layers.Add(name="add")([x, x])
    x = layers.GlobalAveragePooling2D(name="whole")(x)
    shared = layers.Dense(6, name="shared")
    x = layers.Reshape((2, 3), name="sequence")(shared(shared(x)))
    x = layers.MultiHeadAttention(2, 5, value_dim=4, name="attention")(x, x)
    x = layers.LSTM(7, name="lstm")(x)
    return keras.Model(images, layers.ReLU(6.0, name="clipped")(x), name="net")


def test_a_functional_model() -> None:
    model = functional()
    nodes = len(model._inbound_nodes)
    found = describe(model, (2, 33, 32, 3))
    by_name = {layer.path.removeprefix("net/"): layer for layer in found.layers}
    assert list(by_name) == [
        *("stem", "norm", "depth", "separable", "inner/a", "inner/activation"),
        *("up", "pool", "add", "whole", "shared", "sequence", "attention", "lstm", "clipped"),
    ]
    assert [layer.type for layer in found.layers] == [
        *("Conv2d", "BatchNorm2d", "Conv2d", "SeparableConv2d", "Conv2d", "GELU"),
        *("ConvTranspose2d", "AvgPool2d", "Add", "AdaptiveAvgPool2d", "Linear", "Reshape"),
        *("MultiheadAttention", "LSTM", "ReLU6"),
    ]
    stem = by_name["stem"]
    assert (stem.inputs, stem.outputs) == (((2, 3, 33, 32),), ((2, 8, 17, 16),))
    # 33 needs one zero on both sides, 32 one behind: 'same' of TensorFlow.
    assert (stem.padding, stem.layout) == (((1, 1), (0, 1)), "channels_last")
    assert stem.parameters == {"weight": (8, 3, 3, 3), "bias": (8,)}
    depth = by_name["depth"]
    assert (depth.groups, depth.parameters["weight"]) == (8, (16, 1, 3, 3))
    assert depth.flops == 2 * 2 * 16 * 17 * 16 * 9
    separable = by_name["separable"]
    assert separable.flops == 2 * 2 * 17 * 16 * (16 * 9 + 12 * 16)
    up = by_name["up"]
    assert (up.parameters["weight"], up.padding) == ((4, 6, 4, 4), ((1, 1), (1, 1)))
    assert up.flops == 2 * 2 * 4 * 17 * 16 * 6 * 16
    shared = by_name["shared"]
    assert (shared.calls, shared.flops, shared.parameter_count) == (2, 2 * 2 * 2 * 36, 42)
    attention = by_name["attention"]
    assert attention.parameters["query.weight"] == (10, 3)
    assert attention.parameters["value.weight"] == (8, 3)
    assert attention.parameters["out.weight"] == (3, 8)
    assert attention.flops == 2 * 4 * 3 * (10 + 10 + 8 + 8) + 2 * 2 * 2 * 2 * (10 + 8)
    # Keras counts moving averages too; they are not trained.
    assert found.parameter_count == model.count_params() - 16
    assert sum(layer.parameter_count for layer in found.layers) == found.parameter_count
    assert len(model._inbound_nodes) == nodes
    assert describe(model, (2, 33, 32, 3)) == found


def test_a_subclassed_model_must_be_built() -> None:
    class Subclassed(keras.Model):  # type: ignore[misc]  # Keras is untyped
        """Calls its layers in another order than it makes them."""

        def __init__(self) -> None:
            super().__init__(name="subclassed")
            self.last = layers.Dense(2, name="last")
            self.first = layers.Dense(5, name="first")

        def call(self, x: Any, training: bool = False) -> Any:
            return self.last(keras.ops.relu(self.first(x)))

    model = Subclassed()
    with pytest.raises(InvalidInputError, match=r"is not built: call it once on an input of"):
        describe(model, (4, 3))
    model(keras.ops.zeros((4, 3)))
    found = describe(model, (4, 3))
    assert [layer.path for layer in found.layers] == ["subclassed/first", "subclassed/last"]
    assert [layer.outputs for layer in found.layers] == [((4, 5),), ((4, 2),)]


def test_a_layer_of_one_s_own_is_the_layers_in_it() -> None:
    class Scale(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.factor = self.add_weight(shape=(shape[-1],), name="factor")

        def call(self, x: Any) -> Any:
            return x * self.factor

    class Block(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.first = layers.Conv2D(4, 3, padding="same", name="first")
            self.scale = Scale(name="scale")

        def call(self, x: Any) -> Any:
            return x + self.scale(self.first(x))

    images = keras.Input((8, 8, 4))
    blocks = [Block(name="block0"), Block(name="block1")]
    model = keras.Model(images, blocks[1](blocks[0](images)), name="net")
    found = describe(model, (2, 8, 8, 4))
    assert [(layer.path, layer.type) for layer in found.layers] == [
        (f"net/block{number}/{name}", type_)
        for number in (0, 1)
        for name, type_ in (("first", "Conv2d"), ("scale", "Scale"))
    ]
    assert found.layers[0].flops == 2 * 2 * 8 * 8 * 4 * 4 * 9


def test_channels_first_is_the_same_network() -> None:
    def model(data_format: str, shape: tuple[int, ...]) -> Any:
        conv = layers.Conv2D(4, 3, data_format=data_format, name="conv")
        return keras.Sequential([keras.Input(shape), conv], name="net")

    (last,) = describe(model("channels_last", (9, 8, 3)), (2, 9, 8, 3)).layers
    (first,) = describe(model("channels_first", (3, 9, 8)), (2, 3, 9, 8)).layers
    assert (last.layout, first.layout) == ("channels_last", "channels_first")
    assert (last.inputs, last.outputs, last.flops) == (first.inputs, first.outputs, first.flops)


def test_several_inputs() -> None:
    left, right = keras.Input((3,), name="left"), keras.Input((4,), name="right")
    joined = layers.Concatenate(name="joined")([left, right])
    model = keras.Model([left, right], layers.Dense(2, name="fc")(joined))
    joined_layer, fc = describe(model, [(5, 3), (5, 4)]).layers
    assert joined_layer.inputs == ((5, 3), (5, 4))
    assert (joined_layer.flops, fc.inputs) == (0, ((5, 7),))


def test_what_does_not_run_is_refused_and_keras_stays_as_it_is() -> None:
    call = layers.Layer.__call__
    with pytest.raises(InvalidInputError, match=r"does not run on inputs of shape \(2, 8, 8, 4\)"):
        describe(functional(), (2, 8, 8, 4))
    assert layers.Layer.__call__ is call


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "parameters", "macs"),
    [
        # He et al. 2016, table 1, print 3.8 G; Keras has the strides in the first convolution.
        ("ResNet50", 25_583_592, 3_857_973_248),
        # Sandler et al. 2018, table 4, print 300 M and 3.4 M.
        ("MobileNetV2", 3_504_872, 300_774_272),
    ],
)
def test_published_networks(name: str, parameters: int, macs: int) -> None:
    model = getattr(keras.applications, name)(weights=None)
    found = describe(model, (1, 224, 224, 3))
    assert found.parameter_count == parameters
    assert sum(layer.parameter_count for layer in found.layers) == parameters
    assert all(layer.flops is not None for layer in found.layers)
    weighted = [layer for layer in found.layers if layer.type in ("Conv2d", "Linear")]
    assert sum(layer.flops or 0 for layer in weighted) == 2 * macs


def test_the_input_has_a_gradient_only_if_something_before_it_is_trained() -> None:
    one, two = keras.Input((6,), name="one"), keras.Input((6,), name="two")
    left = layers.Dense(4, name="left")(layers.Rescaling(0.5, name="scale")(one))
    right = layers.Dense(4, name="right")(two)
    also = layers.Dense(4, name="also")(two)
    both = layers.Concatenate(name="both")([left, right, also])
    frozen = layers.Dense(4, name="frozen", trainable=False)(one)
    behind = layers.Dense(4, name="behind")(frozen)
    shared = layers.Dense(6, name="shared")
    twice = shared(shared(two))
    # The result of a function is not followed.
    after = layers.Dense(4, name="after")(keras.ops.add(left, right))
    out = layers.Dense(1, name="out")(both)
    model = keras.Model([one, two], [out, behind, twice, after], name="net")
    found = describe(model, [(2, 6), (2, 6)])
    assert {layer.path.removeprefix("net/"): layer.input_gradient for layer in found.layers} == {
        **dict.fromkeys(("scale", "left", "right", "also", "frozen", "behind"), False),
        **dict.fromkeys(("both", "shared", "out"), True),
        "after": None,
    }


def test_the_first_layer_of_a_sequential_model_has_no_gradient_of_its_input() -> None:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4), layers.Dense(2)])
    first, second = describe(model, (2, 6)).layers
    assert (first.input_gradient, second.input_gradient) == (False, True)
