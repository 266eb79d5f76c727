"""PyTorch's pooling: maxima, averages, adaptive ones, and their gradients."""

from __future__ import annotations

from math import prod
from typing import Final

from traceana.flops.aten.convolution import split, spread
from traceana.flops.call import Call
from traceana.flops.model import Cost, Shape, UncountableError
from traceana.flops.neutral import pooling
from traceana.flops.neutral.convolution import extent
from traceana.flops.registry import operator

INDEX_SIZE: Final = 8
"""PyTorch keeps the places of maxima as int64."""


@operator("aten::max_pool1d", "aten::max_pool2d", "aten::max_pool3d")
def max_pool(call: Call) -> tuple[Cost, ...]:
    """Input, window, stride, padding, dilation, whether the extent is rounded up."""
    outputs, window = _pooled(call, dilation=4, ceil=5)
    return (pooling.maximum(call.elements(0), outputs, window, call.size(0)),)


@operator(
    "aten::max_pool1d_with_indices",
    "aten::max_pool2d_with_indices",
    "aten::max_pool3d_with_indices",
)
def max_pool_with_indices(call: Call) -> tuple[Cost, ...]:
    """Input, window, stride, padding, dilation, whether the extent is rounded up."""
    outputs, window = _pooled(call, dilation=4, ceil=5)
    size = call.size(0)
    return (pooling.maximum(call.elements(0), outputs, window, size, index_size=INDEX_SIZE),)


@operator("aten::avg_pool1d", "aten::avg_pool2d", "aten::avg_pool3d")
def average_pool(call: Call) -> tuple[Cost, ...]:
    """Input, window, stride, padding, whether the extent is rounded up."""
    outputs, window = _pooled(call, dilation=None, ceil=4)
    return (pooling.average(call.elements(0), outputs, window, call.size(0)),)


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
    return (pooling.adaptive_average(call.elements(0), _adapted(call), call.size(0)),)


@operator("aten::adaptive_max_pool1d", "aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(call: Call) -> tuple[Cost, ...]:
    """Input, the extents of the output."""
    inputs, outputs = call.elements(0), _adapted(call)
    return (pooling.adaptive_maximum(inputs, outputs, call.size(0), index_size=INDEX_SIZE),)


@operator(
    "aten::max_pool2d_with_indices_backward",
    "aten::max_pool3d_with_indices_backward",
    "aten::adaptive_max_pool2d_backward",
    "aten::adaptive_max_pool3d_backward",
)
def max_pool_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, input, …, places of the maxima."""
    inputs, outputs = call.elements(1), call.elements(0)
    return (pooling.maximum_backward(inputs, outputs, call.size(0), index_size=INDEX_SIZE),)


@operator("aten::avg_pool2d_backward", "aten::avg_pool3d_backward")
def average_pool_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, input, window."""
    rank = int(call.name.removeprefix("aten::avg_pool")[0])
    window = prod(spread(call.extents(2), rank))
    inputs, outputs = call.elements(1), call.elements(0)
    return (pooling.average_backward(inputs, outputs, window, call.size(0)),)


@operator("aten::_adaptive_avg_pool2d_backward", "aten::_adaptive_avg_pool3d_backward")
def adaptive_average_pool_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, input."""
    inputs, outputs = call.elements(1), call.elements(0)
    return (pooling.adaptive_average_backward(inputs, outputs, call.size(0)),)


def _pooled(call: Call, dilation: int | None, ceil: int) -> tuple[int, int]:
    """Return how many outputs there are and how many elements a window has."""
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
    """Return the stride, which is the window where it is not given."""
    text = call.scalars[position] if position < len(call.scalars) else ""
    return window if text.strip() in ("", "[]") else spread(call.integers(position), len(window))


def _extent(size: int, window: int, stride: int, padding: int, dilation: int, up: bool) -> int:
    if not up:
        return extent(size, window, stride, padding, dilation)
    if stride < 1:
        raise UncountableError("the stride, padding or dilation is of no pooling")
    result = -(-(size + 2 * padding - dilation * (window - 1) - 1) // stride) + 1
    # A window must begin within the input or its left padding.
    return result - 1 if (result - 1) * stride >= size + padding else max(result, 0)


def _adapted(call: Call) -> int:
    rank = int(call.name.partition("pool")[2][0])
    batch, channels, spatial = split(call.shape(0), rank)
    output = spread(call.extents(1), len(spatial))
    return batch * channels * prod(output)
