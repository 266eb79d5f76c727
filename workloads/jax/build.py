"""From the description of a network to a JAX function and its parameters."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from workloads.data import initial_weights
from workloads.jax.layers import Form, Statistics, batch_norm, layer
from workloads.network import IMAGES, BatchNorm, Dropout, Network
from workloads.shapes import layer_shapes

Parameters = Mapping[str, Mapping[str, jax.Array]]
_FORM = Form()


def initial_parameters(network: Network, seed: int = 0) -> Parameters:
    """Return kernel (of a batch normalization: scale) and bias by layer.

    Kernels are those of :func:`workloads.data.initial_weights`, as (R, S, C, K) and (in, out).
    """
    weights = initial_weights(network, seed)
    found = {}
    for shape in layer_shapes(network):
        if shape.weight is None:
            continue
        weight = weights[shape.layer.name]
        name = "scale" if isinstance(shape.layer, BatchNorm) else "kernel"
        order = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}[weight.ndim]
        found[shape.layer.name] = {name: jnp.asarray(weight.transpose(order))}
        if shape.bias is not None:
            found[shape.layer.name]["bias"] = jnp.zeros(shape.bias, weight.dtype)
    return found


def initial_averages(network: Network) -> dict[str, Statistics]:
    """Return the running averages of every batch normalization, before the first step."""
    return {
        shape.layer.name: (jnp.zeros(shape.output[0]), jnp.ones(shape.output[0]))
        for shape in layer_shapes(network)
        if isinstance(shape.layer, BatchNorm)
    }


def apply(network: Network, parameters: Parameters, images: jax.Array, key: jax.Array) -> jax.Array:
    """Return the scores for images (batch, H, W, C); every layer is a name scope of its name.

    ``key`` is for dropout. Batch normalizations use the batch's own statistics, as in training.
    """
    return train_apply(network, parameters, {}, images, key)[0]


def train_apply(
    network: Network,
    parameters: Parameters,
    averages: Mapping[str, Statistics],
    images: jax.Array,
    key: jax.Array,
    form: Form = _FORM,
) -> tuple[jax.Array, dict[str, Statistics]]:
    """Return the scores as :func:`apply` does, and the running averages after this batch.

    Images are (batch, C, H, W) with ``form.channels_first``.
    """
    values, sources = {IMAGES: images}, network.sources
    after: dict[str, Statistics] = {}
    result = images
    # Computed outside the layers: JAX would name these operations after the layer.
    keys = {
        each.name: jax.random.fold_in(key, number)
        for number, each in enumerate(network.layers)
        if isinstance(each, Dropout)
    }
    with jax.named_scope(network.name):
        for shape in layer_shapes(network):
            name = shape.layer.name
            inputs = [values[source] for source in sources[name]]
            own = parameters.get(name, {})
            with jax.named_scope(name):
                if isinstance(shape.layer, BatchNorm):
                    result, after[name] = batch_norm(
                        shape.layer, own, inputs[0], averages.get(name), form
                    )
                else:
                    result = layer(shape, own, inputs, keys.get(name), form)
            values[name] = result
    return result, after
