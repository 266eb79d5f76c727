"""PyTorch's upsampling: nearest and linear interpolation."""

from __future__ import annotations

from math import prod
from typing import Final

from traceana.flops.call import Call
from traceana.flops.model import Cost, Operand, compulsory
from traceana.flops.registry import declare, operator

INTERPOLATION = declare(
    "resampling.linear",
    """3, 9 or 21 a result in one, two or three dimensions: a·w + b·(1 - w) along each in turn.

    An interpolation is 3 operations; of two dimensions three are needed, of three seven. The
    weights of a row or column serve all images and are left out. The gradient adds in place of
    taking: as many. Reads the input, writes the output.
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
    """1 an output: its gradient is added to that of the element it was copied from.

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
