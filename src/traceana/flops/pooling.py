"""Pooling and upsampling: maxima, averages and interpolation over windows, and their gradients."""

from __future__ import annotations

from math import prod
from typing import Final

from traceana.flops.call import Call
from traceana.flops.convolution import extent, split, spread
from traceana.flops.cost import Cost, Operand, Shape, UncountableError, compulsory
from traceana.flops.registry import declare, formula, operator


@formula("pooling.max")
def maximum(
    inputs: int, outputs: int, window: int, size: int | None, *, index_size: int | None = 0
) -> Cost:
    """R · S per output: one comparison for each element of the window.

    Reads the input, writes the output and, in training, the index of each maximum.
    """
    moved = compulsory(Operand(inputs, size), Operand(outputs, size), Operand(outputs, index_size))
    return Cost("max_pool", "forward", outputs * window, moved, "pooling.max")


@formula("pooling.average")
def average(inputs: int, outputs: int, window: int, size: int | None) -> Cost:
    """R · S + 1 per output: the sum over the window, and a division.

    Windows at the edges count in full. Reads the input, writes the output.
    """
    moved = compulsory(Operand(inputs, size), Operand(outputs, size))
    return Cost("avg_pool", "forward", outputs * (window + 1), moved, "pooling.average")


@formula("pooling.adaptive_average")
def adaptive_average(inputs: int, outputs: int, size: int | None) -> Cost:
    """1 per input and 1 per output: the windows partition the input; then a division.

    Exact where the output's extents divide the input's; elsewhere neighbouring windows share
    elements and a few more additions run. Reads the input, writes the output.
    """
    moved = compulsory(Operand(inputs, size), Operand(outputs, size))
    return Cost("avg_pool", "forward", inputs + outputs, moved, "pooling.adaptive_average")


@formula("pooling.adaptive_max")
def adaptive_maximum(
    inputs: int, outputs: int, size: int | None, *, index_size: int | None
) -> Cost:
    """1 per input: one comparison for each element; the windows partition the input.

    Reads the input, writes the output and the index of each maximum.
    """
    moved = compulsory(Operand(inputs, size), Operand(outputs, size), Operand(outputs, index_size))
    return Cost("max_pool", "forward", inputs, moved, "pooling.adaptive_max")


@formula("pooling.max_backward")
def maximum_backward(
    inputs: int, outputs: int, size: int | None, *, index_size: int | None
) -> Cost:
    """1 per output: its gradient is added to the element that was the maximum.

    Reads the gradient of the output and the indices, writes the gradient of the input.
    """
    moved = compulsory(Operand(outputs, size), Operand(outputs, index_size), Operand(inputs, size))
    return Cost("max_pool", "backward", outputs, moved, "pooling.max_backward")


@formula("pooling.average_backward")
def average_backward(inputs: int, outputs: int, window: int, size: int | None) -> Cost:
    """R · S + 1 per output: its gradient is divided once and added to each element of the window.

    Reads the gradient of the output, writes that of the input.
    """
    moved = compulsory(Operand(outputs, size), Operand(inputs, size))
    flops = outputs * (window + 1)
    return Cost("avg_pool", "backward", flops, moved, "pooling.average_backward")


@formula("pooling.adaptive_average_backward")
def adaptive_average_backward(inputs: int, outputs: int, size: int | None) -> Cost:
    """1 per input and 1 per output: a division, then one addition for each element of its window.

    Reads the gradient of the output, writes that of the input.
    """
    moved = compulsory(Operand(outputs, size), Operand(inputs, size))
    flops = inputs + outputs
    return Cost("avg_pool", "backward", flops, moved, "pooling.adaptive_average_backward")


# PyTorch's operators.

INDEX_SIZE: Final = 8
"""PyTorch keeps the indices of maxima as int64."""


@operator("aten::max_pool1d", "aten::max_pool2d", "aten::max_pool3d")
def max_pool(call: Call) -> tuple[Cost, ...]:
    """Input, window, stride, padding, dilation, whether the extent is rounded up."""
    outputs, window = _pooled(call, dilation=4, ceil=5)
    return (maximum(call.elements(0), outputs, window, call.size(0)),)


