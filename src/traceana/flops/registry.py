"""The registries of formulas, and of the functions that apply them to calls.

:data:`FORMULAS` has the derivations by id (``convolution.wgrad``). :data:`FUNCTIONS` has by name
(``convolution_backward``) the functions that find the extents among the named operands of a call
and count it. Which function counts an operator, and where its operands are among its inputs, is a
row of ``vocabulary/operators.csv``. A name or an id that is registered twice raises ``ValueError``
at import.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final, TypeAlias, TypeVar

from msgspec.structs import replace

from traceana.errors import near
from traceana.flops.call import Call, Cost, Refusal, UncountableError, is_complex
from traceana.vocabulary.operators import Operator, operator_row, operators, positions

Function: TypeAlias = Callable[[Call], tuple[Cost, ...]]
_F = TypeVar("_F", bound=Callable[..., object])

FAMILIES: Final = (
    *("attention", "convolution", "elementwise", "matmul", "normalization", "pooling"),
    *("recurrent", "reduction", "triton_templates"),
)
"""The modules whose import fills :data:`FUNCTIONS`."""

_MORE: Final = ("executed", "hlo")
"""Modules with formulas that no framework's operator uses directly."""


FORMULAS: Final[dict[str, str]] = {}
FUNCTIONS: Final[dict[str, Function]] = {}


def declare(formula_id: str, text: str) -> str:
    """Register a formula's derivation and return its id; raises ``ValueError`` for a second one."""
    if formula_id in FORMULAS:
        raise ValueError(f"formula {formula_id} is registered twice")
    # Python's -OO removes docstrings.
    if not text.strip() and sys.flags.optimize < 2:
        raise ValueError(f"formula {formula_id} has no derivation")
    FORMULAS[formula_id] = inspect.cleandoc(text)
    return formula_id


def formula(formula_id: str) -> Callable[[_F], _F]:
    """Return a decorator that registers a function's docstring as derivation of ``formula_id``."""

    def register(function: _F) -> _F:
        declare(formula_id, function.__doc__ or "")
        return function

    return register


def function(*names: str) -> Callable[[Function], Function]:
    """Return a decorator that registers a function of calls under ``names``.

    Raises ``ValueError`` where a name is already taken.
    """

    def register(counts: Function) -> Function:
        for name in names:
            if name in FUNCTIONS:
                raise ValueError(f"function {name} is registered twice")
            FUNCTIONS[name] = counts
        return counts

    return register


@cache
def functions() -> dict[str, Function]:
    """Return all functions by name; imports their modules."""
    for module in FAMILIES:
        importlib.import_module(f"traceana.flops.{module}")
    return FUNCTIONS


def formulas() -> dict[str, str]:
    """Return all derivations by id; imports their modules."""
    functions()
    for module in _MORE:
        importlib.import_module(f"traceana.flops.{module}")
    return FORMULAS


_FACTOR: Final = re.compile(r"[a-z]|\d{1,9}")


def check_row(formula: str, operands: str) -> None:
    """Check a row: raise ``ValueError`` for an unknown formula or operands that do not fit it.

    A formula is the name of a function, or a sum of products of extents: ``2*m*k*n + m*n``.
    """
    try:
        at = positions(operands)
    except ValueError:
        raise ValueError(f"operands {operands!r}: the position of an operand is a number") from None
    if "*" not in formula:
        if formula not in functions():
            nearest = near(formula, functions()) or "one of docs/flops.md, or 2*m*k*n"
            raise ValueError(f"unknown formula {formula!r}: use {nearest}")
        return
    letters = set("".join(at))
    for factor in formula.replace(" ", "").replace("+", "*").split("*"):
        if not _FACTOR.fullmatch(factor):
            raise ValueError(f"formula {formula!r}: {factor!r} is neither a number nor a letter")
        if not factor.isdigit() and factor not in letters:
            raise ValueError(f"formula {formula!r}: {factor} is not an extent of {operands!r}")


def operators_of(*names: str) -> tuple[str, ...]:
    """Return the operators that the functions ``names`` count."""
    return tuple(name for name, row in operators().items() if row.formula in names)


def named(call: Call, row: Operator | None = None) -> Call:
    """Return ``call`` with the names of its operands, and no more inputs than the operator has.

    ``row`` is the operator's row of the vocabulary. TorchScript records its whole stack: the last
    inputs count.
    """
    row = row or operator_row(call.name)
    most = row.inputs or len(call.shapes)
    trimmed = call.inputs(slice(max(len(call.shapes) - most, 0), None))
    return replace(trimmed, formula=row.formula, at=row.operands)


_COMPLEX: Final = 4
"""Operations of a complex multiply-accumulate for each of a real one: 8 for 2."""

NO_FORMULA: Final = "no FLOP formula for this operator"


def cost(call: Call, row: Operator | None = None) -> tuple[Cost, ...] | Refusal:
    """Return the costs of the parts of ``call``, or the refusal; ``row`` is the operator's."""
    row = row or operator_row(call.name)
    if not row.formula:
        return Refusal(NO_FORMULA)
    costs = counted(named(call, row))
    if row.inputs is None or len(call.shapes) != row.inputs + 1:
        return costs
    # An additional input may also be the output tensor, which comes last.
    before = counted(named(call.inputs(slice(row.inputs)), row))
    if isinstance(costs, Refusal) or isinstance(before, Refusal):
        return before if isinstance(costs, Refusal) else costs
    if total_flops(costs) == total_flops(before):
        return before
    return Refusal("more inputs recorded than in the operator's schema")


def counted(call: Call) -> tuple[Cost, ...] | Refusal:
    """Return what the function ``call.formula`` counts, or the refusal."""
    try:
        costs = functions()["products" if "*" in call.formula else call.formula](call)
    except UncountableError as error:
        return Refusal(str(error))
    if not any(is_complex(name) for name in call.types):
        return costs
    if any(part.formula.startswith("convolution.") for part in costs):
        return Refusal("complex convolution: its real convolutions are counted")
    return tuple(
        replace(part, flops=_COMPLEX * part.flops) if part.formula == "matmul" else part
        for part in costs
    )


def total_flops(costs: Iterable[Cost]) -> int:
    """Return the floating-point operations of all parts."""
    return sum(part.flops for part in costs)
