"""Convolutions of any rank, grouped, depthwise, dilated, transposed; forward and the gradients.

First the derivations of the counts, then how the extents follow from a call of PyTorch or
TensorFlow, as which a manifest's layer is counted too. XLA's instructions are in
:mod:`traceana.flops.hlo`.
"""

from __future__ import annotations

from math import prod
from typing import Final

import msgspec
from msgspec.structs import replace

from traceana.flops.call import Call, Cost, Operand, Part, Shape, UncountableError, compulsory
from traceana.flops.registry import declare, function

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
        if rank not in _KINDS or any(sizes is not None and len(sizes) != rank for sizes in spatial):
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


declare(
    "convolution.forward",
    """2 · N · K · P · Q · (C/g) · R · S: each output is a sum over its window and input channels.

    Each of the N·K·P·Q outputs needs (C/g)·R·S multiply-accumulates, in any number of spatial
    dimensions. Taps on the padding count: a GEMM executes them. Stride and dilation change only P
    and Q. In a transposed convolution each *input* is multiplied with the whole window, and P·Q are
    the input's extents. A bias is the initial value of the sum: it adds no operation, and its K
    elements are read. This is O(K·C·R·S·N·H·W) of Kim et al. (ISPASS 2017), and equal to PyTorch's
    counter.
    """,
)
declare(
    "convolution.dgrad",
    """2 · N · K · P · Q · (C/g) · R · S: the multiply-accumulates of the forward pass.

    y += w·x gives dx += w·dy: one multiply-accumulate for each of the forward pass. Reads the
    gradient of the output and the weights, writes the gradient of the input.
    """,
)
declare(
    "convolution.wgrad",
    """2 · N · K · P · Q · (C/g) · R · S: the multiply-accumulates of the forward pass.

    y += w·x gives dw += x·dy: one multiply-accumulate for each of the forward pass. A filter uses
    only the C/g channels of its own group; PyTorch's counter counts all C, g times too many. Reads
    the input and the gradient of the output, writes the gradient of the weights.
    """,
)
declare(
    "convolution.bias_grad",
    """N · K · P · Q: the gradient of the output is summed over images and positions.

    One addition per element. Reads the gradient of the output, writes K sums. P·Q are the output's
    extents, also for transposed convolutions.
    """,
)


def count(conv: Convolution, part: Part, size: int | None, *, bias: bool = False) -> Cost:
    """Return the cost of the forward pass, which reads the ``bias``, or of a gradient (``part``).

    Elements are of ``size`` bytes. Each pass has input, weights and output as operands or result.
    """
    channels, reads_bias = Operand(conv.out_channels, size), bias and part == "forward"
    entering, leaving = (
        Operand(None if spatial is None else conv.batch * extent * prod(spatial), size)
        for extent, spatial in ((conv.in_channels, conv.input), (conv.out_channels, conv.output))
    )
    weights = Operand(conv.weights, size)
    flops = 2 * conv.macs
    moved = compulsory(entering, weights, leaving, channels if reads_bias else None)
    if part == "bias_grad":
        if leaving.elements is None:
            raise UncountableError("output spatial size unknown")
        flops, moved = leaving.elements, compulsory(leaving, channels)
    return Cost(conv.kind, part, flops, moved, f"convolution.{part}")


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


@function("convolution", "convolution_transpose", "tf_convolution", "tf_depthwise")
def forward(call: Call) -> tuple[Cost, ...]:
    """Count a forward convolution."""
    # oneDNN's pointwise convolution has the tensor to which it is added before the weight.
    if call.has("bias") and len(call.shape("bias")) > 1:
        call = replace(call, at={name: at + (at > 0) for name, at in call.at.items()})
    return (count(extents(call), "forward", call.size("x"), bias=call.has("bias")),)


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
    conv, size = extents(call), call.size("dy")
    # The masks of cuDNN's and older operators have no flag for the bias.
    parts: tuple[Part, ...] = ("dgrad", "wgrad", "bias_grad")
    return tuple(count(conv, part, size) for part, kept in zip(parts, wanted, strict=False) if kept)


