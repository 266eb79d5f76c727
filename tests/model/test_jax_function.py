"""Layers of JAX functions, from their equations and name scopes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from jax import lax

from traceana import describe
from traceana.errors import InvalidInputError

pytestmark = pytest.mark.frameworks


def test_parameters_by_name_and_what_is_between_scopes() -> None:
    def net(parameters: Any, x: Any) -> Any:
        with jax.named_scope("net"):
            for name in ("one", "two"):
                with jax.named_scope(name):
                    x = x @ parameters[name]["kernel"] + parameters[name]["bias"]
                x = x * 2
        return x

    parameters = {
        name: {"kernel": jnp.zeros((3, 3)), "bias": jnp.zeros(3)} for name in ("one", "two")
    }
    found = describe(net, (5, 3), parameters=parameters)
    assert found.network == "net"
    assert [layer.path for layer in found.layers] == ["net/one", "net/two"]
    assert found.layers[1].parameters == {"weight": (3, 3), "bias": (3,)}
    assert found.layers[1].inputs == ((5, 3),)
    assert found.parameter_count == 24
    assert found.flops == 2 * (2 * 5 * 9)


def scoped(name: str, function: Any, *shapes: tuple[int, ...]) -> Any:
    """Describe a function of random inputs of ``shapes`` in one scope."""

    def run(*inputs: Any) -> Any:
        with jax.named_scope(name):
            return function(*inputs)

    return describe(run, list(shapes)).layers


def test_types_follow_from_equations() -> None:
    key = jax.random.key(0)
    image = (2, 8, 8, 3)
    table = jnp.zeros((10, 4))

    def dropout(x: Any) -> Any:
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)

    def norm(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def batch_norm(x: Any) -> Any:
        axes = (0, 1, 2)
        return (x - x.mean(axes)) * lax.rsqrt(x.var(axes) + 1e-5)

    def average(x: Any) -> Any:
        window = (1, 2, 2, 1)
        return lax.reduce_window(x, 0.0, lax.add, window, window, "VALID") / 4

    cases = {
        "ReLU": (jax.nn.relu, image),
        "Sigmoid": (jax.nn.sigmoid, image),
        "SiLU": (jax.nn.silu, image),
        "Tanh": (jnp.tanh, image),
        "Softmax": (jax.nn.softmax, (4, 5)),
        "LogSoftmax": (jax.nn.log_softmax, (4, 5)),
        "Dropout": (dropout, image),
        "LayerNorm": (norm, (2, 5, 8)),
        "BatchNorm2d": (batch_norm, image),
        "AvgPool2d": (average, image),
        "Flatten": (lambda x: x.reshape(2, -1), image),
        "Permute": (lambda x: x.transpose(0, 2, 1), (2, 3, 4)),
        "odd": (lambda x: jnp.sin(x) + 1, image),
    }
    for expected, (function, shape) in cases.items():
        (layer,) = scoped("odd", function, shape)
        assert layer.type == expected
    found = describe(jax.named_call(lambda i: table[i], name="tokens"), (2, 7), dtype="int32")
    (embedding,) = found.layers
    assert (embedding.type, embedding.parameters) == ("Embedding", {"weight": (10, 4)})


def test_convolutions_of_any_order_of_axes() -> None:
    kernel = jnp.zeros((3, 3, 2, 8))

    def grouped(x: Any) -> Any:
        order = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, kernel, (2, 1), "SAME", dimension_numbers=order, feature_group_count=2
        )

    def first(x: Any) -> Any:
        order = ("NCHW", "HWIO", "NCHW")
        return lax.conv_general_dilated(
            x, kernel, (2, 1), "SAME", dimension_numbers=order, feature_group_count=2
        )

    (last,) = scoped("conv", grouped, (2, 9, 8, 4))
    (other,) = scoped("conv", first, (2, 4, 9, 8))
    assert (last.layout, other.layout) == ("channels_last", "channels_first")
    for layer in (last, other):
        assert (layer.inputs, layer.outputs) == (((2, 4, 9, 8),), ((2, 8, 5, 8),))
        assert (layer.groups, layer.stride) == (2, (2, 1))
        assert layer.parameters == {"weight": (8, 2, 3, 3)}
        assert layer.flops == 2 * 2 * 8 * 40 * 2 * 9


def test_a_transposed_convolution() -> None:
    kernel = jnp.zeros((4, 4, 3, 6))
    (layer,) = scoped("up", lambda x: lax.conv_transpose(x, kernel, (2, 2), "SAME"), (2, 8, 8, 3))
    assert (layer.type, layer.stride, layer.padding) == ("ConvTranspose2d", (2, 2), ((1, 1),) * 2)
    assert layer.parameters == {"weight": (3, 6, 4, 4)}
    assert layer.flops == 2 * 2 * 3 * 64 * 6 * 16


def test_attention_in_one_scope_counts_all_its_products() -> None:
    weights = {part: jnp.zeros((8, 8)) for part in "qkvo"}

    def attention(x: Any) -> Any:
        q, k, v = (x @ weights[part] for part in "qkv")
        scores = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k))
        return jnp.einsum("bqk,bkd->bqd", scores, v) @ weights["o"]

    (layer,) = scoped("attention", attention, (2, 5, 8))
    assert (layer.type, layer.parameter_count) == ("MultiheadAttention", 4 * 64)
    assert layer.flops == 4 * 2 * 10 * 64 + 2 * 2 * 2 * 25 * 8


def test_jit_remat_scan_and_shared_layers() -> None:
    weight, stack = jnp.zeros((4, 4)), jnp.zeros((6, 4, 4))

    @jax.jit  # type: ignore[untyped-decorator]
    def block(x: Any) -> Any:
        with jax.named_scope("inner"):
            return x @ weight

    def body(x: Any, own: Any) -> Any:
        with jax.named_scope("turn"):
            return x @ own, None

    def net(x: Any) -> Any:
        with jax.named_scope("net"):
            x = jax.checkpoint(block)(x)
            with jax.named_scope("between"):
                x = jnp.tanh(x)
            x = block(x)
            return jax.lax.scan(body, x, stack)[0]

    found = describe(net, (3, 4))
    layers = {layer.path: layer for layer in found.layers}
    assert list(layers) == ["net/inner", "net/between", "net/turn"]
    assert (layers["net/inner"].calls, layers["net/inner"].flops) == (2, 2 * 2 * 3 * 16)
    turn = layers["net/turn"]
    assert (turn.calls, turn.flops) == (6, 6 * 2 * 3 * 16)
    assert turn.inputs == turn.outputs == ((3, 4),)
    assert found.parameter_count == 16 + 6 * 16


def test_the_backward_pass_is_not_described() -> None:
    weight = jnp.zeros((4, 4))

    def loss(x: Any) -> Any:
        with jax.named_scope("fc"):
            return (x @ weight).sum()

    (layer,) = describe(jax.value_and_grad(loss), (3, 4)).layers
    assert layer.flops == 2 * 3 * 16


def test_types_by_scope() -> None:
    def net(x: Any) -> Any:
        with jax.named_scope("mine"):
            return jnp.sin(x)

    assert describe(net, (2, 3), types={"mine": "Sine"}).layers[0].type == "Sine"


def test_what_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="has no named scopes: put each layer under"):
        describe(lambda x: x + 1, (2, 3))
    with pytest.raises(InvalidInputError, match="does not run on inputs of shape"):
        describe(lambda x: x @ jnp.zeros((4, 4)), (2, 3))
