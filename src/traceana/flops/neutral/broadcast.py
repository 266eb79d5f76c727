"""Shapes that operands of different shapes are stretched to."""

from __future__ import annotations

from traceana.flops.model import Shape, UncountableError


def broadcast(*shapes: Shape) -> Shape:
    """Return the common shape, by numpy's rules; raises :class:`UncountableError` if none is."""
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for position, extent in enumerate(shape, rank - len(shape)):
            if result[position] == 1:
                result[position] = extent
            elif extent not in (1, result[position]):
                raise UncountableError("the shapes of the operands do not go together")
    return tuple(result)
