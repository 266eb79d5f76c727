"""PyTorch's convolutions and gradients, from ``aten::conv2d`` down to the library that runs them.

Each operator has its own order of inputs. Traces of PyTorch before 2.1 have no scalar inputs: a
convolution's stride and the mask of its gradients are missing. Hints replace them: the node of the
backward pass has the shape of the output, and the library's operators inside a backward operator
are the computed gradients.
"""

from __future__ import annotations

from typing import Final

import msgspec

from traceana.flops.call import Call
from traceana.flops.convolution import (
    Convolution,
    bias_grad,
    dgrad,
    extent,
    forward,
    split,
    spread,
    transposed_extent,
    wgrad,
)
from traceana.flops.cost import Cost, Shape, UncountableError
from traceana.flops.registry import operator


class ForwardInputs(msgspec.Struct, frozen=True):
    """The positions of a forward operator's inputs; ``None`` for inputs that it does not have."""

    stride: int
    padding: int
    dilation: int | None
    bias: int | None = 2
    transposed: bool = False
    transposed_at: int | None = None
    output_padding: int | None = None


_CONV = ForwardInputs(stride=3, padding=4, dilation=5)
_CONV_TRANSPOSE = ForwardInputs(3, 4, 7, transposed=True, output_padding=5)
_CONVOLUTION = ForwardInputs(3, 4, 5, transposed_at=6, output_padding=7)
_CUDNN = ForwardInputs(stride=3, padding=2, dilation=4, bias=None)
_CUDNN_TRANSPOSE = ForwardInputs(4, 2, 5, bias=None, transposed=True, output_padding=3)
_CUDNN_ADD = ForwardInputs(stride=5, padding=6, dilation=7, bias=4)
_LIBRARY = ForwardInputs(stride=4, padding=3, dilation=5)
_LIBRARY_TRANSPOSE = ForwardInputs(5, 3, 6, transposed=True, output_padding=4)
_SLOW = ForwardInputs(stride=4, padding=5, dilation=None, bias=3)
_SLOW_DILATED = ForwardInputs(stride=4, padding=5, dilation=6, bias=3)
_SLOW_TRANSPOSE = ForwardInputs(4, 5, 7, bias=3, transposed=True, output_padding=6)

FORWARD: Final[dict[str, ForwardInputs]] = {
    "aten::conv1d": _CONV,
    "aten::conv2d": _CONV,
    "aten::conv3d": _CONV,
    "aten::_convolution_mode": _CONV,
    "aten::conv_transpose1d": _CONV_TRANSPOSE,
    "aten::conv_transpose2d": _CONV_TRANSPOSE,
    "aten::conv_transpose3d": _CONV_TRANSPOSE,
    "aten::convolution": _CONVOLUTION,
    "aten::_convolution": _CONVOLUTION,
    "aten::convolution_overrideable": _CONVOLUTION,
    "aten::cudnn_convolution": _CUDNN,
    "aten::cudnn_convolution_transpose": _CUDNN_TRANSPOSE,
    "aten::cudnn_convolution_relu": _CONV,
    "aten::cudnn_convolution_add_relu": _CUDNN_ADD,
    "aten::miopen_convolution": _LIBRARY,
    "aten::miopen_depthwise_convolution": _LIBRARY,
    "aten::miopen_convolution_transpose": _LIBRARY_TRANSPOSE,
    "aten::miopen_convolution_relu": _CONV,
    "aten::miopen_convolution_add_relu": _CUDNN_ADD,
    "aten::mkldnn_convolution": _LIBRARY,
    "mkldnn::_convolution_pointwise": _LIBRARY,
    "mkldnn::_convolution_pointwise_": _LIBRARY,
    "mkldnn::_convolution_transpose_pointwise": _LIBRARY_TRANSPOSE,
    "aten::thnn_conv2d": _SLOW,
    "aten::_slow_conv2d_forward": _SLOW,
    "aten::slow_conv3d": _SLOW,
    "aten::slow_conv3d_forward": _SLOW,
    "aten::_conv_depthwise2d": _SLOW_DILATED,
    "aten::conv_depthwise3d": _SLOW_DILATED,
    "aten::thnn_conv_depthwise2d": _SLOW_DILATED,
    "aten::slow_conv_dilated2d": _SLOW_DILATED,
    "aten::slow_conv_dilated3d": _SLOW_DILATED,
    "aten::slow_conv_transpose2d": _SLOW_TRANSPOSE,
    "aten::slow_conv_transpose3d": _SLOW_TRANSPOSE,
}

