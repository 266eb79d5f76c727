"""Work that is so many operations an element: elementwise functions, reductions, copies."""

from __future__ import annotations

from traceana.flops.model import Cost, Operand, Part, compulsory


def per_element(
    formula: str,
    kind: str,
    elements: int,
    operations: int,
    *operands: Operand | None,
    part: Part = "forward",
) -> Cost:
    """Return the cost of ``operations`` for each of ``elements``, moving ``operands`` once each.

    An arithmetic operation, a comparison or an elementary function (exp, log, tanh, erf, square
    root, power) of one element is one operation; a selection, a copy or a random number is none.
    """
    return Cost(kind, part, elements * operations, compulsory(*operands), formula)
