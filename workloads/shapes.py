"""Shapes and parameter counts of a network, from its description alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from workloads.network import (
    IMAGES,
    Add,
    AvgPool,
    BatchNorm,
    Concatenate,
    Conv,
    Flatten,
    GlobalAvgPool,
    Layer,
    Linear,
    MaxPool,
    Network,
    NetworkError,
    Pool,
)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class LayerShape:
    """One layer with the shapes of its tensors per image (without the batch dimension).

    ``inputs`` and ``output`` are (C, H, W) or (features,). ``weight`` is (K, C / groups, R, S) for
    a convolution, (out, in) for a fully connected layer and (C,) for a batch normalization; None
    for layers without parameters. ``bias`` is (K,), (out,) or (C,), None for layers without one.
    ``pads`` are the rows (and columns) that a window may reach beyond the image on either side.
    """

    layer: Layer
    inputs: tuple[Shape, ...]
    output: Shape
    weight: Shape | None = None
    bias: Shape | None = None
    pads: tuple[int, int] = (0, 0)

    @property
    def input(self) -> Shape:
        """The shape of the first input; only sums and concatenations have others."""
        return self.inputs[0]

    @property
    def parameters(self) -> int:
        """Number of trained values."""
        return sum(prod(shape) for shape in (self.weight, self.bias) if shape is not None)


def layer_shapes(network: Network) -> tuple[LayerShape, ...]:
    """Return the shapes of each layer of ``network`` for one image, in order.

    Raises :class:`NetworkError` when groups do not divide the channels, an image is too small, or
    the inputs of a sum or a concatenation have different sizes.
    """
    outputs: dict[str, Shape] = {IMAGES: (network.channels, network.image_size, network.image_size)}
    found: list[LayerShape] = []
    sources = network.sources
    for layer in network.layers:
        inputs = tuple(outputs[name] for name in sources[layer.name])
        found.append(_shape_of(layer, inputs))
        outputs[layer.name] = found[-1].output
    return tuple(found)


def parameter_count(network: Network) -> int:
    """Return the number of trained values of the whole network."""
    return sum(shape.parameters for shape in layer_shapes(network))


def _shape_of(layer: Layer, inputs: tuple[Shape, ...]) -> LayerShape:
    shape = inputs[0]
    match layer:
        case Conv():
            return _convolution(layer, shape)
        case MaxPool() | AvgPool():
            return _pool(layer, shape)
        case BatchNorm():
            return LayerShape(layer, inputs, shape, shape[:1], shape[:1])
        case GlobalAvgPool():
            return LayerShape(layer, inputs, (shape[0], 1, 1))
        case Flatten():
            return LayerShape(layer, inputs, (prod(shape),))
        case Linear():
            if len(shape) != 1:
                raise NetworkError(f"{layer.name}: needs a flattened input, not {shape}")
            out = layer.out_features
            return LayerShape(layer, inputs, (out,), (out, shape[0]), (out,))
        case Add():
            if len(set(inputs)) != 1:
                raise NetworkError(f"{layer.name}: its inputs differ: {_listed(inputs)}")
            return LayerShape(layer, inputs, shape)
        case Concatenate():
            if len({each[1:] for each in inputs}) != 1:
                raise NetworkError(f"{layer.name}: its inputs differ in size: {_listed(inputs)}")
            return LayerShape(layer, inputs, (sum(each[0] for each in inputs), *shape[1:]))
        case _:
            return LayerShape(layer, inputs, shape)


def _convolution(layer: Conv, shape: Shape) -> LayerShape:
    channels, side = shape[0], _windows(layer, shape)
    if channels % layer.groups or layer.out_channels % layer.groups:
        raise NetworkError(
            f"{layer.name}: {layer.groups} groups do not divide "
            f"{channels} input and {layer.out_channels} output channels"
        )
    return LayerShape(
        layer,
        (shape,),
        (layer.out_channels, side, side),
        (layer.out_channels, channels // layer.groups, layer.kernel, layer.kernel),
        (layer.out_channels,) if layer.bias else None,
        (layer.padding, layer.padding),
    )


def _pool(layer: Pool, shape: Shape) -> LayerShape:
    side = _windows(layer, shape)
    behind = layer.padding
    padded = shape[1] + 2 * layer.padding
    covered = (side - 1) * layer.stride + layer.kernel
    # A window that begins beyond the image has no pixels.
    if layer.partial and covered < padded and side * layer.stride < shape[1] + layer.padding:
        behind += covered + layer.stride - padded
        side += 1
    return LayerShape(layer, (shape,), (shape[0], side, side), pads=(layer.padding, behind))


def _windows(layer: Conv | Pool, shape: Shape) -> int:
    side = (shape[1] + 2 * layer.padding - layer.kernel) // layer.stride + 1
    if side < 1:
        raise NetworkError(
            f"{layer.name}: its {layer.kernel}x{layer.kernel} window does not fit into "
            f"{shape[1]}x{shape[2]}; use larger images"
        )
    return side


def _listed(shapes: tuple[Shape, ...]) -> str:
    return " and ".join("x".join(map(str, shape)) for shape in shapes)
