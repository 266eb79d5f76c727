"""Shapes and parameter counts of a network, from its description alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from workloads.network import Conv, Flatten, Layer, Linear, MaxPool, Network, NetworkError


@dataclass(frozen=True)
class LayerShape:
    """One layer with what goes in and out of it, per image (without the batch dimension).

    ``input`` and ``output`` are (C, H, W) or (features,). ``weight`` is (K, C / groups, R, S) for
    a convolution and (out, in) for a fully connected layer; None for layers without parameters.
    ``bias`` is (K,) or (out,).
    """

    layer: Layer
    input: tuple[int, ...]
    output: tuple[int, ...]
    weight: tuple[int, ...] | None = None
    bias: tuple[int, ...] | None = None

    @property
    def parameters(self) -> int:
        """Number of trained values."""
        return sum(prod(shape) for shape in (self.weight, self.bias) if shape is not None)


def layer_shapes(network: Network) -> tuple[LayerShape, ...]:
    """Follow one image through ``network``, one entry a layer in order.

    Raises :class:`NetworkError` when groups do not divide the channels or an image is too small.
    """
    shape: tuple[int, ...] = (network.channels, network.image_size, network.image_size)
    found: list[LayerShape] = []
    for layer in network.layers:
        found.append(_shape_of(layer, shape))
        shape = found[-1].output
    return tuple(found)


def parameter_count(network: Network) -> int:
    """Number of trained values of the whole network."""
    return sum(shape.parameters for shape in layer_shapes(network))


def _shape_of(layer: Layer, shape: tuple[int, ...]) -> LayerShape:
    match layer:
        case Conv():
            channels, side = shape[0], _windows(layer, shape, layer.padding)
            if channels % layer.groups or layer.out_channels % layer.groups:
                raise NetworkError(
                    f"{layer.name}: {layer.groups} groups do not divide "
                    f"{channels} input and {layer.out_channels} output channels"
                )
            return LayerShape(
                layer,
                shape,
                (layer.out_channels, side, side),
                (layer.out_channels, channels // layer.groups, layer.kernel, layer.kernel),
                (layer.out_channels,),
            )
        case MaxPool():
            side = _windows(layer, shape, 0)
            return LayerShape(layer, shape, (shape[0], side, side))
        case Flatten():
            return LayerShape(layer, shape, (prod(shape),))
        case Linear():
            if len(shape) != 1:
                raise NetworkError(f"{layer.name}: needs a flattened input, not {shape}")
            out = layer.out_features
            return LayerShape(layer, shape, (out,), (out, shape[0]), (out,))
        case _:
            return LayerShape(layer, shape, shape)


def _windows(layer: Conv | MaxPool, shape: tuple[int, ...], padding: int) -> int:
    side = (shape[1] + 2 * padding - layer.kernel) // layer.stride + 1
    if side < 1:
        raise NetworkError(
            f"{layer.name}: its {layer.kernel}x{layer.kernel} window does not fit into "
            f"{shape[1]}x{shape[2]}; use larger images"
        )
    return side