@function("convolution_dgrad", "tf_convolution_dgrad", "tf_depthwise_dgrad")
def input_gradient(call: Call) -> tuple[Cost, ...]:
    """Count the gradient of the input."""
    return (count(extents(call), "dgrad", call.size("dy")),)


@function("convolution_wgrad", "tf_convolution_wgrad", "tf_depthwise_wgrad")
def weight_gradient(call: Call) -> tuple[Cost, ...]:
    """Count the gradient of the weight."""
    return (count(extents(call), "wgrad", call.size("dy")),)


def extents(call: Call) -> Convolution:
    """Return the convolution of a call that computes its result or its gradients."""
    if call.formula.startswith("tf_"):
        return _tf_extents(call)
    transposed = call.formula.startswith("convolution_transpose")
    if "transposed" in call.at:
        if not call.scalars:
            raise UncountableError("transposed flag not recorded")
        transposed = call.flag("transposed")
    weight = _shape(call, "w", 3, 4, 5)
    rank = len(weight) - 2
    batch, channels, spatial = split(_shape(call, "x"), rank)
    stride = dilation = None
    if "dy" in call.at or (call.output is not None and not call.scalars):
        # Traces of PyTorch before 2.1 have no scalar inputs: the shape of the output, from the node
        # of the backward pass, replaces the stride.
        leaving = call.shape("dy") if "dy" in call.at else call.result()
        _, out_channels, output = split(leaving, rank)
        if call.scalars and "stride" in call.at:
            stride, dilation = _steps(call, rank, "stride"), _steps(call, rank, "dilation")
    else:
        stride, dilation = _steps(call, rank, "stride"), _steps(call, rank, "dilation")
        padding = _steps(call, rank, "padding", 0)
        if transposed:
            if weight[0] != channels:
                raise UncountableError("weight shape does not match the channels")
            # The weight alone does not determine the groups.
            out_channels = weight[1] * (call.integer("groups") if "groups" in call.at else 1)
            extra = _steps(call, rank, "output_padding", 0)
            output = tuple(
                map(transposed_extent, spatial, weight[2:], stride, padding, extra, dilation)
            )
        else:
            out_channels = weight[0]
            output = tuple(map(extent, spatial, weight[2:], stride, padding, dilation))
    # A weight is [K, C/g, R, S], of a transposed convolution [C, K/g, R, S].
    first, a_group, *window = weight
    inner = out_channels if transposed else channels
    if first != (channels if transposed else out_channels) or not a_group or inner % a_group:
        raise UncountableError("weight shape does not match the channels")
    return Convolution(
        batch=batch,
        in_channels=channels,
        out_channels=out_channels,
        window=tuple(window),
        output=output,
        input=spatial,
        groups=max(inner // a_group, 1),
        transposed=transposed,
        stride=stride,
        dilation=dilation,
    )


def _shape(call: Call, operand: str, *ranks: int) -> Shape:
    """Return the shape of an operand, given as integers where its gradient is the result."""
    if operand in call.at:
        return call.shape(operand, *ranks)
    if not call.scalars:
        raise UncountableError(
            f"{'input' if operand == 'x' else 'weight'} gradient shape not recorded"
        )
    return call.extents(f"{operand}_size", *ranks)


def _steps(call: Call, rank: int, operand: str, default: int = 1) -> Shape:
    if operand not in call.at:
        return (default,) * rank
    return spread(call.integers(operand), rank)


def _tf_extents(call: Call) -> Convolution:
    """Return the convolution of TensorFlow; raises where the shapes do not fit.

    Images are [N, H, W, C] or [N, C, H, W], filters [R, S, C/g, K], or [R, S, C, multiplier] where
    depthwise. TensorFlow records no attributes: the shape of a result has to be known from outside
    the call, except for the gradient of an input, whose extents only the bytes need. The layout is
    an attribute too: it follows from the filter's channels. Where both layouts match, the channels
    are last, TensorFlow's default.
    """
    image = call.shape("x") if "x" in call.at else call.output
    output = call.shape("dy") if "dy" in call.at else call.result()
    weight = call.shape("w", 4, 5) if "w" in call.at else call.result(4, 5)
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
