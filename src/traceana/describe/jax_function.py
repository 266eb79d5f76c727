"""Layers of a JAX function, from its equations grouped by ``jax.named_scope``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from traceana.describe.finish import finished, model_inputs
from traceana.describe.inputs import Call
from traceana.describe.jax_inputs import abstract, dtypes_of, leaves, refused
from traceana.describe.jax_scopes import WEIGHTED, Scope, details, layout_of_program
from traceana.describe.jaxpr import Equation, Program, inline, live
from traceana.describe.manifest import Layout, Manifest, manifest
from traceana.describe.recording import Recorded, Recording
from traceana.errors import BadModelError


def describe_function(
    function: Callable[..., Any],
    call: Call,
    name: str | None,
    types: Mapping[str, str],
    parameters: Any,
) -> Manifest:
    """Describe a JAX function; see :func:`traceana.describe`.

    Layers are the innermost scopes, and others in which there is a convolution or a product of
    matrices. Parameters are the arrays of a float type in ``parameters``, or those that the
    function closes over.
    """
    dtypes = dtypes_of(call, leaves(parameters))
    arguments, named = call.arguments(abstract(call, dtypes))

    def run(parameters: Any, *inputs: Any, **options: Any) -> Any:
        taken = inputs if parameters is None else (parameters, *inputs)
        return function(*taken, **options)

    try:
        closed = jax.make_jaxpr(run)(parameters, *arguments, **named)
    except Exception as error:  # a function may raise anything
        raise refused(call, error) from error
    program = live(inline(closed))
    trained = _parameters(program, parameters)
    layout = layout_of_program(program)
    recording = _recorded(program, trained, layout)
    if not recording.layers:
        raise BadModelError(
            "the function names no layers: put each under jax.named_scope('its name')"
        )
    layers = tuple(
        finished(recorded, position, details(recorded.layer, recorded, types))
        for position, recorded in enumerate(recording.layers)
    )
    own = getattr(function, "__name__", "<lambda>")
    return manifest(
        network=name or ("function" if own == "<lambda>" else own),
        framework="JAX",
        inputs=model_inputs(call, dtypes, layers, layout),
        layers=layers,
        parameter_count=sum(prod(program.values[number].shape) for number in trained),
    )


def _parameters(program: Program, tree: Any) -> dict[int, str | None]:
    """Return the values that are parameters, with their names where they have one."""
    if tree is None:
        return {number: None for number in program.constants.values() if _floating(program, number)}
    flat = jax.tree_util.tree_leaves_with_path(tree)
    named = zip(program.arguments, flat, strict=False)
    return {
        number: str(getattr(path[-1], "key", getattr(path[-1], "name", ""))) or None
        for number, (path, _) in named
        if path and _floating(program, number)
    }


def _floating(program: Program, number: int) -> bool:
    value = program.values[number]
    return bool(value.shape) and bool(jnp.issubdtype(value.dtype, jnp.floating))


def _recorded(program: Program, trained: Mapping[int, str | None], layout: Layout) -> Recording:
    roots = _roots(program, trained)
    scopes = {equation.scope for equation in program.equations}
    outer = {scope[:depth] for scope in scopes for depth in range(len(scope))}
    users = _users(program)
    recording = Recording()
    for call in _calls(program, outer):
        scope = call[0].scope
        given, made = _boundary(program, call, roots, users)
        if not made:
            continue
        recording.add(
            Recorded(
                key=scope,
                path="/".join(scope),
                layer=Scope(program, call, roots, trained),
                inputs=[tuple(program.values[number].shape) for number in given],
                outputs=[tuple(program.values[number].shape) for number in made],
                axes=layout,
                layout=layout,
                times=call[0].times,
            )
        )
    return recording


def _calls(program: Program, outer: set[tuple[str, ...]]) -> Iterator[list[Equation]]:
    """Yield the calls of layers in order: equations of one scope that follow one another."""
    current: list[Equation] = []
    for equation in program.equations:
        scope = equation.scope
        if not scope or (scope in outer and equation.primitive not in WEIGHTED):
            continue
        if current and current[0].scope != scope:
            yield current
            current = []
        current.append(equation)
    if current:
        yield current


def _roots(program: Program, trained: Mapping[int, str | None]) -> dict[int, int]:
    """Return, for every value made of parameters alone, the first of these parameters."""
    roots = {number: number for number in trained}
    roots |= {part: whole for part, whole in program.part_of.items() if whole in trained}
    for equation in program.equations:
        inputs = [number for number in equation.inputs if number is not None]
        if inputs and all(number in roots for number in inputs):
            for number in equation.outputs:
                roots[number] = roots[inputs[0]]
    return roots


def _boundary(
    program: Program,
    call: list[Equation],
    roots: Mapping[int, int],
    users: Mapping[int | None, int],
) -> tuple[list[int], list[int]]:
    """Return the values that go into a call and those that come out of it."""
    within = Counter(number for equation in call for number in equation.inputs)
    made = {number for equation in call for number in equation.outputs}
    given = dict.fromkeys(
        number
        for equation in call
        for number in equation.inputs
        if number is not None and number not in made and number not in roots
    )
    out = [number for number in sorted(made) if users[number] > within[number]]
    return (
        [
            number
            for number in given
            if program.values[number].shape and not _is_key(program, number)
        ],
        [number for number in out if not _is_key(program, number)],
    )


def _users(program: Program) -> Counter[int | None]:
    """Return how often each value is used, the results being one use."""
    users: Counter[int | None] = Counter(program.results)
    for equation in program.equations:
        users.update(equation.inputs)
    return users


def _is_key(program: Program, number: int) -> bool:
    # Random keys are of a dtype of their own, or raw numbers of 32 bits.
    dtype = program.values[number].dtype
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jnp.uint32)
