"""Layers of Flax modules, linen's and NNX'."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flax")

import jax
import jax.numpy as jnp
from flax import linen, nnx

from traceana import describe
from traceana.errors import InvalidInputError

pytestmark = pytest.mark.frameworks


class Block(linen.Module):  # type: ignore[misc]  # not checked: an extra
    """A module of modules."""

    @linen.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        return linen.relu(linen.Dense(16, name="mix")(x))


class Net(linen.Module):  # type: ignore[misc]  # not checked: an extra
    """One of each."""

    @linen.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        x = linen.Conv(8, (3, 3), strides=2, name="conv")(x)
        x = linen.BatchNorm(use_running_average=False, name="norm")(x)
        x = linen.ConvTranspose(5, (4, 4), strides=(2, 2), name="up")(x)
        x = x.reshape(x.shape[0], -1, 5)
        x = linen.MultiHeadDotProductAttention(2, qkv_features=6, name="attention")(x, x)
        x = Block(name="block")(x)
        shared = linen.Dense(16, name="shared")
        x = linen.Dropout(0.5, deterministic=False, name="drop")(shared(shared(x)))
        return linen.DenseGeneral((2, 3), name="heads")(x)


def test_linen() -> None:
    found = describe(Net(), (2, 8, 8, 3))
    by_path = {layer.path: layer for layer in found.layers}
    assert [(layer.path, layer.type, layer.calls) for layer in found.layers] == [
        ("conv", "Conv2d", 1),
        ("norm", "BatchNorm2d", 1),
        ("up", "ConvTranspose2d", 1),
        ("attention", "MultiheadAttention", 1),
        ("block/mix", "Linear", 1),
        ("shared", "Linear", 2),
        ("drop", "Dropout", 1),
        ("heads", "Linear", 1),
    ]
    conv = by_path["conv"]
    assert conv.inputs == ((2, 3, 8, 8),)
    assert conv.padding == ((0, 1), (0, 1))
    assert conv.parameters == {"weight": (8, 3, 3, 3), "bias": (8,)}
    assert conv.flops == 2 * 2 * 8 * 16 * 27
    assert by_path["norm"].parameters == {"weight": (8,), "bias": (8,)}
    assert by_path["up"].parameters["weight"] == (8, 5, 4, 4)
    assert by_path["up"].padding == ((1, 1), (1, 1))
    assert by_path["attention"].flops == 4 * 2 * 128 * 5 * 6 + 2 * 2 * 64 * 64 * 12
    assert by_path["shared"].flops == 2 * (2 * 128 * 16 * 16)
    assert by_path["heads"].flops == 2 * 128 * 16 * 6
    assert sum(layer.parameter_count for layer in found.layers) == found.parameter_count


@pytest.mark.exhaustive
def test_linen_with_its_variables_and_wrong_ones() -> None:
    variables = Net().init({"params": jax.random.key(0), "dropout": jax.random.key(1)},
                           jnp.zeros((2, 8, 8, 3)))  # fmt: skip
    found = describe(Net(), (2, 8, 8, 3), parameters=variables)
    assert found == describe(Net(), (2, 8, 8, 3))
    with pytest.raises(InvalidInputError, match=r"does not run on inputs of shape \(2, 8, 8, 4\)"):
        describe(Net(), (2, 8, 8, 4), parameters=variables)


class NnxNet(nnx.Module):  # type: ignore[misc]
    """With state that a call changes."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.fc = nnx.Linear(8 * 64, 4, rngs=rngs)
        self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.blocks = nnx.List([nnx.Dropout(0.5, rngs=rngs)])
        self.attention = nnx.MultiHeadAttention(2, 8, 12, rngs=rngs, decode=False)

    def __call__(self, x: Any) -> Any:
        x = self.blocks[0](self.norm(self.conv(x)))
        x = x.reshape(x.shape[0], -1, 8)
        x = self.attention(x, x)
        return self.fc(x.reshape(x.shape[0], -1))


def test_nnx_leaves_the_module_as_it_is() -> None:
    model = NnxNet(nnx.Rngs(0))
    before = jax.tree.map(jnp.copy, nnx.state(model, nnx.Not(nnx.RngKey)))
    calls = nnx.Linear.__call__, nnx.MultiHeadAttention.__call__
    found = describe(model, (2, 8, 8, 3))
    assert [(layer.path, layer.type) for layer in found.layers] == [
        ("conv", "Conv2d"),
        ("norm", "BatchNorm2d"),
        ("blocks.0", "Dropout"),
        ("attention", "MultiheadAttention"),
        ("fc", "Linear"),
    ]
    assert found.layers[0].parameters == {"weight": (8, 3, 3, 3), "bias": (8,)}
    assert found.layers[3].parameters["out.weight"] == (8, 12)
    assert sum(layer.parameter_count for layer in found.layers) == found.parameter_count
    after = nnx.state(model, nnx.Not(nnx.RngKey))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), before, after))
    assert (nnx.Linear.__call__, nnx.MultiHeadAttention.__call__) == calls


def test_nnx_refuses_what_does_not_run() -> None:
    call = nnx.Linear.__call__
    with pytest.raises(InvalidInputError, match=r"does not run on inputs of shape \(2, 8, 8, 4\)"):
        describe(NnxNet(nnx.Rngs(0)), (2, 8, 8, 4))
    assert nnx.Linear.__call__ is call


def test_the_same_layer_in_both() -> None:
    (one,) = describe(linen.Conv(4, (3,), name="conv", padding=((2, 1),)), (2, 9, 3)).layers
    (other,) = describe(nnx.Conv(3, 4, (3,), padding=((2, 1),), rngs=nnx.Rngs(0)), (2, 9, 3)).layers
    assert (one.type, one.padding, one.inputs) == ("Conv1d", ((2, 1),), ((2, 3, 9),))
    assert (one.parameters, one.flops, one.outputs) == (
        other.parameters, other.flops, other.outputs,
    )  # fmt: skip
