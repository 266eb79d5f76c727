"""Convolutions of any rank, grouped, depthwise, dilated, transposed; forward and the gradients.

First the derivations of the counts, then how the extents follow from a call of PyTorch, of
TensorFlow or from a layer's shapes. XLA's instructions are in :mod:`traceana.flops.hlo`.
"""

from __future__ import annotations

from math import prod
from typing import Final

import msgspec

from traceana.flops.call import Call
from traceana.flops.cost import Cost, Operand, Shape, UncountableError, compulsory
from traceana.flops.registry import formula, function

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


# PyTorch's operators. Traces of PyTorch before 2.1 have no scalar inputs: a convolution's stride
# and the mask of its gradients are missing. Hints replace them: the node of the backward pass has
# the shape of the output, and the library's operators inside a backward operator are the computed
# gradients.


@function("convolution", "convolution_transpose")
def convolution(call: Call) -> tuple[Cost, ...]:
    """Count a forward convolution."""
    # oneDNN's pointwise convolution has the tensor to which it is added before the weight.
    if call.has("bias") and len(call.shape("bias")) > 1:
        call = call.without(1)
    return (forward(forward_extents(call), call.size("x"), call.has("bias")),)


def extents(call: Call) -> Convolution:
    """Return the convolution of a call that computes its result, or its gradients."""
    return backward_extents(call) if "dy" in call.at else forward_extents(call)


def forward_extents(call: Call) -> Convolution:
    """Return the convolution of a forward call.

    Groups follow from the weight. Where the stride was not recorded, the shape of the output
    replaces it.
    """
    weight = call.shape("w", 3, 4, 5)
    rank = len(weight) - 2
    batch, channels, spatial = split(call.shape("x"), rank)
    if "transposed" in call.at and not call.scalars:
        raise UncountableError("transposed flag not recorded")
    transposed = _transposed(call)
    if not call.scalars and call.output is not None:
        _, out_channels, output = split(call.output, rank)
        return build(batch, channels, out_channels, spatial, output, weight, transposed)
    stride, padding, dilation, extra = (
        spread(call.integers(name), rank) if name in call.at else (default,) * rank
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0))
    )
    if transposed:
        if weight[0] != channels:
            raise UncountableError("weight shape does not match the channels")
        # The weight alone does not determine the groups.
        out_channels = weight[1] * (call.integer("groups") if "groups" in call.at else 1)
        output = tuple(
            map(transposed_extent, spatial, weight[2:], stride, padding, extra, dilation)
        )
    else:
        out_channels = weight[0]
        output = tuple(map(extent, spatial, weight[2:], stride, padding, dilation))
    return build(
        batch, channels, out_channels, spatial, output, weight, transposed, stride, dilation
    )


@function("convolution_backward", "convolution_transpose_backward")
def backward(call: Call) -> tuple[Cost, ...]:
    """Count the requested gradients.

    The mask excludes the gradient of the first layer's input. Where it was not recorded, the
    operators inside replace it.
    """
    wanted = call.wanted
    if wanted is None and call.scalars:
        wanted = call.flags("mask")
    if wanted is None:
        raise UncountableError("output mask not recorded")
    conv, size = backward_extents(call), call.size("dy")
    # The masks of cuDNN's and older operators have no flag for the bias.
    of_input, of_weight, of_bias = (*wanted, False, False, False)[:3]
    return (
        *([dgrad(conv, size)] if of_input else []),
        *([wgrad(conv, size)] if of_weight else []),
        *([bias_grad(conv, size)] if of_bias else []),
    )


def backward_extents(call: Call) -> Convolution:
    """Return the convolution of a call that computes its gradients."""
    transposed = _transposed(call)
    weight = call.shape("w", 3, 4, 5)
    stride = dilation = None
    if call.scalars:
        rank = len(weight) - 2
        stride, dilation = spread(call.integers("stride"), rank), (1,) * rank
        if "dilation" in call.at:
            dilation = spread(call.integers("dilation"), rank)
    return _between(call.shape("x"), call.shape("dy"), weight, transposed, stride, dilation)