_GROUPS_AT: Final = {
    "aten::conv_transpose1d": 6,
    "aten::conv_transpose2d": 6,
    "aten::conv_transpose3d": 6,
    "aten::convolution": 8,
    "aten::_convolution": 8,
    "aten::convolution_overrideable": 8,
    "aten::cudnn_convolution_transpose": 6,
    "aten::miopen_convolution_transpose": 7,
}
"""Positions of the groups of transposed convolutions, which the weight alone does not determine."""


@operator(*FORWARD)
def convolution(call: Call) -> tuple[Cost, ...]:
    """Input, weight, bias, and stride, padding, dilation at the operator's own positions.

    Groups follow from the weight. Where the stride was not recorded, the shape of the output
    (known from the backward pass) replaces it.
    """
    signature = FORWARD[call.name]
    call = _without_addend(call)
    conv = forward_extents(call, signature)
    bias = signature.bias is not None and call.has(signature.bias)
    return (forward(conv, call.size(0), bias),)


def _without_addend(call: Call) -> Call:
    """Return a pointwise convolution of oneDNN without the tensor to which it is added.

    It comes first where it is changed in place, else behind the images.
    """
    if call.name == "mkldnn::_convolution_pointwise_":
        return call.without(0)
    binary = call.has(2) and len(call.shape(2)) == len(call.shape(0))
    return call.without(1) if call.name == "mkldnn::_convolution_pointwise" and binary else call


def forward_extents(call: Call, signature: ForwardInputs) -> Convolution:
    """Return the convolution of the call."""
    weight = call.shape(1, 3, 4, 5)
    rank = len(weight) - 2
    batch, channels, spatial = split(call.shape(0), rank)
    if signature.transposed_at is not None and not call.scalars:
        raise UncountableError("transposed flag not recorded")
    at = signature.transposed_at
    transposed = signature.transposed if at is None else call.flag(at)
    if not call.scalars and call.output is not None:
        _, out_channels, output = split(call.output, rank)
        return build(batch, channels, out_channels, spatial, output, weight, transposed)
    stride = spread(call.integers(signature.stride), rank)
    padding = spread(call.integers(signature.padding), rank)
    dilation = (1,) * rank
    if signature.dilation is not None:
        dilation = spread(call.integers(signature.dilation), rank)
    extents = zip(spatial, weight[2:], stride, padding, dilation, strict=True)
    if transposed:
        more = signature.output_padding
        extra = (0,) * rank if more is None else spread(call.integers(more), rank)
        output = tuple(
            transposed_extent(size, window, s, p, o, d)
            for (size, window, s, p, d), o in zip(extents, extra, strict=True)
        )
        groups = _groups(channels, weight[0], call)
        out_channels = weight[1] * groups
    else:
        output = tuple(extent(size, window, s, p, d) for size, window, s, p, d in extents)
        out_channels = weight[0]
    return build(
        batch, channels, out_channels, spatial, output, weight, transposed, stride, dilation
    )


