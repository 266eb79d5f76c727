"""Gradients of PyTorch's convolutions: of the input, the weight and the bias, each when wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from traceana.flops.aten.convolution import build, split, spread
from traceana.flops.call import Call
from traceana.flops.model import Cost, Shape, UncountableError
from traceana.flops.neutral.convolution import Convolution, bias_grad, dgrad, wgrad
from traceana.flops.registry import operator


@dataclass(frozen=True, slots=True)
class Signature:
    """At which positions a backward operator takes what."""

    gradient: int
    input: int
    weight: int
    mask: int
    stride: int
    dilation: int | None
    transposed_at: int | None = None
    transposed: bool = False


SIGNATURES: Final[dict[str, Signature]] = {
    "aten::convolution_backward": Signature(0, 1, 2, 10, stride=4, dilation=6, transposed_at=7),
    "aten::convolution_backward_overrideable": Signature(
        0, 1, 2, 9, stride=3, dilation=5, transposed_at=6
    ),
    "aten::cudnn_convolution_backward": Signature(1, 0, 2, 10, stride=4, dilation=5),
    "aten::cudnn_convolution_transpose_backward": Signature(
        1, 0, 2, 11, stride=5, dilation=6, transposed=True
    ),
    "aten::miopen_convolution_backward": Signature(1, 0, 2, 9, stride=4, dilation=5),
    "aten::miopen_depthwise_convolution_backward": Signature(1, 0, 2, 9, stride=4, dilation=5),
    "aten::miopen_convolution_transpose_backward": Signature(
        1, 0, 2, 10, stride=5, dilation=6, transposed=True
    ),
    "aten::mkldnn_convolution_backward": Signature(1, 0, 2, 7, stride=4, dilation=5),
    "aten::_slow_conv2d_backward": Signature(0, 1, 2, 6, stride=4, dilation=None),
    "aten::thnn_conv2d_backward": Signature(0, 1, 2, 6, stride=4, dilation=None),
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


@operator(*SIGNATURES)
def backward(call: Call) -> tuple[Cost, ...]:
    """Gradient of the output, input, weight, and the mask of the gradients that were wanted.

    The first layer's input needs no gradient: its mask says so. Where the mask was not recorded,
    the operators that ran within serve in its place.
    """
    signature = SIGNATURES[call.name]
    wanted = call.wanted
    if wanted is None and call.scalars:
        wanted = call.flags(signature.mask)
    if wanted is None:
        raise UncountableError("which gradients were computed was not recorded")
    conv = read(call, signature)
    size = call.size(signature.gradient)
    # cuDNN's and older ones have no place for the bias.
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
        raise UncountableError("the extents of the input's gradient were not recorded")
    conv = _convolution(call.shape(1), call.extents(0), call.shape(2, 3, 4, 5))
    return (dgrad(conv, call.size(1)),)


@operator(*WEIGHT_GRADIENTS)
def backward_weight(call: Call) -> tuple[Cost, ...]:
    """The weight's extents as integers, gradient of the output, input."""
    if not call.scalars:
        raise UncountableError("the extents of the weight's gradient were not recorded")
    conv = _convolution(call.shape(1), call.shape(2), call.extents(0, 3, 4, 5))
    return (wgrad(conv, call.size(1)),)


def read(call: Call, signature: Signature) -> Convolution:
    """Return the convolution that the call computes gradients of."""
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
