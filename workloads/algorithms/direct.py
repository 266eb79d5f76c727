"""Single elements of a convolution's result, summed directly in double precision.

The reference for every algorithm, at the timed shape. A whole result would take longer than the
algorithms; a wrong algorithm has most elements wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from random import Random
from typing import Any

from workloads.algorithms.study import Direction, Layer

Shape = tuple[int, int, int, int]
Sum = tuple[float, float]
Dot = Callable[[Any, Any], Sum]
"""Returns the sum of the products of two arrays of one shape, and of the products' squares."""

SAMPLES = 32


def shapes(layer: Layer, batch: int) -> tuple[Shape, Shape, Shape]:
    """Return the shapes of input (N, C, H, W), filter (K, C/g, R, S) and output (N, K, P, Q)."""
    return (
        (batch, layer.in_channels, *layer.input),
        (layer.out_channels, layer.in_channels // layer.groups, *layer.kernel),
        (batch, layer.out_channels, *layer.output),
    )


@dataclass(frozen=True)
class Expected:
    """Elements of a result: their positions and correct values.

    ``scales`` are the square roots of the sums of the squared products, the expected size of an
    element for random operands. Errors are relative to it.
    """

    positions: tuple[Shape, ...]
    values: tuple[float, ...]
    scales: tuple[float, ...]

    def error(self, result: Any) -> float | None:
        """Return the root mean square of the differences relative to their scales.

        None where an element is not finite. ``result`` is an array of NumPy or PyTorch. The largest
        difference is no measure: with other random operands it was 0.004 and 0.030 for the same
        Winograd algorithm in TF32. One element of 32 that has nothing to do with its correct value
        makes the mean 0.18.
        """
        squares = []
        got = result[tuple(list(indices) for indices in zip(*self.positions, strict=True))]
        for value, wanted, scale in zip(got.tolist(), self.values, self.scales, strict=True):
            off = abs(value - wanted)
            squares.append((off / scale if scale else (inf if off else 0.0)) ** 2)
        mean = sqrt(sum(squares) / len(squares))
        return mean if isfinite(mean) else None


def wrong(error: float | None) -> str:
    """Return the reason why a result with ``error`` is rejected."""
    return "the result " + ("is not finite" if error is None else f"has error {error:.3g}")


def expected(
    layer: Layer, direction: Direction, batch: int, operands: tuple[Any, Any], dot: Dot
) -> Expected:
    """Return elements of the result, summed directly: its first and last, and random others.

    ``operands`` are, in the shapes of :func:`shapes`, input and filter (fprop), filter and the
    output's gradient (dgrad), input and the output's gradient (wgrad).
    """
    x, w, y = shapes(layer, batch)
    result = {"fprop": y, "dgrad": x, "wgrad": w}[direction]
    element = {"fprop": _output, "dgrad": _input_gradient, "wgrad": _filter_gradient}[direction]
    random = Random(0)
    positions: list[Shape] = [(0, 0, 0, 0), _index([extent - 1 for extent in result])]
    while len(positions) < SAMPLES:
        positions.append(_index([random.randrange(extent) for extent in result]))
    sums = [element(layer, index, *operands, dot) for index in positions]
    return Expected(
        tuple(positions),
        tuple(value for value, _ in sums),
        tuple(sqrt(squares) for _, squares in sums),
    )


def _index(indices: list[int]) -> Shape:
    first, second, third, fourth = indices
    return first, second, third, fourth


def _output(layer: Layer, index: Shape, x: Any, w: Any, dot: Dot) -> Sum:
    n, k, *position = index
    channels = layer.in_channels // layer.groups
    first = k // (layer.out_channels // layer.groups) * channels
    taps, pixels = [], []
    for side in (0, 1):
        dilation = layer.dilation[side]
        start = position[side] * layer.stride[side] - layer.padding[side][0]
        inside = [
            tap
            for tap in range(layer.kernel[side])
            if 0 <= start + tap * dilation < layer.input[side]
        ]
        taps.append(inside)
        pixels.append([start + tap * dilation for tap in inside])
    return dot(
        _grid(x[n, first : first + channels], *pixels),
        _grid(w[k], *taps),
    )


def _input_gradient(layer: Layer, index: Shape, w: Any, dy: Any, dot: Dot) -> Sum:
    n, c, *position = index
    channels, filters = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    first = c // channels * filters
    taps, outputs = [], []
    for side in (0, 1):
        padded = position[side] + layer.padding[side][0]
        reached = [
            (tap, *divmod(padded - tap * layer.dilation[side], layer.stride[side]))
            for tap in range(layer.kernel[side])
        ]
        inside = [(tap, p) for tap, p, rest in reached if not rest and 0 <= p < layer.output[side]]
        taps.append([tap for tap, _ in inside])
        outputs.append([p for _, p in inside])
    return dot(
        _grid(w[first : first + filters, c % channels], *taps),
        _grid(dy[n, first : first + filters], *outputs),
    )


def _filter_gradient(layer: Layer, index: Shape, x: Any, dy: Any, dot: Dot) -> Sum:
    k, c, *tap = index
    channels = layer.in_channels // layer.groups
    channel = k // (layer.out_channels // layer.groups) * channels + c
    pixels, outputs = [], []
    for side in (0, 1):
        shift = tap[side] * layer.dilation[side] - layer.padding[side][0]
        stride = layer.stride[side]
        inside = [
            p for p in range(layer.output[side]) if 0 <= p * stride + shift < layer.input[side]
        ]
        outputs.append(inside)
        pixels.append([p * stride + shift for p in inside])
    return dot(_grid(x[:, channel], *pixels), _grid(dy[:, k], *outputs))


def _grid(array: Any, rows: list[int], columns: list[int]) -> Any:
    """Return (A, rows, columns) of an array (A, H, W), of NumPy or PyTorch."""
    return array[:, rows][:, :, columns]
