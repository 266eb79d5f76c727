"""The layers of a run as data, for traces without layer names.

Made from the description alone, in the format that ``traceana.describe`` writes for a live model.
The FLOPs are counted here too: the tests compare them with those of ``traceana.flops``.
"""

from __future__ import annotations

from math import prod
from typing import Any

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
)
from workloads.options import Layout, RunOptions
from workloads.shapes import LayerShape, layer_shapes

_TYPES = {
    "Conv": "Conv2d",
    "LocalResponseNorm": "LRN",
    "BatchNorm": "BatchNorm2d",
    "MaxPool": "MaxPool2d",
    "AvgPool": "AvgPool2d",
    "GlobalAvgPool": "AdaptiveAvgPool2d",
}


def layer_manifest(options: RunOptions) -> dict[str, Any]:
    """Return the network's layers in order of execution; the framework is None."""
    network, batch = options.describe_network(), options.local_batch
    layout = "channels_last" if options.layout is Layout.NHWC else "channels_first"
    layers = [
        _row(shape, position, batch, layout) for position, shape in enumerate(layer_shapes(network))
    ]
    images = (batch, network.channels, network.image_size, network.image_size)
    return {
        "format": "traceana-layers",
        "version": 1,
        "network": options.network,
        "framework": None,
        "inputs": [{"shape": images, "dtype": "float32", "layout": layout}],
        "parameter_count": sum(layer.get("parameter_count", 0) for layer in layers),
        "flops": sum(layer["flops"] for layer in layers),
        "layers": layers,
    }


def _row(shape: LayerShape, position: int, batch: int, layout: str) -> dict[str, Any]:
    layer, kind = shape.layer, type(shape.layer).__name__
    row: dict[str, Any] = {
        "path": layer.name,
        "type": _TYPES.get(kind, kind),
        "framework_type": kind,
        "position": position,
        "inputs": [(batch, *each) for each in shape.inputs],
        "outputs": [(batch, *shape.output)],
    }
    if any(len(each) == 3 for each in (*shape.inputs, shape.output)):
        row["layout"] = layout
    if isinstance(layer, Conv | MaxPool | AvgPool):
        row |= {
            "kernel": (layer.kernel, layer.kernel),
            "stride": (layer.stride, layer.stride),
            "padding": (shape.pads, shape.pads),
            "dilation": (1, 1),
        }
    if isinstance(layer, Conv):
        row["groups"] = layer.groups
    if shape.weight is not None:
        named = {"weight": shape.weight, "bias": shape.bias}
        row["parameters"] = {name: sizes for name, sizes in named.items() if sizes is not None}
        row["parameter_count"] = shape.parameters
    return {**row, "flops": batch * _flops(shape)}


def _flops(shape: LayerShape) -> int:
    """Return the FLOPs of the forward pass of one image, a multiply-accumulate as 2."""
    read, written = prod(shape.input), prod(shape.output)
    match shape.layer:
        case Conv() | Linear():
            return 2 * written * prod((shape.weight or ())[1:])
        case LocalResponseNorm(size=size):
            return read * (size + 5)
        case BatchNorm():
            return 8 * read
        case MaxPool(kernel=side):
            return written * side**2
        case AvgPool(kernel=side):
            return written * (side**2 + 1)
        case GlobalAvgPool():
            return read + written
        case Dropout():
            return 2 * read
        case Add():
            return (len(shape.inputs) - 1) * written
        case Flatten() | Concatenate():
            return 0
        case _:
            return read
