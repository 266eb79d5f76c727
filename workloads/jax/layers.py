"""The kinds of layers as JAX functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from workloads.network import (
    Add,
    AvgPool,
    BatchNorm,
    Concatenate,
    Conv,
    Dropout,
    Flatten,
    GlobalAvgPool,
    Linear,
    LocalResponseNorm,
    MaxPool,
    ReLU,
    Tanh,
)
from workloads.shapes import LayerShape

Own = Mapping[str, jax.Array]
Statistics = tuple[jax.Array, jax.Array]
"""Mean and variance of each channel."""


@dataclass(frozen=True)
class Form:
    """The form of the layers; the results are equal.

    ``channels_first``: images are (batch, C, H, W). ``separate``: XLA may not fuse a convolution or
    a product with its bias, nor the bias with the next operation.
    """

    channels_first: bool = False
    separate: bool = False

    @property
    def channels(self) -> int:
        """The axis of the channels."""
        return 1 if self.channels_first else 3

    def spatial(self, value: Any, other: Any) -> tuple[Any, ...]:
        """Return ``value`` for the spatial axes, ``other`` for batch and channels."""
        if self.channels_first:
            return (other, other, value, value)
        return (other, value, value, other)

    def per_channel(self, values: jax.Array) -> jax.Array:
        """Return values by channel, reshaped to be broadcast over images."""
        return values[:, None, None] if self.channels_first else values


def layer(
    shape: LayerShape, own: Own, inputs: Sequence[jax.Array], key: jax.Array | None, form: Form
) -> jax.Array:
    """Return the layer's output; ``key`` is for dropout.

    Batch normalizations are computed by :func:`batch_norm`.
    """
    x = inputs[0]
    match shape.layer:
        case Conv() as conv:
            image = "NCHW" if form.channels_first else "NHWC"
            product = lax.conv_general_dilated(
                x,
                own["kernel"],
                (conv.stride, conv.stride),
                [shape.pads] * 2,
                dimension_numbers=(image, "HWIO", image),
                feature_group_count=conv.groups,
            )
            return _biased(product, form.per_channel(own["bias"]), form) if conv.bias else product
        case Linear():
            return _biased(x @ own["kernel"], own["bias"], form)
        case ReLU():
            return jax.nn.relu(x)
        case Tanh():
            return jnp.tanh(x)
        case LocalResponseNorm() as norm:
            channels = [1, 1, 1, 1]
            channels[form.channels] = norm.size
            squares = lax.reduce_window(x * x, 0.0, lax.add, channels, (1, 1, 1, 1), "SAME")
            return x / (norm.k + norm.alpha * squares) ** norm.beta
        case MaxPool() as pool:
            windows, strides = form.spatial(pool.kernel, 1), form.spatial(pool.stride, 1)
            pads = form.spatial(shape.pads, (0, 0))
            return lax.reduce_window(x, -jnp.inf, lax.max, windows, strides, pads)
        case AvgPool() as pool:
            windows, strides = form.spatial(pool.kernel, 1), form.spatial(pool.stride, 1)
            pads = form.spatial(shape.pads, (0, 0))
            sums = lax.reduce_window(x, 0.0, lax.add, windows, strides, pads)
            return sums / _elements(shape, pool, form, x.dtype)
        case GlobalAvgPool():
            return x.mean((2, 3) if form.channels_first else (1, 2), keepdims=True)
        case Flatten():
            # The description's order: channels outermost.
            ordered = x if form.channels_first else x.transpose(0, 3, 1, 2)
            return ordered.reshape(x.shape[0], -1)
        case Dropout() as dropout:
            kept = jax.random.bernoulli(key, 1 - dropout.probability, x.shape)
            return jnp.where(kept, x / (1 - dropout.probability), 0)
        case Add():
            return sum(inputs[1:], start=x)
        case Concatenate():
            return jnp.concatenate(inputs, axis=form.channels)
        case BatchNorm():
            raise AssertionError("batch normalizations have running averages: batch_norm()")


def batch_norm(
    norm: BatchNorm, own: Own, x: jax.Array, averages: Statistics | None, form: Form
) -> tuple[jax.Array, Statistics]:
    """Return the normalized images, and the averages updated with this batch's statistics."""
    axes = (0, 2, 3) if form.channels_first else (0, 1, 2)
    # Sums in half precision would not be exact enough.
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = wide.mean(axes)
    centred = wide - form.per_channel(mean)
    variance = (centred * centred).mean(axes)
    scale = form.per_channel(own["scale"] * lax.rsqrt(variance + norm.epsilon))
    normalized = centred * scale + form.per_channel(own["bias"])
    now = (lax.stop_gradient(mean), lax.stop_gradient(variance))
    if averages is not None:
        share = norm.momentum
        now = (
            averages[0] + share * (now[0] - averages[0]),
            averages[1] + share * (now[1] - averages[1]),
        )
    return normalized.astype(x.dtype), now


def _biased(product: jax.Array, bias: jax.Array, form: Form) -> jax.Array:
    if not form.separate:
        return product + bias
    return lax.optimization_barrier(lax.optimization_barrier(product) + bias)


def _elements(shape: LayerShape, pool: AvgPool, form: Form, dtype: Any) -> np.ndarray[Any, Any]:
    """Return the number of image pixels in each window."""
    starts = np.arange(shape.output[1]) * pool.stride - shape.pads[0]
    ends = np.minimum(starts + pool.kernel, shape.input[1])
    along = ends - np.maximum(starts, 0)
    both: np.ndarray[Any, Any] = (along[:, None] * along).astype(dtype)
    return both if form.channels_first else both[:, :, None]
