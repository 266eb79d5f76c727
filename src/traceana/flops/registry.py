"""Which formula serves which operator, and what each formula is.

Two registries. :data:`FORMULAS` holds the neutral formulas by id (``convolution.wgrad``): functions
of extents alone, whose docstrings carry the derivation. :data:`OPERATORS` holds, by the name of an
operator (``aten::convolution_backward``, ``Conv2DBackpropFilter``), the reader that finds the
extents among its inputs and calls a formula. A name or an id that is registered twice is refused
at import.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeAlias, TypeVar

from traceana.flops.arity import MOST_INPUTS
from traceana.flops.call import Call
from traceana.flops.model import Cost, Refusal, UncountableError

Reader: TypeAlias = Callable[[Call], tuple[Cost, ...]]
_F = TypeVar("_F", bound=Callable[..., object])

FAMILIES: Final = (
    "traceana.flops.aten.attention",
    "traceana.flops.aten.convolution",
    "traceana.flops.aten.convolution_backward",
    "traceana.flops.aten.elementwise",
    "traceana.flops.aten.foreach",
    "traceana.flops.aten.loss",
    "traceana.flops.aten.matmul",
    "traceana.flops.aten.memory",
    "traceana.flops.aten.normalization",
    "traceana.flops.aten.pooling",
    "traceana.flops.aten.recurrent",
    "traceana.flops.aten.reduction",
    "traceana.flops.aten.resampling",
    "traceana.flops.tensorflow.convolution",
    "traceana.flops.tensorflow.matmul",
    "traceana.flops.tensorflow.memory",
    "traceana.flops.tensorflow.elementwise",
    "traceana.flops.tensorflow.normalization",
    "traceana.flops.tensorflow.pooling",
)
"""The modules whose import fills :data:`OPERATORS`."""

_MORE: Final = (
    "traceana.flops.executed.fft",
    "traceana.flops.executed.gemm",
    "traceana.flops.executed.winograd",
    "traceana.flops.hlo",
)
"""Modules that declare formulas of what is no framework's operator."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A neutral formula: its id and its derivation, of which the first line is a summary."""

    id: str
    text: str

    @property
    def summary(self) -> str:
        """Return the first line of the derivation."""
        return self.text.partition("\n")[0]


FORMULAS: Final[dict[str, Formula]] = {}
OPERATORS: Final[dict[str, Reader]] = {}


def declare(formula_id: str, text: str) -> str:
    """Register a formula's derivation and return its id; raises ``ValueError`` on a second one."""
    if formula_id in FORMULAS:
        raise ValueError(f"formula {formula_id} is registered twice")
    if not text.strip():
        raise ValueError(f"formula {formula_id} has no derivation")
    FORMULAS[formula_id] = Formula(formula_id, inspect.cleandoc(text))
    return formula_id


def formula(formula_id: str) -> Callable[[_F], _F]:
    """Register the decorated function's docstring as the derivation of ``formula_id``."""

    def register(function: _F) -> _F:
        declare(formula_id, function.__doc__ or "")
        return function

    return register


def operator(*names: str) -> Callable[[Reader], Reader]:
    """Register the decorated reader for the operators ``names``.

    Raises ``ValueError`` where a name has a reader already.
    """

    def register(reader: Reader) -> Reader:
        for name in names:
            if name in OPERATORS:
                raise ValueError(f"operator {name} is registered twice")
            OPERATORS[name] = reader
        return reader

    return register


@cache
def operators() -> dict[str, Reader]:
    """Return all readers by operator, the families imported."""
    for module in FAMILIES:
        importlib.import_module(module)
    return OPERATORS


def formulas() -> dict[str, Formula]:
    """Return all formulas by id, every module that declares one imported."""
    operators()
    for module in _MORE:
        importlib.import_module(module)
    return FORMULAS


NO_FORMULA: Final = "no formula for this operator"


def cost(call: Call) -> tuple[Cost, ...] | Refusal:
    """Return the parts of what ``call`` computes, or why they are not known.

    Of inputs beyond what the operator takes (TorchScript records its whole stack) the last count.
    """
    reader = operators().get(call.name)
    if reader is None:
        return Refusal(NO_FORMULA)
    most = MOST_INPUTS.get(call.name)
    if most is None or len(call.shapes) <= most:
        return _read(reader, call)
    own = _read(reader, call.inputs(slice(-most, None)))
    if len(call.shapes) > most + 1:
        return own
    # One more may also be the tensor that the result is written to, which comes last.
    before = _read(reader, call.inputs(slice(most)))
    if isinstance(own, Refusal) or isinstance(before, Refusal):
        return before if isinstance(own, Refusal) else own
    if total_flops(own) == total_flops(before):
        return before
    return Refusal("more inputs were recorded than the operator takes")


def _read(reader: Reader, call: Call) -> tuple[Cost, ...] | Refusal:
    try:
        return reader(call)
    except UncountableError as error:
        return Refusal(str(error))


def total_flops(costs: Iterable[Cost]) -> int:
    """Return the floating-point operations of all parts."""
    return sum(one.flops for one in costs)
