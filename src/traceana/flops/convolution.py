"""Convolutions: how their counts are derived, and how TensorFlow and XLA record them.

Any rank: grouped, depthwise, dilated, transposed; forward and both gradients. PyTorch's operators
record their inputs in different orders: :mod:`traceana.flops.aten_convolution`.
"""

from __future__ import annotations

from math import prod
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from traceana.flops.call import Attributes, Call, Contraction, DimensionNumbers, picked
from traceana.flops.cost import Cost, Count, Operand, Shape, UncountableError, compulsory
from traceana.flops.registry import formula, operator

_KINDS: Final = {1: "1d", 2: "2d", 3: "3d"}


class Convolution(msgspec.Struct, frozen=True):
    """The extents of a convolution.

    ``input`` and ``output`` are the spatial extents of the layer's input and output, ``window``
    the filter's. ``input`` is ``None`` where unknown: only bytes need it, except for a transposed
    convolution, where input and output are exchanged. Only the algorithms need ``stride`` and
    ``dilation`` (:mod:`traceana.flops.executed`); ``None`` where unknown.

    Raises :class:`UncountableError` for invalid extents.
    """

    batch: int
    in_channels: int
    out_channels: int
    window: Shape
    output: Shape | None
    input: Shape | None = None
    groups: int = 1
    transposed: bool = False
    stride: Shape | None = None
    dilation: Shape | None = None

    def __post_init__(self) -> None:
        rank = len(self.window)
        spatial = (self.input, self.output, self.stride, self.dilation)
        if rank not in _KINDS or any(one is not None and len(one) != rank for one in spatial):
            raise UncountableError("rank mismatch of the shapes")
        if self.groups < 1 or self.in_channels % self.groups or self.out_channels % self.groups:
            raise UncountableError("channels not divisible by the groups")
        if self.walked is None:
            raise UncountableError("spatial size unknown")

    @property
    def walked(self) -> Shape | None:
        """The positions of the window: of the output, or of the input if transposed."""
        return self.input if self.transposed else self.output

    @property
    def kind(self) -> str:
        """The name of the layer: ``conv2d``, ``depthwise_conv2d``, ``conv_transpose3d``."""
        rank = _KINDS[len(self.window)]
        if self.transposed:
            return f"conv_transpose{rank}"
        return f"depthwise_conv{rank}" if self.depthwise else f"conv{rank}"

    @property
    def depthwise(self) -> bool:
        """Whether every input channel is a separate group."""
        return self.groups > 1 and self.groups == self.in_channels

    @property
    def weights(self) -> int:
        """The elements of the filter: K · C/g · R · S."""
        return self.out_channels * self.in_channels // self.groups * prod(self.window)

    @property
    def macs(self) -> int:
        """The multiply-accumulates of a direct convolution: every weight, image and position."""
        return self.batch * self.weights * prod(self.walked or ())

    def input_operand(self, size: int | None) -> Operand:
        """Return the layer's input, its elements of ``size`` bytes."""
        return _image(self.batch, self.in_channels, self.input, size)

    def output_operand(self, size: int | None) -> Operand:
        """Return the layer's output, its elements of ``size`` bytes."""
        return _image(self.batch, self.out_channels, self.output, size)


def _image(batch: int, channels: int, spatial: Shape | None, size: int | None) -> Operand:
    return Operand(None if spatial is None else batch * channels * prod(spatial), size)


@formula("convolution.forward")
def forward(conv: Convolution, size: int | None, bias: bool = False) -> Cost:
    """2 · N · K · P · Q · (C/g) · R · S: each output is a sum over its window and input channels.

    Each of the N·K·P·Q outputs needs (C/g)·R·S multiply-accumulates, in any number of spatial
    dimensions. Taps on the padding count: a GEMM executes them. Stride and dilation change only P
    and Q. In a transposed convolution each *input* is multiplied with the whole window, and P·Q are
    the input's extents. A bias is the initial value of the sum: it adds no operation, and its K
    elements are read. This is O(K·C·R·S·N·H·W) of Kim et al. (ISPASS 2017), and equal to PyTorch's
    counter.
    """
    weights, biases = Operand(conv.weights, size), Operand(conv.out_channels, size)
    moved = compulsory(
        conv.input_operand(size), weights, conv.output_operand(size), biases if bias else None
    )
    return Cost(conv.kind, "forward", 2 * conv.macs, moved, "convolution.forward")


