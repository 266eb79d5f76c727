"""The result of a formula: floating-point operations and compulsory bytes, or a refusal.

One multiply-accumulate is two floating-point operations. Bytes are compulsory: each operand is read
once and each result written once, as with an unlimited cache.
"""

from __future__ import annotations

from math import prod
from typing import Final, Literal, TypeAlias

import msgspec

Shape: TypeAlias = tuple[int, ...]

Part = Literal["forward", "backward", "dgrad", "wgrad", "bias_grad"]
"""Parts of a layer's work: ``dgrad`` is the gradient of its input, ``wgrad`` of its weight,
``bias_grad`` of its bias; ``backward`` is the gradient of an operator without a weight."""

LARGEST: Final = 2**63 - 1
"""Counts are int64 columns."""


PRODUCT: Final = r"^(?:convolution|recurrent)\.(?:forward|dgrad|wgrad)$|^matmul$|^attention\.|\*"
"""Formulas of products: of convolutions, matrices, attention and recurrent layers, and a user's."""


class UncountableError(Exception):
    """The cost of a call cannot be computed; the message has the reason.

    Raised in formulas and caught by their callers: users never see it.
    """


class Refusal(msgspec.Struct, frozen=True):
    """The reason without a cost: one line for a table, without text from the trace."""

    reason: str


class Cost(msgspec.Struct, frozen=True):
    """The FLOPs and compulsory bytes of a call, or of a part of it.

    ``flops`` counts a multiply-accumulate as two. ``bytes`` is ``None`` where an element's size
    or an operand's shape is unknown. ``formula`` is the key of its derivation in
    :data:`traceana.flops.registry.FORMULAS`. ``skipped`` counts those of ``flops`` that a mask
    makes unnecessary, ``None`` where the mask is unknown.
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


class Operand(msgspec.Struct, frozen=True):
    """A tensor that is read or written: number of elements, and bytes of each.

    ``elements`` is ``None`` where its shape is unknown, ``size`` where its type is unknown.
    """

    elements: int | None
    size: int | None

    @classmethod
    def of(cls, shape: Shape | None, size: int | None) -> Operand:
        """Return the operand of ``shape`` whose elements are of ``size`` bytes."""
        return cls(None if shape is None else prod(shape), size)


def compulsory(*operands: Operand | None) -> int | None:
    """Return the bytes of all given ``operands``, ``None`` if any of them is unknown."""
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
