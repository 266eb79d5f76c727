"""Layers that Keras does not have."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from workloads.network import LocalResponseNorm

Pads = tuple[int, int]


def padded(images: Any, pads: Pads, channels_first: bool, value: float = 0.0) -> Any:
    """Return images padded by rows and columns before and behind."""
    around = ((0, 0), (0, 0), pads, pads) if channels_first else ((0, 0), pads, pads, (0, 0))
    return keras.ops.pad(images, around, constant_values=value)


@keras.saving.register_keras_serializable("workloads")
class PaddedConv2D(layers.Conv2D):  # type: ignore[misc]  # Keras is untyped
    """A convolution with the same zero padding on all sides, which Keras' own does not have."""

    def __init__(self, *arguments: Any, zeros: int, **options: Any) -> None:
        """Pad by ``zeros`` pixels; everything else as for Conv2D."""
        super().__init__(*arguments, **options)
        self.zeros = zeros

    def call(self, images: Any) -> Any:
        """Pad, then convolve."""
        pads = (self.zeros, self.zeros)
        return super().call(padded(images, pads, self.data_format == "channels_first"))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape for padded images."""
        return super().compute_output_shape(_wider(input_shape, self.data_format, 2 * self.zeros))


@keras.saving.register_keras_serializable("workloads")
class PaddedMaxPooling2D(layers.MaxPooling2D):  # type: ignore[misc]  # Keras is untyped
    """Maxima over windows that reach beyond the image with other padding than Keras' "same"."""

    def __init__(self, *arguments: Any, pads: Pads, **options: Any) -> None:
        """Pad by ``pads`` rows and columns; everything else as for MaxPooling2D."""
        super().__init__(*arguments, **options)
        self.pads = pads

    def call(self, images: Any) -> Any:
        """Pad with the lowest value, then pool."""
        first = self.data_format == "channels_first"
        return super().call(padded(images, self.pads, first, float("-inf")))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape for padded images."""
        return super().compute_output_shape(_wider(input_shape, self.data_format, sum(self.pads)))


@keras.saving.register_keras_serializable("workloads")
class LocalResponse(layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """Normalization across channels; TensorFlow multiplies alpha with the sum, as the paper."""

    def __init__(self, norm: LocalResponseNorm, *, data_format: str, **options: Any) -> None:
        """Normalize with the constants of ``norm``."""
        super().__init__(**options)
        self.norm = norm
        self.data_format = data_format

    def call(self, images: Any) -> Any:
        """Normalize over windows of channels, which TensorFlow requires innermost."""
        norm = self.norm
        first = self.data_format == "channels_first"
        last = keras.ops.transpose(images, (0, 2, 3, 1)) if first else images
        normalized = tf.nn.local_response_normalization(
            last, norm.size // 2, norm.k, norm.alpha, norm.beta
        )
        return keras.ops.transpose(normalized, (0, 3, 1, 2)) if first else normalized


@keras.saving.register_keras_serializable("workloads")
class ChannelsOutermost(layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """(H, W, C) to (C*H*W,), the description's order."""

    def call(self, images: Any) -> Any:
        """Transpose, then flatten."""
        height, width, channels = images.shape[1:]
        moved = keras.ops.transpose(images, (0, 3, 1, 2))
        return keras.ops.reshape(moved, (-1, height * width * channels))


@keras.saving.register_keras_serializable("workloads")
class ThroughHost(layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """Copies values to host memory and back; on the CPU nothing happens."""

    def call(self, values: Any) -> Any:
        """Copy the values to the CPU; the next layer copies them back."""
        with tf.device("/CPU:0"):
            return tf.identity(values)


def _wider(shape: Any, data_format: str, by: int) -> tuple[Any, ...]:
    if data_format == "channels_first":
        batch, channels, height, width = shape
        return (batch, channels, height + by, width + by)
    batch, height, width, channels = shape
    return (batch, height + by, width + by, channels)
