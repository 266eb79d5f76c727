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
        self._known: dict[_Key, int] = {}
        self._of: dict[int, int] = {}
        held = {
            number
            for part in module.computations
            for each in part.instructions
            if each.opcode in _HOLDING
            for number in each.called
        }
        for part in module.computations:
            if part.number not in held:
                self._run(part, (), 0)

    def of(self, number: int) -> int:
        """Return the number of the value of an instruction."""
        known = self._of.get(number)
        return self._number("of", number) if known is None else known

    def _run(self, part: Computation, inputs: Sequence[int], depth: int) -> None:
        """Find the values of a computation on ``inputs``. Operands come before their users."""
        self._waiting.pop(part.number, None)
        for each in part.instructions:
            self._of[each.number] = self._value(each, inputs, depth)

    def _value(self, one: Instruction, inputs: Sequence[int], depth: int) -> int:
        if one.opcode == "parameter" and one.parameter < len(inputs):
            return inputs[one.parameter]
        operands = [self.of(number) for number in one.operands]
        if one.opcode in _MOVES and operands:
            return operands[0]
        if one.opcode in _ELEMENTWISE:
            return self._number(one.opcode, *operands)
        if one.opcode == "constant":
            return self._number("constant")
        if one.opcode in _HOLDING and one.called and depth < _DEEPEST:
            part = self._waiting.get(one.called[0])
            if part is not None:
                self._run(part, operands, depth + 1)
                return self.of(part.root)
        return self._number("of", one.number)

    def _number(self, *key: str | int) -> int:
        return self._known.setdefault(key, len(self._known))
