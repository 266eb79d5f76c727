"""Forward convolutions of PyTorch, from ``aten::conv2d`` down to the library that runs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from traceana.flops.call import Call
from traceana.flops.model import Cost, Shape, UncountableError
from traceana.flops.neutral.convolution import Convolution, extent, forward, transposed_extent
from traceana.flops.registry import operator


@dataclass(frozen=True, slots=True)
class Signature:
    """At which positions an operator takes what; ``None`` for what it does not take."""

    stride: int
    padding: int
    dilation: int | None
    bias: int | None = 2
    transposed: bool = False
    transposed_at: int | None = None
    output_padding: int | None = None


_CONV = Signature(stride=3, padding=4, dilation=5)
_CONV_TRANSPOSE = Signature(3, 4, 7, transposed=True, output_padding=5)
_CONVOLUTION = Signature(3, 4, 5, transposed_at=6, output_padding=7)
_CUDNN = Signature(stride=3, padding=2, dilation=4, bias=None)
_CUDNN_TRANSPOSE = Signature(4, 2, 5, bias=None, transposed=True, output_padding=3)
_CUDNN_ADD = Signature(stride=5, padding=6, dilation=7, bias=4)
_LIBRARY = Signature(stride=4, padding=3, dilation=5)
_LIBRARY_TRANSPOSE = Signature(5, 3, 6, transposed=True, output_padding=4)
_SLOW = Signature(stride=4, padding=5, dilation=None, bias=3)
_SLOW_DILATED = Signature(stride=4, padding=5, dilation=6, bias=3)
_SLOW_TRANSPOSE = Signature(4, 5, 7, bias=3, transposed=True, output_padding=6)

SIGNATURES: Final[dict[str, Signature]] = {
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


@operator(*SIGNATURES)
def convolution(call: Call) -> tuple[Cost, ...]:
    """Input, weight, bias, and stride, padding, dilation at the operator's own positions.

    Groups follow from the weight. Where the stride was not recorded, the shape of the output
    (known from the backward pass) serves in its place.
    """
    signature = SIGNATURES[call.name]
    conv = read(call, signature)
    bias = signature.bias is not None and call.has(signature.bias)
    return (forward(conv, call.size(0), bias),)


def read(call: Call, signature: Signature) -> Convolution:
    """Return the convolution that the call is of."""
    weight = call.shape(1, 3, 4, 5)
    rank = len(weight) - 2
    batch, channels, spatial = split(call.shape(0), rank)
    if signature.transposed_at is not None and not call.scalars:
        raise UncountableError("whether the convolution is transposed was not recorded")
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
        raise UncountableError("the weight does not fit the channels")
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


def split(shape: Shape, rank: int) -> tuple[int, int, Shape]:
    """Return batch, channels and spatial extents; an input without a batch is one image."""
    if len(shape) == rank + 1:
        return 1, shape[0], shape[1:]
    if len(shape) != rank + 2:
        raise UncountableError(f"a tensor has {len(shape)} dimensions")
    return shape[0], shape[1], shape[2:]


def spread(values: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return one value a dimension; a single value stands for all."""
    if len(values) == 1:
        return values * rank
    if len(values) != rank:
        raise UncountableError("a stride, padding or dilation is of another rank")
    return values


def _groups(channels: int, first: int, call: Call) -> int:
    if first != channels:
        raise UncountableError("the weight does not fit the channels")
    at = _GROUPS_AT.get(call.name)
    return 1 if at is None else call.integer(at)


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
"""Where transposed convolutions take their groups, which their weight alone does not tell."""
