"""TensorFlow's convolutions: images [N, H, W, C] or [N, C, H, W], filters [R, S, C/g, K].

TensorFlow records no attributes: a forward convolution needs the shape of its output beside the
call (:attr:`traceana.flops.call.Call.output`); of the gradients the inputs tell enough.
"""

from __future__ import annotations

from typing import Final

from traceana.flops.call import Call
from traceana.flops.model import Cost, Shape, UncountableError
from traceana.flops.neutral.convolution import Convolution, dgrad, forward, wgrad
from traceana.flops.registry import operator

_BIASED: Final = frozenset(
    {"_FusedConv2D", "_MklNativeFusedConv2D", "_MklNativeConv2DWithBias", "_MklFusedConv2D"}
)


@operator("Conv2D", "Conv3D", "_MklNativeConv2D", "_MklNativeConv3D", *sorted(_BIASED))
def conv(call: Call) -> tuple[Cost, ...]:
    """Image, filter, and a bias; the output's shape from beside the call."""
    convolution = _read(call.shape(0), call.result(), call.shape(1, 4, 5))
    return (forward(convolution, call.size(0), call.name in _BIASED),)


@operator(
    "Conv2DBackpropInput",
    "Conv3DBackpropInputV2",
    "_MklNativeConv2DBackpropInput",
    "_MklNativeConv3DBackpropInputV2",
)
def conv_input(call: Call) -> tuple[Cost, ...]:
    """The input's extents as values, filter, the output's gradient."""
    weight, gradient = call.shape(1, 4, 5), call.shape(2)
    convolution = _read(call.output, gradient, weight)
    return (dgrad(convolution, call.size(2)),)


@operator(
    "Conv2DBackpropFilter",
    "Conv3DBackpropFilterV2",
    "_MklNativeConv2DBackpropFilter",
    "_MklNativeConv2DBackpropFilterWithBias",
    "_MklNativeConv3DBackpropFilterV2",
)
def conv_filter(call: Call) -> tuple[Cost, ...]:
    """Image, the filter's extents as values, the output's gradient.

    The output of this operator is the filter's gradient: its shape comes from beside the call.
    """
    convolution = _read(call.shape(0), call.shape(2), call.result(4, 5))
    return (wgrad(convolution, call.size(0)),)


@operator("DepthwiseConv2dNative", "_FusedDepthwiseConv2dNative")
def depthwise(call: Call) -> tuple[Cost, ...]:
    """Image, filter [R, S, C, multiplier]; the output's shape from beside the call."""
    convolution = _depthwise(call.shape(0, 4), call.result(4), call.shape(1, 4))
    return (forward(convolution, call.size(0), call.name.startswith("_Fused")),)


@operator("DepthwiseConv2dNativeBackpropInput")
def depthwise_input(call: Call) -> tuple[Cost, ...]:
    """The input's extents as values, filter [R, S, C, multiplier], the output's gradient."""
    convolution = _depthwise(call.output, call.shape(2, 4), call.shape(1, 4))
    return (dgrad(convolution, call.size(2)),)


@operator("DepthwiseConv2dNativeBackpropFilter")
def depthwise_filter(call: Call) -> tuple[Cost, ...]:
    """Image, the filter's extents as values, the output's gradient; as of a plain convolution."""
    convolution = _depthwise(call.shape(0, 4), call.shape(2, 4), call.result(4))
    return (wgrad(convolution, call.size(0)),)


def _read(image: Shape | None, output: Shape, weight: Shape) -> Convolution:
    (*window, a_group, filters) = weight
    batch, out_channels, spatial, last = _split(output, filters, len(window))
    channels, entering = a_group, None
    if image is not None:
        if len(image) != len(output):
            raise UncountableError("image and output are of different ranks")
        channels = image[-1] if last else image[1]
        entering = image[1:-1] if last else image[2:]
    if not a_group or channels % a_group:
        raise UncountableError("the filter does not fit the channels")
    return Convolution(
        batch=batch,
        in_channels=channels,
        out_channels=out_channels,
        window=tuple(window),
        output=spatial,
        input=entering,
        groups=channels // a_group,
    )


def _depthwise(image: Shape | None, output: Shape, weight: Shape) -> Convolution:
    (*window, channels, multiplier) = weight
    batch, out_channels, spatial, last = _split(output, channels * multiplier, len(window))
    entering = None
    if image is not None:
        entering = image[1:-1] if last else image[2:]
    return Convolution(
        batch=batch,
        in_channels=channels,
        out_channels=out_channels,
        window=tuple(window),
        output=spatial,
        input=entering,
        groups=channels,
    )


def _split(shape: Shape, channels: int, rank: int) -> tuple[int, int, Shape, bool]:
    """Return batch, channels, spatial extents, and whether the channels come last.

    The layout is an attribute, which is not recorded: the filter's channels tell it. Where both
    would do, the channels are last, as TensorFlow has them by default.
    """
    if len(shape) != rank + 2:
        raise UncountableError("image and filter are of different ranks")
    if shape[-1] == channels:
        return shape[0], channels, shape[1:-1], True
    if shape[1] == channels:
        return shape[0], channels, shape[2:], False
    raise UncountableError("the filter does not fit the channels")
