"""What a formula returns: floating-point operations and compulsory bytes, or a refusal.

One multiply-accumulate is two floating-point operations. Bytes are compulsory ones: each operand
read once and each result written once, as if the cache held everything in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Final, Literal, TypeAlias

Shape: TypeAlias = tuple[int, ...]

Part = Literal["forward", "backward", "dgrad", "wgrad", "bias_grad"]
"""What of a layer's work: ``dgrad`` is the gradient of its input, ``wgrad`` of its weight,
``bias_grad`` of its bias; ``backward`` is that of an operator that has no weight."""

LARGEST: Final = 2**63 - 1
"""Counts stand in int64 columns."""


class UncountableError(Exception):
    """The cost of a call cannot be computed; the message has the reason.

    Raised within formulas and caught where they are called: it never reaches a user.
    """


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no cost: one line, fit for a table, without any text from the trace."""

    reason: str


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call, or one part of it, computes and must move.

    ``flops`` counts a multiply-accumulate as two. ``bytes`` is ``None`` where an element's size
    or an operand's shape is not known. ``formula`` names the entry of
    :data:`traceana.flops.registry.FORMULAS` with its derivation. ``skipped`` counts those
    of ``flops`` that a mask makes unnecessary, ``None`` where it is not known whether there is one.
    """

    kind: str
    part: Part
    flops: int
    bytes: int | None
    formula: str
    skipped: int | None = 0

    def __post_init__(self) -> None:
        if not 0 <= self.flops <= LARGEST or not 0 <= (self.bytes or 0) <= LARGEST:
            raise UncountableError("FLOP count exceeds 64 bits")


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that is read or written: how many elements, of how many bytes each.

    ``elements`` is ``None`` where its shape is not known, ``size`` where its type is not.
    """

    elements: int | None
    size: int | None

    @classmethod
    def of(cls, shape: Shape | None, size: int | None) -> Operand:
        """Return the operand of ``shape`` whose elements are of ``size`` bytes."""
        return cls(None if shape is None else prod(shape), size)


def compulsory(*operands: Operand | None) -> int | None:
    """Return the bytes of all ``operands`` that are there, ``None`` if any of them is unknown."""
    total = 0
    for operand in operands:
        if operand is None or operand.elements == 0:
            continue
        if operand.elements is None or operand.size is None:
            return None
        total += operand.elements * operand.size
    return total


def broadcast(*shapes: Shape) -> Shape:
    """Return the common shape, by numpy's rules; raises :class:`UncountableError` without one."""
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for position, extent in enumerate(shape, rank - len(shape)):
            if result[position] == 1:
                result[position] = extent
            elif extent not in (1, result[position]):
                raise UncountableError("operand shapes do not broadcast")
    return tuple(result)


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


@dataclass(frozen=True, slots=True)
class Count:
    """``tensors``, of a convolution: the elements of input, weight and output, sorted."""

    flops: int
    formula: str
    tensors: tuple[int, ...] = field(default=())
