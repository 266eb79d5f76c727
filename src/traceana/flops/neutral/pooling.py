"""Pooling: maxima and averages over windows, and their gradients."""

from __future__ import annotations

from traceana.flops.model import Cost, Operand, compulsory
from traceana.flops.registry import formula


@formula("pooling.max")
def maximum(
    inputs: int, outputs: int, window: int, size: int | None, *, index_size: int | None = 0
) -> Cost:
    """R · S an output: one comparison for each element of the window.

    Reads the input, writes the output and, in training, the index of each maximum.
    """
    moved = compulsory(Operand(inputs, size), Operand(outputs, size), Operand(outputs, index_size))
    return Cost("max_pool", "forward", outputs * window, moved, "pooling.max")


@formula("pooling.average")
def average(inputs: int, outputs: int, window: int, size: int | None) -> Cost:
    """R · S + 1 an output: the sum over the window, and a division.

    Windows at the edges count in full. Reads the input, writes the output.
    """
    moved = compulsory(Operand(inputs, size), Operand(outputs, size))
    return Cost("avg_pool", "forward", outputs * (window + 1), moved, "pooling.average")


@formula("pooling.adaptive_average")
def adaptive_average(inputs: int, outputs: int, size: int | None) -> Cost:
    """1 an input and 1 an output: the windows divide the input among them; then a division.

    Exact where the output's extents divide the input's; elsewhere neighbouring windows share
    elements and a few more additions run. Reads the input, writes the output.
    """
    moved = compulsory(Operand(inputs, size), Operand(outputs, size))
    return Cost("avg_pool", "forward", inputs + outputs, moved, "pooling.adaptive_average")


@formula("pooling.adaptive_max")
def adaptive_maximum(
    inputs: int, outputs: int, size: int | None, *, index_size: int | None
) -> Cost:
    """1 an input: one comparison for each element, the windows dividing the input among them.

    Reads the input, writes the output and the index of each maximum.
    """
    moved = compulsory(Operand(inputs, size), Operand(outputs, size), Operand(outputs, index_size))
    return Cost("max_pool", "forward", inputs, moved, "pooling.adaptive_max")


@formula("pooling.max_backward")
def maximum_backward(
    inputs: int, outputs: int, size: int | None, *, index_size: int | None
) -> Cost:
    """1 an output: its gradient is added to the element that was the maximum.

    Reads the gradient of the output and the indices, writes the gradient of the input.
    """
    moved = compulsory(Operand(outputs, size), Operand(outputs, index_size), Operand(inputs, size))
    return Cost("max_pool", "backward", outputs, moved, "pooling.max_backward")


@formula("pooling.average_backward")
def average_backward(inputs: int, outputs: int, window: int, size: int | None) -> Cost:
    """R · S + 1 an output: its gradient is divided once and added to each element of the window.

    Reads the gradient of the output, writes that of the input.
    """
    moved = compulsory(Operand(outputs, size), Operand(inputs, size))
    flops = outputs * (window + 1)
    return Cost("avg_pool", "backward", flops, moved, "pooling.average_backward")


@formula("pooling.adaptive_average_backward")
def adaptive_average_backward(inputs: int, outputs: int, size: int | None) -> Cost:
    """1 an input and 1 an output: a division, then one addition for each element of its window.

    Reads the gradient of the output, writes that of the input.
    """
    moved = compulsory(Operand(outputs, size), Operand(inputs, size))
    flops = inputs + outputs
    return Cost("avg_pool", "backward", flops, moved, "pooling.adaptive_average_backward")
