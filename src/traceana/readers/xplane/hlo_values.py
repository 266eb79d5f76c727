"""Which instructions of a program have the same value, up to its layout and element type.

XLA computes a cheap result again in each fusion that reads it: the forward convolution reads the
activation of one fusion, the gradient of its weight a transposed copy that computes the same
activation again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from traceana.readers.xplane.hlo_proto import Computation, Instruction, Module

_MOVES: Final = frozenset(
    {"bitcast", "broadcast", "convert", "copy", "pad", "reshape", "reverse", "transpose"}
)
"""Instructions whose result is their first operand, in another layout, extent or type."""
_ELEMENTWISE: Final = frozenset(
    "abs add and atan2 cbrt ceil clamp compare cosine divide erf exponential "
    "exponential-minus-one floor is-finite log log-plus-one logistic maximum minimum multiply "
    "negate not or power remainder round-nearest-afz round-nearest-even rsqrt select sign sine "
    "sqrt subtract tan tanh xor".split()
)
"""Instructions whose result follows from their operands."""

_HOLDING: Final = frozenset({"fusion", "call"})
"""Instructions whose result is that of their computation on their operands."""
_DEEPEST: Final = 16
"""Computations inside each other; those of XLA are two or three."""

_Key = tuple[str | int, ...]


class Values:
    """Numbers the values of a program.

    Elementwise instructions on equal values have equal values, inside fusions and outside. All
    other instructions differ. Literals are not read: constants are taken to be equal, and so are
    comparisons of equal values. A computation of several callers has the values of the first.
    """

    def __init__(self, module: Module) -> None:
        self._waiting = {part.number: part for part in module.computations}
        self._numbers: dict[_Key, int] = {}
        self._values: dict[int, int] = {}
        """By number of the instruction."""
        held = {
            number
            for part in module.computations
            for instruction in part.instructions
            if instruction.opcode in _HOLDING
            for number in instruction.called
        }
        for part in module.computations:
            if part.number not in held:
                self._run(part, (), 0)

    def of(self, number: int) -> int:
        """Return the number of the value of an instruction."""
        value = self._values.get(number)
        return self._number("of", number) if value is None else value

    def _run(self, part: Computation, inputs: Sequence[int], depth: int) -> None:
        """Find the values of a computation on ``inputs``. Operands come before their users."""
        self._waiting.pop(part.number, None)
        for instruction in part.instructions:
            self._values[instruction.number] = self._value(instruction, inputs, depth)

    def _value(self, instruction: Instruction, inputs: Sequence[int], depth: int) -> int:
        if instruction.opcode == "parameter" and instruction.parameter < len(inputs):
            return inputs[instruction.parameter]
        operands = [self.of(number) for number in instruction.operands]
        if instruction.opcode in _MOVES and operands:
            return operands[0]
        if instruction.opcode in _ELEMENTWISE:
            return self._number(instruction.opcode, *operands)
        if instruction.opcode == "constant":
            return self._number("constant")
        if instruction.opcode in _HOLDING and instruction.called and depth < _DEEPEST:
            part = self._waiting.get(instruction.called[0])
            if part is not None:
                self._run(part, operands, depth + 1)
                return self.of(part.root)
        return self._number("of", instruction.number)

    def _number(self, *key: str | int) -> int:
        return self._numbers.setdefault(key, len(self._numbers))