@operator(
    "aten::max_pool1d_with_indices",
    "aten::max_pool2d_with_indices",
    "aten::max_pool3d_with_indices",
)
def max_pool_with_indices(call: Call) -> tuple[Cost, ...]:
    """Input, window, stride, padding, dilation, whether the extent is rounded up."""
    outputs, window = _pooled(call, dilation=4, ceil=5)
    size = call.size(0)
    return (maximum(call.elements(0), outputs, window, size, index_size=INDEX_SIZE),)


@operator("aten::avg_pool1d", "aten::avg_pool2d", "aten::avg_pool3d")
def average_pool(call: Call) -> tuple[Cost, ...]:
    """Input, window, stride, padding, whether the extent is rounded up."""
    outputs, window = _pooled(call, dilation=None, ceil=4)
    return (average(call.elements(0), outputs, window, call.size(0)),)


@operator(
    "aten::adaptive_avg_pool1d",
    "aten::adaptive_avg_pool2d",
    "aten::adaptive_avg_pool3d",
    "aten::_adaptive_avg_pool2d",
    "aten::_adaptive_avg_pool3d",
    "aten::mkldnn_adaptive_avg_pool2d",
)
def adaptive_average_pool(call: Call) -> tuple[Cost, ...]:
    """Input, the extents of the output."""
    return (adaptive_average(call.elements(0), _adapted(call), call.size(0)),)


