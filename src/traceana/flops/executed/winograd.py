"""Convolution by Winograd's minimal filtering, in any number of dimensions."""

from __future__ import annotations

from math import ceil, prod

from traceana.flops.executed.model import NOTHING, Direction, Executed, Operations
from traceana.flops.executed.toom_cook import Filtering, filtering
from traceana.flops.model import Shape, UncountableError
from traceana.flops.neutral.convolution import Convolution
from traceana.flops.registry import formula


@formula("executed.winograd")
def winograd(
    conv: Convolution,
    direction: Direction,
    algorithm: str,
    size: int,
    outputs: Shape,
    fused: bool,
) -> Executed:
    """F(m x m, r x r): (m + r - 1)² products a tile and pair of channels, where direct takes m²·r².

    Lavin and Gray (2015): N·⌈P/m⌉·⌈Q/m⌉ tiles of t x t inputs, t = m + r - 1. The product is t²
    matrix products of K x C/g by C/g x tiles. Each tile of each channel is transformed by Bᵀ·d·B
    (2t one-dimensional transforms), each filter by G·g·Gᵀ (r + t), each tile of each output channel
    back by Aᵀ·m·A (t + m): the data once for all K, the filters once for all tiles. The operations
    of the one-dimensional transforms are counted from the matrices, which are derived from the
    points 0, ±1, ±2, ±½ …, rows and columns of ±p sharing their halves. F(2x2, 3x3) takes 32
    additions for the data and 24 for the result, F(4x4, 3x3) 144 and 100, as in the paper, where a
    multiplication fused with an addition is one instruction; here it is two operations.
    The input's gradient exchanges C and K. Of the weight's gradient the results are r x r and the
    tiles of the output's gradient (m x m) are the filters, F(r x r, m x m): the sum runs over
    images and tiles, and only K·C/g results are transformed back. Workspace, where the transforms
    are kernels of their own (non-fused): the three transformed tensors.
    """
    output = _require(conv)
    if direction == "wgrad":
        filters = [filtering(r, m) for m, r in zip(outputs, conv.window, strict=True)]
    else:
        filters = [filtering(m, r) for m, r in zip(outputs, conv.window, strict=True)]
    # The input of the layer is what the input's gradient has tiles of.
    spatial = output
    if direction == "dgrad":
        if conv.input is None:
            raise UncountableError("the spatial extents of the input are not known")
        spatial = conv.input
    tiles = conv.batch * prod(ceil(p / m) for p, m in zip(spatial, outputs, strict=True))
    pairs = conv.out_channels * conv.in_channels // conv.groups
    points = prod(one.tile for one in filters)
    entering = tiles * conv.in_channels
    leaving = tiles * conv.out_channels
    data, kernels, results = {
        "fprop": (entering, pairs, leaving),
        "dgrad": (leaving, pairs, entering),
        "wgrad": (entering, leaving, pairs),
    }[direction]
    return Executed(
        algorithm,
        direction,
        product=Operations(1, 1) * (tiles * pairs * points),
        formula="executed.winograd",
        data_transform=data_transform(filters) * data,
        filter_transform=filter_transform(filters) * kernels,
        output_transform=output_transform(filters) * results,
        workspace=None if fused else (data + kernels + results) * points * size,
    )


def data_transform(filters: list[Filtering]) -> Operations:
    """Return the operations of one tile's data transform."""
    sides = [(one.tile, one.tile, one.data_operations) for one in filters]
    return _separable(sides)


def filter_transform(filters: list[Filtering]) -> Operations:
    """Return the operations of one filter's transform."""
    return _separable([(one.taps, one.tile, one.filter_operations) for one in filters])


def output_transform(filters: list[Filtering]) -> Operations:
    """Return the operations of one tile's transform back."""
    return _separable([(one.tile, one.outputs, one.output_operations) for one in filters])


def _separable(sides: list[tuple[int, int, Operations]]) -> Operations:
    """Transform one dimension after the other: (extent before, extent after, operations of one)."""
    total = NOTHING
    for place, (_, _, operations) in enumerate(sides):
        before = prod(after for _, after, _ in sides[:place])
        behind = prod(extent for extent, _, _ in sides[place + 1 :])
        total += operations * (before * behind)
    return total


def _require(conv: Convolution) -> Shape:
    if conv.transposed or conv.output is None:
        raise UncountableError("the Winograd algorithms are given for plain convolutions only")
    if conv.stride is None or conv.dilation is None:
        raise UncountableError("the stride of the convolution is not known")
    if set(conv.stride) != {1}:
        raise UncountableError("the Winograd algorithms take a stride of 1 only")
    if set(conv.dilation) != {1}:
        raise UncountableError("the Winograd algorithms take no dilation")
    if prod(conv.window) == 1:
        raise UncountableError("a filter of one element leaves nothing to save")
    return conv.output
