"""From the description of a network to a Keras model."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from workloads.data import initial_weights
from workloads.keras.layers import (
    ChannelsOutermost,
    LocalResponse,
    PaddedConv2D,
    PaddedMaxPooling2D,
    ThroughHost,
)
from workloads.network import (
    IMAGES,
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
    Network,
    NetworkError,
    Pool,
    ReLU,
    Tanh,
)
from workloads.shapes import LayerShape, layer_shapes


def build(
    network: Network, seed: int = 0, *, channels_first: bool = False, through_host: bool = False
) -> keras.Model:
    """Return a model whose layers have the description's names, in its order.

    Its images are (batch, H, W, C), or (batch, C, H, W) with ``channels_first``. The weights are
    those of :func:`workloads.data.initial_weights`, the biases 0. With ``through_host`` every
    layer's output goes through the host's memory. Raises :class:`NetworkError` for
    an average over partial windows that TensorFlow does not support.
    """
    side = network.image_size
    order = (network.channels, side, side) if channels_first else (side, side, network.channels)
    images = keras.Input(order)
    values: dict[str, Any] = {IMAGES: images}
    sources = network.sources
    result = images
    for shape in layer_shapes(network):
        name = shape.layer.name
        inputs = [values[source] for source in sources[name]]
        result = _layer(shape, channels_first)(inputs if len(inputs) > 1 else inputs[0])
        if through_host:
            result = ThroughHost(name=f"{name}_host")(result)
        values[name] = result
    model = keras.Model(images, result, name=network.name)
    weights = initial_weights(network, seed)
    for name, weight in weights.items():
        if weight.ndim > 1:  # Keras also initializes the scale of a batch normalization with 1
            # (K, C, R, S) to (R, S, C, K), (out, in) to (in, out)
            axes = (2, 3, 1, 0) if weight.ndim == 4 else (1, 0)
            model.get_layer(name).kernel.assign(weight.transpose(axes))
    return model


def _layer(shape: LayerShape, channels_first: bool) -> keras.layers.Layer:
    name = shape.layer.name
    order = "channels_first" if channels_first else "channels_last"
    axis = 1 if channels_first else -1
    match shape.layer:
        case Conv() as conv:
            return PaddedConv2D(
                conv.out_channels,
                conv.kernel,
                strides=conv.stride,
                groups=conv.groups,
                zeros=conv.padding,
                use_bias=conv.bias,
                data_format=order,
                name=name,
            )
        case Linear() as linear:
            return layers.Dense(linear.out_features, name=name)
        case ReLU():
            return layers.ReLU(name=name)
        case Tanh():
            return layers.Activation("tanh", name=name)
        case LocalResponseNorm() as norm:
            return LocalResponse(norm, data_format=order, name=name)
        case BatchNorm() as norm:
            return layers.BatchNormalization(
                axis=axis, momentum=1 - norm.momentum, epsilon=norm.epsilon, name=name
            )
        case MaxPool() | AvgPool() as pool:
            return _pool(pool, shape, order)
        case GlobalAvgPool():
            return layers.GlobalAveragePooling2D(data_format=order, keepdims=True, name=name)
        case Flatten():
            return layers.Flatten(name=name) if channels_first else ChannelsOutermost(name=name)
        case Dropout() as dropout:
            return layers.Dropout(dropout.probability, name=name)
        case Add():
            return layers.Add(name=name)
        case Concatenate():
            return layers.Concatenate(axis=axis, name=name)


def _pool(pool: Pool, shape: LayerShape, order: str) -> keras.layers.Layer:
    kind = layers.MaxPooling2D if isinstance(pool, MaxPool) else layers.AveragePooling2D
    options = {"strides": pool.stride, "data_format": order, "name": pool.name}
    if shape.pads == (0, 0):
        return kind(pool.kernel, **options)
    if shape.pads == _same(shape.input[1], pool):
        return kind(pool.kernel, padding="same", **options)
    if isinstance(pool, MaxPool):
        return PaddedMaxPooling2D(pool.kernel, pads=shape.pads, **options)
    raise NetworkError(
        f"{pool.name}: TensorFlow has no average over {pool.kernel}x{pool.kernel} windows that "
        f"reach {shape.pads[0]} and {shape.pads[1]} pixels beyond {shape.input[1]}x"
        f"{shape.input[2]}; use images of an even size"
    )


def _same(side: int, pool: Pool) -> tuple[int, int]:
    """Return the padding that TensorFlow's "same" adds before and behind."""
    total = max((-(-side // pool.stride) - 1) * pool.stride + pool.kernel - side, 0)
    return total // 2, total - total // 2
