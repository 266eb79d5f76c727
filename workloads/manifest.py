"""The layers of a run as data, for traces without layer names.

Made from the description alone, in the format that ``traceana.describe`` writes for a live model.
"""

from __future__ import annotations

from traceana.model.manifest import Layout, Manifest, manifest
from traceana.model.manifest_rows import Details, finished, model_inputs
from traceana.model.recorded_calls import ModelCall, Recorded
from workloads.network import AvgPool, Conv, Layer, LocalResponseNorm, MaxPool
from workloads.options import Layout as Memory
from workloads.options import RunOptions
from workloads.shapes import LayerShape, layer_shapes

_TYPES = {
    "Conv": "Conv2d",
    "LocalResponseNorm": "LRN",
    "BatchNorm": "BatchNorm2d",
    "MaxPool": "MaxPool2d",
    "AvgPool": "AvgPool2d",
    "GlobalAvgPool": "AdaptiveAvgPool2d",
}


def layer_manifest(options: RunOptions) -> Manifest:
    """Return the network's layers in order of execution; the framework is None."""
    network = options.describe_network()
    layout: Layout = "channels_last" if options.layout is Memory.NHWC else "channels_first"
    layers = tuple(
        finished(_recorded(shape, options.local_batch, layout), position, _details(shape))
        for position, shape in enumerate(layer_shapes(network))
    )
    side = network.image_size
    call = ModelCall(((options.local_batch, network.channels, side, side),), ("float32",), (None,))
    return manifest(
        network=options.network,
        framework=None,
        inputs=model_inputs(call, ["float32"], layers, "channels_first"),
        layers=layers,
    )


def _recorded(shape: LayerShape, batch: int, layout: Layout) -> Recorded:
    return Recorded(
        key=shape.layer.name,
        path=shape.layer.name,
        layer=shape.layer,
        inputs=[(batch, *each) for each in shape.inputs],
        outputs=[(batch, *shape.output)],
        axes="channels_first",
        layout=layout,
    )


def _details(shape: LayerShape) -> Details:
    layer: Layer = shape.layer
    kind = type(layer).__name__
    type_ = _TYPES.get(kind, kind)
    named = {"weight": shape.weight, "bias": shape.bias}
    parameters = {name: values for name, values in named.items() if values is not None}
    match layer:
        case Conv() | MaxPool() | AvgPool():
            return Details(
                type=type_,
                framework_type=kind,
                kernel=(layer.kernel, layer.kernel),
                stride=(layer.stride, layer.stride),
                padding=(shape.pads, shape.pads),
                dilation=(1, 1),
                groups=layer.groups if isinstance(layer, Conv) else None,
                parameters=parameters,
            )
        case LocalResponseNorm():
            return Details(type_, kind, neighbours=layer.size)
        case _:
            return Details(type_, kind, parameters=parameters)