@formula("convolution.dgrad")
def dgrad(conv: Convolution, size: int | None) -> Cost:
    """2 · N · K · P · Q · (C/g) · R · S: the multiply-accumulates of the forward pass.

    y += w·x gives dx += w·dy: one multiply-accumulate for each of the forward pass. Reads the
    gradient of the output and the weights, writes the gradient of the input.
    """
    moved = compulsory(
        conv.output_operand(size), Operand(conv.weights, size), conv.input_operand(size)
    )
    return Cost(conv.kind, "dgrad", 2 * conv.macs, moved, "convolution.dgrad")


@formula("convolution.wgrad")
def wgrad(conv: Convolution, size: int | None) -> Cost:
    """2 · N · K · P · Q · (C/g) · R · S: the multiply-accumulates of the forward pass.

    y += w·x gives dw += x·dy: one multiply-accumulate for each of the forward pass. A filter uses
    only the C/g channels of its own group; PyTorch's counter counts all C, g times too many. Reads
    the input and the gradient of the output, writes the gradient of the weights.
    """
    moved = compulsory(
        conv.input_operand(size), conv.output_operand(size), Operand(conv.weights, size)
    )
    return Cost(conv.kind, "wgrad", 2 * conv.macs, moved, "convolution.wgrad")


@formula("convolution.bias_grad")
def bias_grad(conv: Convolution, size: int | None) -> Cost:
    """N · K · P · Q: the gradient of the output is summed over images and positions.

    One addition per element. Reads the gradient of the output, writes K sums. P·Q are the output's
    extents, also for transposed convolutions.
    """
    if conv.output is None:
        raise UncountableError("output spatial size unknown")
    summed = conv.batch * conv.out_channels * prod(conv.output)
    moved = compulsory(conv.output_operand(size), Operand(conv.out_channels, size))
    return Cost(conv.kind, "bias_grad", summed, moved, "convolution.bias_grad")


def split(shape: Shape, rank: int) -> tuple[int, int, Shape]:
    """Return batch, channels and spatial extents; an input without a batch is one image."""
    if len(shape) == rank + 1:
        return 1, shape[0], shape[1:]
    if len(shape) != rank + 2:
        raise UncountableError(f"unexpected tensor rank {len(shape)}")
    return shape[0], shape[1], shape[2:]


