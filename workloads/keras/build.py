"""From the description of a network to a Keras model."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from workloads.data import initial_weights
from workloads.network import (
    Conv,
    Dropout,
    Flatten,
    Linear,
    LocalResponseNorm,
    MaxPool,
    Network,
    ReLU,
)
from workloads.shapes import LayerShape, layer_shapes


def build(network: Network, seed: int = 0) -> keras.Sequential:
    """A float32 model whose layers have the description's names, in its order.

    Its images are (batch, H, W, C). The weights are those of
    :func:`workloads.data.initial_weights`, the biases 0.
    """
    side = network.image_size
    model = keras.Sequential(
        [
            keras.Input((side, side, network.channels)),
            *(_layer(shape) for shape in layer_shapes(network)),
        ],
        name=network.name,
    )
    weights = initial_weights(network, seed)
    for layer in model.layers:
        if (weight := weights.get(layer.name)) is not None:
            # (K, C, R, S) to (R, S, C, K), (out, in) to (in, out)
            order = (2, 3, 1, 0) if weight.ndim == 4 else (1, 0)
            layer.kernel.assign(weight.transpose(order))
    return model


@keras.saving.register_keras_serializable("workloads")
class PaddedConv2D(layers.Conv2D):  # type: ignore[misc]  # Keras is untyped
    """A convolution with the same zero padding on all sides, which Keras' own does not have."""

    def __init__(self, *arguments: Any, zeros: int, **options: Any) -> None:
        """Pad by ``zeros`` pixels; everything else as for Conv2D."""
        super().__init__(*arguments, **options)
        self.zeros = zeros

    def call(self, images: Any) -> Any:
        """Pad, then convolve."""
        sides = (self.zeros, self.zeros)
        return super().call(keras.ops.pad(images, ((0, 0), sides, sides, (0, 0))))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape for padded images."""
        batch, height, width, channels = input_shape
        both = 2 * self.zeros
        return super().compute_output_shape((batch, height + both, width + both, channels))


@keras.saving.register_keras_serializable("workloads")
class LocalResponse(layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """Normalization across channels; TensorFlow multiplies alpha with the sum, as the paper."""

    def __init__(self, norm: LocalResponseNorm, **options: Any) -> None:
        """Normalize as ``norm`` says."""
        super().__init__(**options)
        self.norm = norm

    def call(self, images: Any) -> Any:
        """Normalize over windows of channels."""
        norm = self.norm
        return tf.nn.local_response_normalization(
            images, norm.size // 2, norm.k, norm.alpha, norm.beta
        )


@keras.saving.register_keras_serializable("workloads")
class ChannelsOutermost(layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """(H, W, C) to (C*H*W,), the description's order."""

    def call(self, images: Any) -> Any:
        """Transpose, then flatten."""
        height, width, channels = images.shape[1:]
        moved = keras.ops.transpose(images, (0, 3, 1, 2))
        return keras.ops.reshape(moved, (-1, height * width * channels))


def _layer(shape: LayerShape) -> keras.layers.Layer:
    name = shape.layer.name
    match shape.layer:
        case Conv() as conv:
            return PaddedConv2D(
                conv.out_channels,
                conv.kernel,
                strides=conv.stride,
                groups=conv.groups,
                zeros=conv.padding,
                name=name,
            )
        case Linear() as linear:
            return layers.Dense(linear.out_features, name=name)
        case ReLU():
            return layers.ReLU(name=name)
        case LocalResponseNorm() as norm:
            return LocalResponse(norm, name=name)
        case MaxPool() as pool:
            return layers.MaxPooling2D(pool.kernel, pool.stride, name=name)
        case Flatten():
            return ChannelsOutermost(name=name)
        case Dropout() as dropout:
            return layers.Dropout(dropout.probability, name=name)