def build(
    batch: int,
    channels: int,
    out_channels: int,
    spatial: Shape | None,
    output: Shape | None,
    weight: Shape,
    transposed: bool,
    stride: Shape | None = None,
    dilation: Shape | None = None,
) -> Convolution:
    """Return the convolution of these extents; groups follow from the weight.

    A weight is [K, C/g, R, S], of a transposed convolution [C, K/g, R, S]. Raises
    :class:`UncountableError` where it does not fit the channels.
    """
    (first, a_group) = weight[:2]
    inner = out_channels if transposed else channels
    if first != (channels if transposed else out_channels) or not a_group or inner % a_group:
        raise UncountableError("weight shape does not match the channels")
    return Convolution(
        batch=batch,
        in_channels=channels,
        out_channels=out_channels,
        window=weight[2:],
        output=output,
        input=spatial,
        groups=max(inner // a_group, 1),
        transposed=transposed,
        stride=stride,
        dilation=dilation,
    )


def _groups(channels: int, first: int, call: Call) -> int:
    if first != channels:
        raise UncountableError("weight shape does not match the channels")
    at = _GROUPS_AT.get(call.name)
    return 1 if at is None else call.integer(at)


class BackwardInputs(msgspec.Struct, frozen=True):
    """The positions of a backward operator's inputs."""

    gradient: int
    input: int
    weight: int
    mask: int
    stride: int
    dilation: int | None
    transposed_at: int | None = None
    transposed: bool = False


BACKWARD: Final[dict[str, BackwardInputs]] = {
    "aten::convolution_backward": BackwardInputs(
        0, 1, 2, 10, stride=4, dilation=6, transposed_at=7
    ),
    "aten::convolution_backward_overrideable": BackwardInputs(
        0, 1, 2, 9, stride=3, dilation=5, transposed_at=6
    ),
    "aten::cudnn_convolution_backward": BackwardInputs(1, 0, 2, 10, stride=4, dilation=5),
    "aten::cudnn_convolution_transpose_backward": BackwardInputs(
        1, 0, 2, 11, stride=5, dilation=6, transposed=True
    ),
    "aten::miopen_convolution_backward": BackwardInputs(1, 0, 2, 9, stride=4, dilation=5),
    "aten::miopen_depthwise_convolution_backward": BackwardInputs(1, 0, 2, 9, stride=4, dilation=5),
    "aten::miopen_convolution_transpose_backward": BackwardInputs(
        1, 0, 2, 10, stride=5, dilation=6, transposed=True
    ),
    "aten::mkldnn_convolution_backward": BackwardInputs(1, 0, 2, 7, stride=4, dilation=5),
    "aten::_slow_conv2d_backward": BackwardInputs(0, 1, 2, 6, stride=4, dilation=None),
    "aten::thnn_conv2d_backward": BackwardInputs(0, 1, 2, 6, stride=4, dilation=None),
}

INPUT_GRADIENTS: Final = (
    "aten::cudnn_convolution_backward_input",
    "aten::miopen_convolution_backward_input",
    "aten::miopen_depthwise_convolution_backward_input",
    "aten::mkldnn_convolution_backward_input",
)
WEIGHT_GRADIENTS: Final = (
    "aten::cudnn_convolution_backward_weight",
    "aten::miopen_convolution_backward_weight",
    "aten::miopen_depthwise_convolution_backward_weight",
    "aten::mkldnn_convolution_backward_weights",
)


@operator(*BACKWARD)
def backward(call: Call) -> tuple[Cost, ...]:
    """Gradient of the output, input, weight, and the mask of the requested gradients.

    The mask excludes the gradient of the first layer's input. Where the mask was not recorded, the
    operators inside replace it.
    """
    signature = BACKWARD[call.name]
    wanted = call.wanted
    if wanted is None and call.scalars:
        wanted = call.flags(signature.mask)
    if wanted is None:
        raise UncountableError("output mask not recorded")
    conv = backward_extents(call, signature)
    size = call.size(signature.gradient)
    # The masks of cuDNN's and older operators have no flag for the bias.
    of_input, of_weight, of_bias = (*wanted, False, False, False)[:3]
    parts: list[Cost] = []
    if of_input:
        parts.append(dgrad(conv, size))
    if of_weight:
        parts.append(wgrad(conv, size))
    if of_bias:
        parts.append(bias_grad(conv, size))
    return tuple(parts)


@operator(*INPUT_GRADIENTS)
def backward_input(call: Call) -> tuple[Cost, ...]:
    """The input's extents as integers, gradient of the output, weight."""
    if not call.scalars:
        raise UncountableError("input gradient shape not recorded")
    conv = _convolution(call.shape(1), call.extents(0), call.shape(2, 3, 4, 5))
    return (dgrad(conv, call.size(1)),)


@operator(*WEIGHT_GRADIENTS)
def backward_weight(call: Call) -> tuple[Cost, ...]:
    """The weight's extents as integers, gradient of the output, input."""
    if not call.scalars:
        raise UncountableError("weight gradient shape not recorded")
    conv = _convolution(call.shape(1), call.shape(2), call.extents(0, 3, 4, 5))
    return (wgrad(conv, call.size(1)),)


def backward_extents(call: Call, signature: BackwardInputs) -> Convolution:
    """Return the convolution of a call that computes its gradients."""
    transposed = signature.transposed
    if signature.transposed_at is not None:
        transposed = call.flag(signature.transposed_at)
    weight = call.shape(signature.weight, 3, 4, 5)
    stride = dilation = None
    if call.scalars:
        rank = len(weight) - 2
        stride, dilation = spread(call.integers(signature.stride), rank), (1,) * rank
        if signature.dilation is not None:
            dilation = spread(call.integers(signature.dilation), rank)
    gradient, entering = call.shape(signature.gradient), call.shape(signature.input)
    return _convolution(gradient, entering, weight, transposed, stride, dilation)


def _convolution(
    gradient: Shape,
    entering: Shape,
    weight: Shape,
    transposed: bool = False,
    stride: Shape | None = None,
    dilation: Shape | None = None,
) -> Convolution:
    rank = len(weight) - 2
    batch, channels, spatial = split(entering, rank)
    _, out_channels, output = split(gradient, rank)
    return build(
        batch, channels, out_channels, spatial, output, weight, transposed, stride, dilation
    )