def spread(values: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return one value per dimension; a single value applies to all."""
    if len(values) == 1:
        return values * rank
    if len(values) != rank:
        raise UncountableError("rank mismatch of stride, padding or dilation")
    return values


def extent(size: int, window: int, stride: int = 1, padding: int = 0, dilation: int = 1) -> int:
    """Return the output's extent in one dimension: ⌊(H + 2p - d(R-1) - 1) / s⌋ + 1."""
    if stride < 1 or dilation < 1 or padding < 0:
        raise UncountableError("invalid stride, padding or dilation")
    result = (size + 2 * padding - dilation * (window - 1) - 1) // stride + 1
    if result < 0:
        raise UncountableError("kernel larger than the padded input")
    return result


def transposed_extent(
    size: int, window: int, stride: int, padding: int, output_padding: int, dilation: int
) -> int:
    """Return a transposed convolution's extent: (H-1)s - 2p + d(R-1) + output padding + 1."""
    if stride < 1 or dilation < 1 or padding < 0 or output_padding < 0:
        raise UncountableError("invalid stride, padding or dilation")
    result = (size - 1) * stride - 2 * padding + dilation * (window - 1) + output_padding + 1
    if result < 0:
        raise UncountableError("padding larger than the output")
    return result


# TensorFlow's operators: images [N, H, W, C] or [N, C, H, W], filters [R, S, C/g, K]. TensorFlow
# records no attributes: a forward convolution needs the shape of its output from outside the call
# (`Call.output`); for a gradient the inputs suffice.

_BIASED: Final = frozenset(
    {"_FusedConv2D", "_MklNativeFusedConv2D", "_MklNativeConv2DWithBias", "_MklFusedConv2D"}
)


@operator("Conv2D", "Conv3D", "_MklNativeConv2D", "_MklNativeConv3D", *sorted(_BIASED))
def tf_convolution(call: Call) -> tuple[Cost, ...]:
    """Image, filter, and a bias; the output's shape is recorded outside the call."""
    convolution = _tf_extents(call.shape(0), call.result(), call.shape(1, 4, 5))
    return (forward(convolution, call.size(0), call.name in _BIASED),)


@operator(
    "Conv2DBackpropInput",
    "Conv3DBackpropInputV2",
    "_MklNativeConv2DBackpropInput",
    "_MklNativeConv3DBackpropInputV2",
)
def tf_convolution_input(call: Call) -> tuple[Cost, ...]:
    """The input's extents as values, filter, the output's gradient."""
    weight, gradient = call.shape(1, 4, 5), call.shape(2)
    convolution = _tf_extents(call.output, gradient, weight)
    return (dgrad(convolution, call.size(2)),)


@operator(
    "Conv2DBackpropFilter",
    "Conv3DBackpropFilterV2",
    "_MklNativeConv2DBackpropFilter",
    "_MklNativeConv2DBackpropFilterWithBias",
    "_MklNativeConv3DBackpropFilterV2",
)
def tf_convolution_filter(call: Call) -> tuple[Cost, ...]:
    """Image, the filter's extents as values, the output's gradient.

    The output of this operator is the filter's gradient: its shape is recorded outside the call.
    """
    convolution = _tf_extents(call.shape(0), call.shape(2), call.result(4, 5))
    return (wgrad(convolution, call.size(0)),)


@operator("DepthwiseConv2dNative", "_FusedDepthwiseConv2dNative")
def tf_depthwise(call: Call) -> tuple[Cost, ...]:
    """Image, filter [R, S, C, multiplier]; the output's shape is recorded outside the call."""
    convolution = _tf_depthwise_extents(call.shape(0, 4), call.result(4), call.shape(1, 4))
    return (forward(convolution, call.size(0), call.name.startswith("_Fused")),)


@operator("DepthwiseConv2dNativeBackpropInput")
def tf_depthwise_input(call: Call) -> tuple[Cost, ...]:
    """The input's extents as values, filter [R, S, C, multiplier], the output's gradient."""
    convolution = _tf_depthwise_extents(call.output, call.shape(2, 4), call.shape(1, 4))
    return (dgrad(convolution, call.size(2)),)


@operator("DepthwiseConv2dNativeBackpropFilter")
def tf_depthwise_filter(call: Call) -> tuple[Cost, ...]:
    """Image, the filter's extents as values, the output's gradient; as of a plain convolution."""
    convolution = _tf_depthwise_extents(call.shape(0, 4), call.shape(2, 4), call.result(4))
    return (wgrad(convolution, call.size(0)),)


def _tf_extents(image: Shape | None, output: Shape, weight: Shape) -> Convolution:
    (*window, a_group, filters) = weight
    batch, out_channels, spatial, last = _tf_split(output, filters, len(window))
    channels, entering = a_group, None
    if image is not None:
        if len(image) != len(output):
            raise UncountableError("rank mismatch of input and output")
        channels = image[-1] if last else image[1]
        entering = image[1:-1] if last else image[2:]
    if not a_group or channels % a_group:
        raise UncountableError("filter shape does not match the channels")
    return Convolution(
        batch=batch,
        in_channels=channels,
        out_channels=out_channels,
        window=tuple(window),
        output=spatial,
        input=entering,
        groups=channels // a_group,
    )


def _tf_depthwise_extents(image: Shape | None, output: Shape, weight: Shape) -> Convolution:
    (*window, channels, multiplier) = weight
    batch, out_channels, spatial, last = _tf_split(output, channels * multiplier, len(window))
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


def _tf_split(shape: Shape, channels: int, rank: int) -> tuple[int, int, Shape, bool]:
    """Return batch, channels, spatial extents, and whether the channels come last.

    The layout is an attribute, which is not recorded: it follows from the filter's channels. Where
    both layouts match, the channels are last, TensorFlow's default.
    """
    if len(shape) != rank + 2:
        raise UncountableError("rank mismatch of input and filter")
    if shape[-1] == channels:
        return shape[0], channels, shape[1:-1], True
    if shape[1] == channels:
        return shape[0], channels, shape[2:], False
    raise UncountableError("filter shape does not match the channels")


# XLA's instructions, and the routines of libraries that it calls for them.

_MOST_POSITIONS: Final = 1 << 22
_LONGEST_STEP: Final = 1 << 31


def as_written(of: Contraction) -> Contraction:
    """Return a forward convolution with image and weight as first and second operand.

    XLA uses the smaller of both as the window; if it exchanges them, it mirrors the window. The
    window of a transposed convolution may also be mirrored: one without a stride, which does not
    dilate its image, cannot be distinguished.
    """
    window, numbers = of.attributes.window, of.attributes.dimension_numbers
    if window is None or numbers is None or not window.reversal or not all(window.reversal):
        return of
    if any(step != 1 for step in (*window.base_dilation, *window.window_dilation)):
        return of
    back = DimensionNumbers(
        kernel_input_feature=numbers.input_feature,
        kernel_output_feature=numbers.input_batch,
        input_batch=numbers.kernel_output_feature,
        input_feature=numbers.kernel_input_feature,
        output_batch=numbers.output_feature,
        output_feature=numbers.output_batch,
        input_spatial=numbers.kernel_spatial,
        kernel_spatial=numbers.input_spatial,
        output_spatial=numbers.output_spatial,
    )
    size = list(picked(of.left, numbers.input_spatial))
    return replace(
        of,
        left=of.right,
        right=of.left,
        attributes=Attributes(
            msgspec.structs.replace(window, size=size, reversal=[]),
            back,
            of.attributes.lhs_contracting,
        ),
    )


@formula("hlo.convolution")
def hlo_convolution(of: Contraction) -> Count:
    """2 · N · K · positions · C, by the dimension numbers of the convolution.

    N and K are the batch and the features of the output, C the input features summed for one of
    them: the kernel's input features, those of one feature group. Batch groups (in the weight
    gradient of a grouped convolution) only make N smaller. The positions in each spatial dimension
    are the product of the output's and the window's extent: every window counts whole, also on
    padding, as in PyTorch's counter. (XLA's own analysis leaves the padding out.)

    In a dimension with base dilation the windows contain the zeros between the input's elements,
    and only positions with an element count. In a transposed convolution, and in the input gradient
    of a strided one, each element is multiplied with each element of the window: the positions are
    the input's extent times the window's. In the weight gradient of a transposed convolution, where
    the window is larger than the output, each element is multiplied with each element of the
    output. With strides as well, the positions are counted one by one: XLA writes groups as a
    dimension of g positions with one element each, with base dilation g and stride g - 1.
    """
    window, numbers = of.attributes.window, of.attributes.dimension_numbers
    if window is None or numbers is None:
        raise UncountableError("no window")
    try:
        spatial = zip(
            picked(of.left, numbers.input_spatial),
            window.size,
            picked(of.output, numbers.output_spatial),
            window.stride,
            window.padding_low,
            window.base_dilation,
            window.window_dilation,
            strict=True,
        )
        positions = prod(_positions(*extents) for extents in spatial)
    except ValueError:
        raise UncountableError("a window of other dimensions") from None
    batch, features = picked(of.output, [numbers.output_batch, numbers.output_feature])
    (depth,) = picked(of.right, [numbers.kernel_input_feature])
    return Count(2 * batch * features * positions * depth, "hlo.convolution", _sizes(of))


def _positions(
    size: int, window: int, output: int, stride: int, padding: int, base: int, dilation: int
) -> int:
    if base == 1:
        return output * window
    if stride == 1:
        return size * min(window, output)
    steps = max(stride, dilation, base, abs(padding), size)
    if not base or output * window > _MOST_POSITIONS or steps > _LONGEST_STEP:
        raise UncountableError("too many positions to count")
    starts = np.arange(output, dtype=np.int64)[:, None] * stride - padding
    at = starts + np.arange(window, dtype=np.int64) * dilation
    return int(((at % base == 0) & (at >= 0) & (at <= (size - 1) * base)).sum())


@formula("hlo.convolution.library")
def hlo_library_convolution(of: Contraction) -> Count:
    """2 · |y| · |w| / K, a convolution or one of its gradients by cuDNN, MIOpen or oneDNN.

    x, w and y are the forward convolution's input, weight and output, K its output features:
    each element of y is a sum over all elements of w for one feature. XLA keeps the forward
    convolution's dimension numbers in all three routines. The operands of the input gradient are
    y's gradient and w, those of the weight gradient x and y's gradient.
    """
    output, weight = of.output, of.right
    if of.target.startswith("__cudnn$convBackwardInput"):
        output = of.left
    elif of.target.startswith("__cudnn$convBackwardFilter"):
        output, weight = of.right, of.output
    return _hlo_library(of, weight, output)


def hlo_onednn_convolution(of: Contraction) -> Count:
    """Return the count of a forward convolution by oneDNN."""
    return _hlo_library(of, of.right, of.output)


def _hlo_library(of: Contraction, weight: Shape, output: Shape) -> Count:
    numbers = of.attributes.dimension_numbers
    if numbers is None:
        raise UncountableError("no dimension numbers")
    (features,) = picked(weight, [numbers.kernel_output_feature])
    flops = 2 * prod(output) * (prod(weight) // features) if features else 0
    return Count(flops, "hlo.convolution.library", _sizes(of))


def _sizes(of: Contraction) -> tuple[int, ...]:
    return tuple(sorted(prod(shape) for shape in (of.left, of.right, of.output)))
