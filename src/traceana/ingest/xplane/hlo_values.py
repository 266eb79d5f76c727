"""Which instructions of a program have the same value, up to its layout and element type.

XLA computes a cheap result again in each fusion that reads it: the forward convolution reads the
activation of one fusion, the gradient of its weight a transposed copy that computes the same
activation again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from traceana.ingest.xplane.hlo_proto import Computation, Instruction, Module

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

_Key = tuple[str | int, ...]


class Values:
    """Numbers the values of a program.

    Elementwise instructions on equal values have equal values, inside fusions and outside. All
    other instructions differ. Literals are not read: constants are taken to be equal, and so are
    comparisons of equal values.
    """

    def __init__(self, module: Module) -> None:
        self._computations = {part.number: part for part in module.computations}
        self._known: dict[_Key, int] = {}
        self._of: dict[int, int] = {}
        fused = {
            number
            for part in module.computations
            for each in part.instructions
            if each.opcode == "fusion"
            for number in each.called
        }
        for part in module.computations:
            if part.number not in fused:
                self._run(part, (), self._of)

    def of(self, number: int) -> int:
        """Return the number of the value of an instruction outside of fusions."""
        return self._of.get(number, self._number("of", number))

    def _run(self, part: Computation, inputs: Sequence[int], found: dict[int, int]) -> None:
        """Add the values of a computation on ``inputs`` to ``found``, by instruction."""
        for each in part.instructions:
            operands = [found.get(n, self._number("of", n)) for n in each.operands]
            found[each.number] = self._value(each, operands, inputs)

    def _value(self, one: Instruction, operands: list[int], inputs: Sequence[int]) -> int:
        if one.opcode == "parameter" and one.parameter < len(inputs):
            return inputs[one.parameter]
        if one.opcode in _MOVES and operands:
            return operands[0]
        if one.opcode in _ELEMENTWISE:
            return self._number(one.opcode, *operands)
        if one.opcode == "constant":
            return self._number("constant")
        if one.opcode == "fusion" and (found := self._result(one, operands)) is not None:
            return found
        return self._number("of", one.number)

    def _result(self, fusion: Instruction, inputs: Sequence[int]) -> int | None:
        """Return the value of a fusion, None where it is of its own.

        A fusion with fusions in it is, so that a program that is recursive by error ends.
        """
        called = self._computations.get(fusion.called[0]) if fusion.called else None
        if called is None or any(each.opcode == "fusion" for each in called.instructions):
            return None
        inner: dict[int, int] = {}
        self._run(called, inputs, inner)
        return inner.get(called.root)

    def _number(self, *key: str | int) -> int:
        return self._known.setdefault(key, len(self._known))
