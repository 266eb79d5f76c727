"""The equations of a JAX function in one list, with full name scopes, and abstract inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import msgspec
from jax.extend.core import Literal
from msgspec.structs import replace

from traceana.errors import InvalidInputError
from traceana.model.recorded_calls import ModelCall


class Equation(msgspec.Struct, frozen=True):
    """One primitive. ``inputs`` and ``outputs`` are indices of values; literals are None.

    ``times`` is the number of its executions per call of the function, as in the body of a scan.
    """

    primitive: str
    scope: tuple[str, ...]
    params: Mapping[str, Any]
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    times: int = 1


class Program(msgspec.Struct):
    """An inlined function: its equations in order, and the shape and dtype of every value.

    ``arguments``, ``constants`` and ``results`` are indices of values. ``constants`` is keyed by
    the identity of the array, because several inner functions may close over it. ``part_of`` maps
    a scan's slice of an array to that array.
    """

    equations: list[Equation]
    values: list[Any]
    arguments: list[int]
    constants: dict[int, int]
    results: list[int | None]
    part_of: dict[int, int]


_INNER: Final = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def inline(closed: Any) -> Program:
    """Return ``closed`` with all called functions inlined.

    A conditional counts as its branch with the most equations, a loop of unknown length as one
    iteration.
    """
    program = Program([], [], [], {}, [], {})
    numbers: dict[Any, int] = {}
    jaxpr = closed.jaxpr
    for var, value in zip(jaxpr.constvars, closed.consts, strict=True):
        numbers[var] = _constant(program, value)
    program.arguments = [_number(program, numbers, var) for var in jaxpr.invars]
    _walk(jaxpr, numbers, (), 1, program)
    program.results = [_known(numbers, var) for var in jaxpr.outvars]
    return program


def live(program: Program) -> Program:
    """Return the program without dead code: equations that no result depends on."""
    wanted = set(program.results)
    kept: list[Equation] = []
    for equation in reversed(program.equations):
        if wanted.intersection(equation.outputs):
            wanted.update(equation.inputs)
            kept.append(equation)
    return replace(program, equations=kept[::-1])


def _walk(
    jaxpr: Any, numbers: dict[Any, int], scope: tuple[str, ...], times: int, program: Program
) -> None:
    for eqn in jaxpr.eqns:
        scopes = _names(eqn)
        if scopes is None:
            continue
        here = (*scope, *scopes)
        inputs = [_known(numbers, var) for var in eqn.invars]
        inner = _called(eqn)
        if inner is None:
            outputs = tuple(_number(program, numbers, var) for var in eqn.outvars)
            name = str(eqn.primitive.name)
            program.equations.append(
                Equation(name, here, eqn.params, tuple(inputs), outputs, times)
            )
            continue
        body, constants, iterations, skipped = inner
        within: dict[Any, int] = {
            var: _constant(program, value)
            for var, value in zip(body.constvars, constants, strict=True)
        }
        for var, number in zip(body.invars, inputs[skipped:], strict=False):
            if number is None:
                continue
            if tuple(var.aval.shape) == tuple(program.values[number].shape):
                within[var] = number
            else:
                within[var] = _new(program, var.aval)
                program.part_of[within[var]] = number
        _walk(body, within, here, times * iterations, program)
        for outer, var in zip(eqn.outvars, body.outvars, strict=False):
            result = _known(within, var)
            same = result is not None and tuple(outer.aval.shape) == tuple(var.aval.shape)
            numbers[outer] = result if same and result is not None else _new(program, outer.aval)
            if result is not None and not same:
                # The stacked results of a scan's iterations.
                program.equations.append(
                    Equation("stack", here, {}, (result,), (numbers[outer],), times)
                )


def _called(eqn: Any) -> tuple[Any, Sequence[Any], int, int] | None:
    """Return the jaxpr that an equation calls, its constants, iterations, and skipped inputs."""
    name, params = eqn.primitive.name, eqn.params
    if name == "cond":
        closed = max(params["branches"], key=lambda branch: len(branch.jaxpr.eqns))
        return closed.jaxpr, closed.consts, 1, 1
    if name == "while":
        closed = params["body_jaxpr"]
        return closed.jaxpr, closed.consts, 1, params["cond_nconsts"]
    called = next((params[key] for key in _INNER if key in params), None)
    if called is None:
        return None
    iterations = int(params["length"]) if name == "scan" else 1
    if hasattr(called, "jaxpr"):
        return called.jaxpr, called.consts, iterations, 0
    return called, (), iterations, 0


def _names(eqn: Any) -> tuple[str, ...] | None:
    """Return the equation's own scopes, None in a backward pass."""
    scopes: list[str] = []
    for element in eqn.source_info.name_stack.stack:
        name = str(element.name)
        if type(element).__name__ == "Scope":
            # jax.numpy.einsum opens a scope named by its subscripts.
            scopes.extend(part for part in name.split("/") if "->" not in part)
        elif name == "transpose":
            return None
    return tuple(scopes)


def _number(program: Program, numbers: dict[Any, int], var: Any) -> int:
    if var not in numbers:
        numbers[var] = _new(program, var.aval)
    return numbers[var]


def _known(numbers: Mapping[Any, int], var: Any) -> int | None:
    return None if isinstance(var, Literal) else numbers.get(var)


def _new(program: Program, aval: Any) -> int:
    program.values.append(aval)
    return len(program.values) - 1


def _constant(program: Program, value: Any) -> int:
    if id(value) not in program.constants:
        program.constants[id(value)] = _new(program, jax.typeof(value))
    return program.constants[id(value)]


def leaves(tree: Any) -> list[Any]:
    """Return the arrays in a tree."""
    return [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "shape")]


def dtypes_of(call: ModelCall, parameters: Sequence[Any]) -> list[str]:
    """Return the dtype of each input, by default that of the first floating-point parameter."""
    floating = (
        str(array.dtype) for array in parameters if jnp.issubdtype(array.dtype, jnp.floating)
    )
    default = next(floating, "float32")
    return [dtype or default for dtype in call.dtypes]


def abstract(call: ModelCall, dtypes: Sequence[str]) -> list[jax.ShapeDtypeStruct]:
    """Return abstract inputs."""
    return [
        jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
        for shape, dtype in zip(call.shapes, dtypes, strict=True)
    ]


def shapes_in(tree: Any) -> list[tuple[int, ...]]:
    """Return the shapes of the arrays in a tree, without random keys."""
    return [
        tuple(leaf.shape)
        for leaf in leaves(tree)
        if leaf.shape and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    ]


def refused(call: ModelCall, error: Exception) -> InvalidInputError:
    """Return the error to raise for a model that does not run on these inputs."""
    shapes = ", ".join(map(str, call.shapes))
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return InvalidInputError(
        f"the model does not run on inputs of shape {shapes}: {reason}; give the shape and dtype "
        "that it takes, with the batch first"
    )