@operator("aten::adaptive_max_pool1d", "aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(call: Call) -> tuple[Cost, ...]:
    """Input, the extents of the output."""
    inputs, outputs = call.elements(0), _adapted(call)
    return (adaptive_maximum(inputs, outputs, call.size(0), index_size=INDEX_SIZE),)


@operator(
    "aten::max_pool2d_with_indices_backward",
    "aten::max_pool3d_with_indices_backward",
    "aten::adaptive_max_pool2d_backward",
    "aten::adaptive_max_pool3d_backward",
)
def max_pool_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, input, …, indices of the maxima."""
    inputs, outputs = call.elements(1), call.elements(0)
    return (maximum_backward(inputs, outputs, call.size(0), index_size=INDEX_SIZE),)


@operator("aten::avg_pool2d_backward", "aten::avg_pool3d_backward")
def average_pool_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, input, window."""
    rank = int(call.name.removeprefix("aten::avg_pool")[0])
    window = prod(spread(call.extents(2), rank))
    inputs, outputs = call.elements(1), call.elements(0)
    return (average_backward(inputs, outputs, window, call.size(0)),)


@operator("aten::_adaptive_avg_pool2d_backward", "aten::_adaptive_avg_pool3d_backward")
def adaptive_average_pool_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, input."""
    inputs, outputs = call.elements(1), call.elements(0)
    return (adaptive_average_backward(inputs, outputs, call.size(0)),)


def _pooled(call: Call, dilation: int | None, ceil: int) -> tuple[int, int]:
    """Return the number of outputs and of the elements of a window."""
    rank = int(call.name.partition("pool")[2][0])
    batch, channels, spatial = split(call.shape(0), rank)
    window = spread(call.extents(1), rank)
    stride = _or_window(call, 2, window)
    padding = spread(call.integers(3), rank)
    spacing = (1,) * rank if dilation is None else spread(call.integers(dilation), rank)
    up = call.flag(ceil)
    output: Shape = tuple(
        _extent(size, w, s, p, d, up)
        for size, w, s, p, d in zip(spatial, window, stride, padding, spacing, strict=True)
    )
    return batch * channels * prod(output), prod(window)


def _or_window(call: Call, position: int, window: Shape) -> Shape:
    """Return the stride; by default it is the window."""
    text = call.scalars[position] if position < len(call.scalars) else ""
    return window if text.strip() in ("", "[]") else spread(call.integers(position), len(window))


def _extent(size: int, window: int, stride: int, padding: int, dilation: int, up: bool) -> int:
    if not up:
        return extent(size, window, stride, padding, dilation)
    if stride < 1:
        raise UncountableError("invalid stride, padding or dilation")
    result = -(-(size + 2 * padding - dilation * (window - 1) - 1) // stride) + 1
    # A window must begin within the input or its left padding.
    return result - 1 if (result - 1) * stride >= size + padding else max(result, 0)


def _adapted(call: Call) -> int:
    rank = int(call.name.partition("pool")[2][0])
    batch, channels, spatial = split(call.shape(0), rank)
    output = spread(call.extents(1), len(spatial))
    return batch * channels * prod(output)


# TensorFlow's operators: the window is an attribute, recorded outside the call.


@operator("MaxPool", "MaxPoolV2", "MaxPool3D", "_MklMaxPool", "_MklNativeMaxPool")
def tf_max_pool(call: Call) -> tuple[Cost, ...]:
    """Image; window and the output's shape are recorded outside the call."""
    window, output = _tf_window(call), call.result()
    return (maximum(call.elements(0), prod(output), prod(window), call.size(0)),)


@operator("AvgPool", "AvgPool3D", "_MklAvgPool", "_MklNativeAvgPool")
def tf_average_pool(call: Call) -> tuple[Cost, ...]:
    """Image; window and the output's shape are recorded outside the call."""
    window, output = _tf_window(call), call.result()
    return (average(call.elements(0), prod(output), prod(window), call.size(0)),)


@operator("MaxPoolGrad", "MaxPoolGradV2", "MaxPool3DGrad", "_MklNativeMaxPoolGrad")
def tf_max_pool_backward(call: Call) -> tuple[Cost, ...]:
    """Image, output, the output's gradient: the maxima are found again by comparisons.

    These comparisons are left out, as for a library that keeps the indices.
    """
    inputs, outputs = call.elements(0), call.elements(2)
    return (maximum_backward(inputs, outputs, call.size(0), index_size=None),)


def _tf_window(call: Call) -> Shape:
    if call.window is None:
        raise UncountableError("pooling window not recorded")
    return call.window


# Upsampling, by PyTorch's operators.

INTERPOLATION = declare(
    "resampling.linear",
    """3, 9 or 21 per result in one, two or three dimensions: a·w + b·(1 - w) along each.

    An interpolation is 3 operations; two dimensions need three of them, three dimensions seven. The
    weights of a row or column are shared by all images and are left out. The gradient has the same
    count, with additions to the input's elements. Reads the input, writes the output.
    """,
)
NEAREST = declare(
    "resampling.nearest",
    """No operation: each result is a copy of an element.

    Reads the input, writes the output.
    """,
)
NEAREST_BACKWARD = declare(
    "resampling.nearest_backward",
    """1 per output: its gradient is added to that of the element it was copied from.

    Reads the output's gradient, writes the input's.
    """,
)
_LINEAR: Final = {"linear1d": 3, "bilinear2d": 9, "trilinear3d": 21}
_NEAREST: Final = ("nearest1d", "nearest2d", "nearest3d")


@operator(*(f"aten::upsample_{mode}" for mode in (*_LINEAR, *_NEAREST)))
def upsample(call: Call) -> tuple[Cost, ...]:
    """Input [N, C, …] and the extents of the output."""
    mode = call.name.removeprefix("aten::upsample_")
    shape = call.shape(0, 3, 4, 5)
    outputs = prod(shape[:2]) * prod(call.extents(1, len(shape) - 2))
    moved = compulsory(call.operand(0), Operand(outputs, call.size(0)))
    name = INTERPOLATION if mode in _LINEAR else NEAREST
    return (Cost("upsample", "forward", outputs * _LINEAR.get(mode, 0), moved, name),)


@operator(*(f"aten::upsample_{mode}_backward" for mode in (*_LINEAR, *_NEAREST)))
def upsample_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, the extents of the output, the extents of the input."""
    mode = call.name.removeprefix("aten::upsample_").removesuffix("_backward")
    inputs = prod(call.extents(2))
    moved = compulsory(call.operand(0), Operand(inputs, call.size(0)))
    name = INTERPOLATION if mode in _LINEAR else NEAREST_BACKWARD
    flops = call.elements(0) * _LINEAR.get(mode, 1)
    return (Cost("upsample", "backward", flops, moved, name),)
