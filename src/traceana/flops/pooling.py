"""Pooling and upsampling: maxima, averages and interpolation over windows, and their gradients."""

from __future__ import annotations

from math import prod
from typing import Final

from traceana.flops.call import Call, Cost, Operand, Part, UncountableError, compulsory
from traceana.flops.convolution import extent, split, spread
from traceana.flops.registry import declare, function

MAX: Final = declare(
    "pooling.max",
    """R · S per output: one comparison for each element of the window.

    Reads the input, writes the output and, in training, the index of each maximum.
    """,
)
MAX_BACKWARD: Final = declare(
    "pooling.max_backward",
    """1 per output: its gradient is added to the element that was the maximum.

    Reads the gradient of the output and the indices, writes the gradient of the input.
    """,
)
AVERAGE: Final = declare(
    "pooling.average",
    """R · S + 1 per output: the sum over the window, and a division.

    Windows at the edges count in full. Reads the input, writes the output.
    """,
)
AVERAGE_BACKWARD: Final = declare(
    "pooling.average_backward",
    """R · S + 1 per output: its gradient is divided once and added to each element of the window.

    Reads the gradient of the output, writes that of the input.
    """,
)
ADAPTIVE_MAX: Final = declare(
    "pooling.adaptive_max",
    """1 per input: one comparison for each element; the windows partition the input.

    Reads the input, writes the output and the index of each maximum.
    """,
)
ADAPTIVE_AVERAGE: Final = declare(
    "pooling.adaptive_average",
    """1 per input and 1 per output: the windows partition the input; then a division.

    Exact where the output's extents divide the input's; elsewhere neighbouring windows share
    elements and a few more additions run. Reads the input, writes the output.
    """,
)
ADAPTIVE_AVERAGE_BACKWARD: Final = declare(
    "pooling.adaptive_average_backward",
    """1 per input and 1 per output: a division, then one addition for each element of its window.

    Reads the gradient of the output, writes that of the input.
    """,
)
INDEX_SIZE: Final = 8
"""PyTorch keeps the indices of maxima as int64."""


def _cost(
    name: str, flops: int, inputs: int, outputs: int, size: int | None, index_size: int | None = 0
) -> tuple[Cost, ...]:
    part: Part = "backward" if name.endswith("_backward") else "forward"
    moved = compulsory(Operand(inputs, size), Operand(outputs, size), Operand(outputs, index_size))
    return (Cost("max_pool" if "max" in name else "avg_pool", part, flops, moved, name),)


@function("max_pool", "max_pool_with_indices", "avg_pool")
def pool(call: Call) -> tuple[Cost, ...]:
    """Count a pooling whose window is among the inputs, or recorded outside the call."""
    if call.window is not None:
        outputs, window = prod(call.result()), call.window
    elif "window" not in call.at:
        raise UncountableError("pooling window not recorded")
    else:
        rank = _rank(call)
        batch, channels, spatial = split(call.shape("x"), rank)
        window = spread(call.extents("window"), rank)
        # By default the stride is the window.
        at = call.position("stride")
        given = at < len(call.scalars) and call.scalars[at].strip() not in ("", "[]")
        stride = spread(call.integers("stride"), rank) if given else window
        padding = spread(call.integers("padding"), rank)
        spacing = spread(call.integers("dilation"), rank) if "dilation" in call.at else (1,) * rank
        length = _extent_rounded_up if call.flag("ceil") else extent
        outputs = batch * channels * prod(map(length, spatial, window, stride, padding, spacing))
    extents = call.elements("x"), outputs, call.size("x")
    if call.formula == "avg_pool":
        return _cost(AVERAGE, outputs * (prod(window) + 1), *extents)
    index_size = INDEX_SIZE if call.formula == "max_pool_with_indices" else 0
    return _cost(MAX, outputs * prod(window), *extents, index_size)


def _extent_rounded_up(size: int, window: int, stride: int, padding: int, dilation: int) -> int:
    if stride < 1:
        raise UncountableError("invalid stride, padding or dilation")
    result = -(-(size + 2 * padding - dilation * (window - 1) - 1) // stride) + 1
    # A window must begin within the input or its left padding.
    return result - 1 if (result - 1) * stride >= size + padding else max(result, 0)


@function("adaptive_avg_pool", "adaptive_max_pool")
def adaptive_pool(call: Call) -> tuple[Cost, ...]:
    """Count a pooling to given extents."""
    inputs, size = call.elements("x"), call.size("x")
    if call.output is None:
        batch, channels, spatial = split(call.shape("x"), _rank(call))
        outputs = batch * channels * prod(spread(call.extents("extents"), len(spatial)))
    else:
        outputs = prod(call.output)
    if call.formula == "adaptive_avg_pool":
        return _cost(ADAPTIVE_AVERAGE, inputs + outputs, inputs, outputs, size)
    return _cost(ADAPTIVE_MAX, inputs, inputs, outputs, size, INDEX_SIZE)


@function("max_pool_backward")
def max_pool_backward(call: Call) -> tuple[Cost, ...]:
    """Count the gradient of maxima.

    TensorFlow finds them again: these comparisons are left out, as for a library with indices.
    """
    outputs, index_size = call.elements("dy"), INDEX_SIZE if "indices" in call.at else None
    return _cost(MAX_BACKWARD, outputs, call.elements("x"), outputs, call.size("dy"), index_size)


@function("avg_pool_backward", "adaptive_avg_pool_backward")
def average_pool_backward(call: Call) -> tuple[Cost, ...]:
    """Count the gradient of averages."""
    inputs, outputs, size = call.elements("x"), call.elements("dy"), call.size("dy")
    if call.formula == "adaptive_avg_pool_backward":
        return _cost(ADAPTIVE_AVERAGE_BACKWARD, inputs + outputs, inputs, outputs, size)
    window = call.window or spread(call.extents("window"), _rank(call))
    return _cost(AVERAGE_BACKWARD, outputs * (prod(window) + 1), inputs, outputs, size)


def _rank(call: Call) -> int:
    """Return the dimensions of the window, by the operator's name: an input may have no batch."""
    return int(call.name.partition("pool")[2][0])


# Upsampling.

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


@function("interpolation", "nearest", "interpolation_backward", "nearest_backward")
def upsample(call: Call) -> tuple[Cost, ...]:
    """Count the enlargement of images [N, C, …] to given extents, or its gradient."""
    linear, gradient = call.formula.startswith("interpolation"), "dy" in call.at
    shape = call.shape(0, *(() if gradient else (3, 4, 5)))
    outputs = prod(shape)
    if not gradient:
        outputs = prod(shape[:2]) * prod(call.extents("extents", len(shape) - 2))
    other = prod(call.extents("x_size")) if gradient else outputs
    moved = compulsory(call.operand(0), Operand(other, call.size(0)))
    each = {3: 3, 4: 9, 5: 21}.get(len(shape), 0) if linear else int(gradient)
    name = INTERPOLATION if linear else NEAREST_BACKWARD if gradient else NEAREST
    part: Part = "backward" if gradient else "forward"
    return (Cost("upsample", part, outputs * each, moved, name),)
