"""The registries of formulas and of the operators that use them.

:data:`FORMULAS` has the framework-neutral formulas by id (``convolution.wgrad``): functions of
extents, with the derivation in the docstring. :data:`OPERATORS` has, by the name of an operator
(``aten::convolution_backward``, ``Conv2DBackpropFilter``), the reader that finds the extents among
its inputs and calls a formula. A name or an id that is registered twice raises ``ValueError`` at
import.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final, TypeAlias, TypeVar

import msgspec

from traceana.flops.call import Call, is_complex
from traceana.flops.cost import Cost, Refusal, UncountableError
from traceana.vocabulary.operators import operator_row

Reader: TypeAlias = Callable[[Call], tuple[Cost, ...]]
_F = TypeVar("_F", bound=Callable[..., object])

FAMILIES: Final = (
    "traceana.flops.attention",
    "traceana.flops.aten_convolution",
    "traceana.flops.convolution",
    "traceana.flops.elementwise",
    "traceana.flops.matmul",
    "traceana.flops.data_movement",
    "traceana.flops.normalization",
    "traceana.flops.pooling",
    "traceana.flops.recurrent",
    "traceana.flops.reduction",
    "traceana.flops.triton_templates",
)
"""The modules whose import fills :data:`OPERATORS`."""

_MORE: Final = ("traceana.flops.executed", "traceana.flops.hlo")
"""Modules with formulas that no framework's operator uses directly."""


class Formula(msgspec.Struct, frozen=True):
    """A framework-neutral formula: its id and its derivation, whose first line is a summary."""

    id: str
    text: str

    @property
    def summary(self) -> str:
        """Return the first line of the derivation."""
        return self.text.partition("\n")[0]


FORMULAS: Final[dict[str, Formula]] = {}
OPERATORS: Final[dict[str, Reader]] = {}


def declare(formula_id: str, text: str) -> str:
    """Register a formula's derivation and return its id; raises ``ValueError`` for a second one."""
    if formula_id in FORMULAS:
        raise ValueError(f"formula {formula_id} is registered twice")
    if not text.strip():
        raise ValueError(f"formula {formula_id} has no derivation")
    FORMULAS[formula_id] = Formula(formula_id, inspect.cleandoc(text))
    return formula_id


def formula(formula_id: str) -> Callable[[_F], _F]:
    """Return a decorator that registers a function's docstring as derivation of ``formula_id``."""

    def register(function: _F) -> _F:
        declare(formula_id, function.__doc__ or "")
        return function

    return register


def operator(*names: str) -> Callable[[Reader], Reader]:
    """Return a decorator that registers a reader for the operators ``names``.

    Raises ``ValueError`` where a name already has a reader.
    """

    def register(reader: Reader) -> Reader:
        for name in names:
            if name in OPERATORS:
                raise ValueError(f"operator {name} is registered twice")
            OPERATORS[name] = reader
        return reader

    return register


TEMPLATE: Final = "triton_tem_"
"""The beginning of the names of kernels that Inductor generates from a template; their reader is
registered under it."""


@cache
def operators() -> dict[str, Reader]:
    """Return all readers by operator; imports their modules."""
    for module in FAMILIES:
        importlib.import_module(module)
    return OPERATORS


def formulas() -> dict[str, Formula]:
    """Return all formulas by id; imports their modules."""
    operators()
    for module in _MORE:
        importlib.import_module(module)
    return FORMULAS


def reader_of(name: str) -> Reader | None:
    """Return the reader of the operator ``name``, if there is one."""
    return operators().get(TEMPLATE if name.startswith(TEMPLATE) else name)


_COMPLEX: Final = 4
"""Operations of a complex multiply-accumulate for each of a real one: 8 for 2."""

NO_FORMULA: Final = "no FLOP formula for this operator"


def cost(call: Call) -> tuple[Cost, ...] | Refusal:
    """Return the costs of the parts of ``call``, or the refusal.

    Where there are more inputs than the operator has (TorchScript records its whole stack), the
    last ones count.
    """
    reader = reader_of(call.name)
    if reader is None:
        return Refusal(NO_FORMULA)
    most = operator_row(call.name).inputs
    if most is None or len(call.shapes) <= most:
        return _read(reader, call)
    own = _read(reader, call.inputs(slice(-most, None)))
    if len(call.shapes) > most + 1:
        return own
    # An additional input may also be the output tensor, which comes last.
    before = _read(reader, call.inputs(slice(most)))
    if isinstance(own, Refusal) or isinstance(before, Refusal):
        return before if isinstance(own, Refusal) else own
    if total_flops(own) == total_flops(before):
        return before
    return Refusal("more inputs recorded than in the operator's schema")


def _read(reader: Reader, call: Call) -> tuple[Cost, ...] | Refusal:
    try:
        costs = reader(call)
    except UncountableError as error:
        return Refusal(str(error))
    if not any(is_complex(name) for name in call.types or ()):
        return costs
    if any(one.formula.startswith("convolution.") for one in costs):
        return Refusal("complex convolution: its real convolutions are counted")
    return tuple(
        msgspec.structs.replace(one, flops=_COMPLEX * one.flops) if one.formula == "matmul" else one
        for one in costs
    )


def total_flops(costs: Iterable[Cost]) -> int:
    """Return the floating-point operations of all parts."""
    return sum(one.flops for one in costs)
