"""From the description of a network to a JAX function and its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from workloads.data import initial_weights
from workloads.network import (
    Conv,
    Dropout,
    Flatten,
    Layer,
    Linear,
    LocalResponseNorm,
    MaxPool,
    Network,
    ReLU,
)

Parameters = Mapping[str, Mapping[str, jax.Array]]
_LAYOUT = ("NHWC", "HWIO", "NHWC")


def initial_parameters(network: Network, seed: int = 0) -> Parameters:
    """Kernel and bias by layer: those of :func:`workloads.data.initial_weights`, and 0.

    Kernels are (R, S, C, K) and (in, out).
    """
    found = {}
    for name, weight in initial_weights(network, seed).items():
        order = (2, 3, 1, 0) if weight.ndim == 4 else (1, 0)
        found[name] = {
            "kernel": jnp.asarray(weight.transpose(order)),
            "bias": jnp.zeros(weight.shape[0], weight.dtype),
        }
    return found


def apply(network: Network, parameters: Parameters, images: jax.Array, key: jax.Array) -> jax.Array:
    """Return the scores for images (batch, H, W, C); every layer is a name scope of its name.

    ``key`` is for dropout.
    """
    values = images
    with jax.named_scope(network.name):
        for number, layer in enumerate(network.layers):
            with jax.named_scope(layer.name):
                own = parameters.get(layer.name, {})
                values = _layer(layer, own, values, jax.random.fold_in(key, number))
    return values


def _layer(layer: Layer, own: Mapping[str, jax.Array], x: jax.Array, key: jax.Array) -> Any:
    match layer:
        case Conv():
            pads = [(layer.padding, layer.padding)] * 2
            product = lax.conv_general_dilated(
                x,
                own["kernel"],
                (layer.stride, layer.stride),
                pads,
                dimension_numbers=_LAYOUT,
                feature_group_count=layer.groups,
            )
            return product + own["bias"]
        case Linear():
            return x @ own["kernel"] + own["bias"]
        case ReLU():
            return jax.nn.relu(x)
        case LocalResponseNorm():
            channels, one = (1, 1, 1, layer.size), (1, 1, 1, 1)
            squares = lax.reduce_window(x * x, 0.0, lax.add, channels, one, "SAME")
            return x / (layer.k + layer.alpha * squares) ** layer.beta
        case MaxPool():
            window = (1, layer.kernel, layer.kernel, 1)
            strides = (1, layer.stride, layer.stride, 1)
            return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "VALID")
        case Flatten():
            # The description's order: channels outermost.
            return x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1)
        case Dropout():
            kept = jax.random.bernoulli(key, 1 - layer.probability, x.shape)
            return jnp.where(kept, x / (1 - layer.probability), 0)
