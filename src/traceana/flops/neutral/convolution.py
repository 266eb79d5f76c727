"""Convolutions of any rank: grouped, depthwise, dilated, transposed; forward and both gradients."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

from traceana.flops.model import Cost, Operand, Shape, UncountableError, compulsory
from traceana.flops.registry import formula

_KINDS: Final = {1: "1d", 2: "2d", 3: "3d"}


@dataclass(frozen=True, slots=True)
class Convolution:
    """The extents of a convolution.

    ``input`` and ``output`` are the spatial extents of the layer's input and output, ``window``
    the filter's. ``input`` is ``None`` where it is not known: only bytes need it, but for a
    transposed convolution, in which input and output have changed places. ``stride`` and
    ``dilation`` matter to the algorithms alone (:mod:`traceana.flops.executed`); ``None`` where
    they are not known.

    Raises :class:`UncountableError` on extents that are of no convolution.
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
            raise UncountableError("the extents are of different ranks")
        if self.groups < 1 or self.in_channels % self.groups or self.out_channels % self.groups:
            raise UncountableError("the groups do not divide the channels")
        if self.walked is None:
            raise UncountableError("the spatial extents of the convolution are not known")

    @property
    def walked(self) -> Shape | None:
        """The positions at which the window is laid: of the output, if transposed of the input."""
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
        """Whether every input channel is a group of its own."""
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

    Each of the N·K·P·Q outputs takes (C/g)·R·S multiply-accumulates, in any number of spatial
    dimensions. Taps that fall on the padding count: a GEMM executes them. Stride and dilation
    change P and Q alone. Of a transposed convolution each *input* is multiplied with the whole
    window, and P·Q are the input's extents. A bias is where the sum starts: it adds no operation,
    and its K elements are read. This is O(K·C·R·S·N·H·W) of Kim et al. (ISPASS 2017), and what
    PyTorch's counter gives.
    """
    weights, biases = Operand(conv.weights, size), Operand(conv.out_channels, size)
    moved = compulsory(
        conv.input_operand(size), weights, conv.output_operand(size), biases if bias else None
    )
    return Cost(conv.kind, "forward", 2 * conv.macs, moved, "convolution.forward")


@formula("convolution.dgrad")
def dgrad(conv: Convolution, size: int | None) -> Cost:
    """2 · N · K · P · Q · (C/g) · R · S: the forward pass's multiply-accumulates, run backward.

    y += w·x makes dx += w·dy: one multiply-accumulate for each of the forward pass's. Reads the
    gradient of the output and the weights, writes the gradient of the input.
    """
    moved = compulsory(
        conv.output_operand(size), Operand(conv.weights, size), conv.input_operand(size)
    )
    return Cost(conv.kind, "dgrad", 2 * conv.macs, moved, "convolution.dgrad")


@formula("convolution.wgrad")
def wgrad(conv: Convolution, size: int | None) -> Cost:
    """2 · N · K · P · Q · (C/g) · R · S: the forward pass's multiply-accumulates, once more.

    y += w·x makes dw += x·dy: one multiply-accumulate for each of the forward pass's. With groups
    a filter meets the C/g channels of its own group only; PyTorch's counter takes all C there and
    is g times too large. Reads the input and the gradient of the output, writes the weights'.
    """
    moved = compulsory(
        conv.input_operand(size), conv.output_operand(size), Operand(conv.weights, size)
    )
    return Cost(conv.kind, "wgrad", 2 * conv.macs, moved, "convolution.wgrad")


@formula("convolution.bias_grad")
def bias_grad(conv: Convolution, size: int | None) -> Cost:
    """N · K · P · Q: the gradient of the output is summed over images and positions.

    One addition an element. Reads the gradient of the output, writes K sums. P·Q are the output's
    extents, for transposed convolutions too.
    """
    if conv.output is None:
        raise UncountableError("the spatial extents of the output are not known")
    summed = conv.batch * conv.out_channels * prod(conv.output)
    moved = compulsory(conv.output_operand(size), Operand(conv.out_channels, size))
    return Cost(conv.kind, "bias_grad", summed, moved, "convolution.bias_grad")


def extent(size: int, window: int, stride: int = 1, padding: int = 0, dilation: int = 1) -> int:
    """Return the output's extent in one dimension: ⌊(H + 2p - d(R-1) - 1) / s⌋ + 1."""
    if stride < 1 or dilation < 1 or padding < 0:
        raise UncountableError("the stride, padding or dilation is of no convolution")
    result = (size + 2 * padding - dilation * (window - 1) - 1) // stride + 1
    if result < 0:
        raise UncountableError("the window is larger than the padded input")
    return result


def transposed_extent(
    size: int, window: int, stride: int, padding: int, output_padding: int, dilation: int
) -> int:
    """Return a transposed convolution's extent: (H-1)s - 2p + d(R-1) + output padding + 1."""
    if stride < 1 or dilation < 1 or padding < 0 or output_padding < 0:
        raise UncountableError("the stride, padding or dilation is of no convolution")
    result = (size - 1) * stride - 2 * padding + dilation * (window - 1) + output_padding + 1
    if result < 0:
        raise UncountableError("the padding is larger than the output")
    return result