def _transposed(call: Call) -> bool:
    if "transposed" in call.at:
        return call.flag("transposed")
    return call.formula.startswith("convolution_transpose")


@function("convolution_dgrad")
def backward_input(call: Call) -> tuple[Cost, ...]:
    """Count the gradient of the input, whose extents are integers."""
    if not call.scalars:
        raise UncountableError("input gradient shape not recorded")
    conv = _between(call.extents("x_size"), call.shape("dy"), call.shape("w", 3, 4, 5))
    return (dgrad(conv, call.size("dy")),)


@function("convolution_wgrad")
def backward_weight(call: Call) -> tuple[Cost, ...]:
    """Count the gradient of the weight, whose extents are integers."""
    if not call.scalars:
        raise UncountableError("weight gradient shape not recorded")
    conv = _between(call.shape("x"), call.shape("dy"), call.extents("w_size", 3, 4, 5))
    return (wgrad(conv, call.size("dy")),)


def _between(
    entering: Shape,
    leaving: Shape,
    weight: Shape,
    transposed: bool = False,
    stride: Shape | None = None,
    dilation: Shape | None = None,
) -> Convolution:
    """Return the convolution with this input, output and weight."""
    rank = len(weight) - 2
    batch, channels, spatial = split(entering, rank)
    _, out_channels, output = split(leaving, rank)
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


# TensorFlow's operators: images [N, H, W, C] or [N, C, H, W], filters [R, S, C/g, K], depthwise
# [R, S, C, multiplier]. TensorFlow records no attributes: a forward convolution needs the shape of
# its output from outside the call (`Call.output`), as does the gradient of a filter, whose output
# that is; the gradient of an input uses it if it is known.


@function("tf_convolution", "tf_depthwise")
def tf_forward(call: Call) -> tuple[Cost, ...]:
    """Count a forward convolution of TensorFlow."""
    conv = _tf_extents(call, call.shape("x"), call.result(), call.shape("w", 4, 5))
    return (forward(conv, call.size("x"), "bias" in call.at),)


@function("tf_convolution_dgrad", "tf_depthwise_dgrad")
def tf_input(call: Call) -> tuple[Cost, ...]:
    """Count the gradient of the input."""
    conv = _tf_extents(call, call.output, call.shape("dy"), call.shape("w", 4, 5))
    return (dgrad(conv, call.size("dy")),)


@function("tf_convolution_wgrad", "tf_depthwise_wgrad")
def tf_filter(call: Call) -> tuple[Cost, ...]:
    """Count the gradient of the filter."""
    conv = _tf_extents(call, call.shape("x"), call.shape("dy"), call.result(4, 5))
    return (wgrad(conv, call.size("x")),)


def _tf_extents(call: Call, image: Shape | None, output: Shape, weight: Shape) -> Convolution:
    """Return the convolution; raises :class:`UncountableError` where the shapes do not fit.

    The layout is an attribute, which is not recorded: it follows from the filter's channels. Where
    both layouts match, the channels are last, TensorFlow's default.
    """
    (*window, a_group, filters) = weight
    depthwise = call.formula.startswith("tf_depthwise")
    channels = a_group
    if depthwise:
        a_group, filters = 1, a_group * filters
    if len(output) != len(window) + 2:
        raise UncountableError("rank mismatch of input and filter")
    if filters not in (output[-1], output[1]):
        raise UncountableError("filter shape does not match the channels")
    last = output[-1] == filters
    spatial = slice(1, -1) if last else slice(2, None)
    if image is not None:
        if len(image) != len(output):
            raise UncountableError("rank mismatch of input and output")
        channels = channels if depthwise else image[-1 if last else 1]
    if not a_group or channels % a_group:
        raise UncountableError("filter shape does not match the channels")
    return Convolution(
        batch=output[0],
        in_channels=channels,
        out_channels=filters,
        window=tuple(window),
        output=output[spatial],
        input=None if image is None else image[spatial],
        groups=channels // a_group,
    )
