"""Multiplications and additions of an algorithm, its transforms apart from its product."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Direction = Literal["fprop", "dgrad", "wgrad"]


@dataclass(frozen=True, slots=True)
class Operations:
    """Real multiplications and additions; a fused multiply-add is one of each."""

    multiplications: int = 0
    additions: int = 0

    def __add__(self, other: Operations) -> Operations:
        return Operations(
            self.multiplications + other.multiplications, self.additions + other.additions
        )

    def __mul__(self, times: int) -> Operations:
        return Operations(self.multiplications * times, self.additions * times)

    @property
    def flops(self) -> int:
        """All operations."""
        return self.multiplications + self.additions


NOTHING = Operations()


@dataclass(frozen=True, slots=True)
class Executed:
    """What an algorithm executes for one convolution in one direction.

    The transforms are those of the two operands and of the result, whatever they are in that
    direction: of a forward pass input, filter and output. ``workspace`` is the memory in bytes
    that holds the transformed (or expanded) tensors, ``None`` where no formula is known.
    ``formula`` names the entry of :data:`traceana.flops.registry.FORMULAS`.
    """

    algorithm: str
    direction: Direction
    product: Operations
    formula: str
    data_transform: Operations = field(default=NOTHING)
    filter_transform: Operations = field(default=NOTHING)
    output_transform: Operations = field(default=NOTHING)
    workspace: int | None = None

    @property
    def transforms(self) -> Operations:
        """The operations of all three transforms."""
        return self.data_transform + self.filter_transform + self.output_transform

    @property
    def operations(self) -> Operations:
        """The operations of product and transforms."""
        return self.product + self.transforms

    @property
    def flops(self) -> int:
        """All floating-point operations."""
        return self.operations.flops
