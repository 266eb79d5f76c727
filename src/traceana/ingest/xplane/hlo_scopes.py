"""Infers the scopes of instructions that lost theirs when XLA optimized the program.

Instructions that XLA creates (layouts, windows of a gradient, parts of an operation that it splits)
have no ``op_name``. Where the program determines the operation of such an instruction, it gets the
operation's scope.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from traceana.ingest.xplane.hlo_proto import Computation, Instruction, Module

_CONTRACTIONS: Final = frozenset({"convolution", "dot", "custom-call"})
_MADE_BACKWARD: Final = "transpose("
_DIFFERENTIATED: Final = re.compile(r"\bjvp\(((?:[^()]|\([^()]*\))*)\)")
Tensors = tuple[int, ...]


def complete_scopes(module: Module, by_number: Mapping[int, Instruction]) -> None:
    """Fill in missing scopes of a program's instructions; ``by_number`` holds all of them.

    A convolution gets the scope of its layer's gradient, a fusion that of its root, any other
    instruction that of its users where they share one.
    """
    _name_gradients(by_number)
    roots = {part.number: by_number.get(part.root) for part in module.computations}
    for part in module.computations:
        for each in part.instructions:
            root = roots.get(each.called[0]) if each.called else None
            if not each.scope and root is not None:
                each.scope = root.scope
    for part in module.computations:
        _name_by_users(part, by_number, roots)


def _name_gradients(instructions: Mapping[int, Instruction]) -> None:
    """Give each convolution without a scope that of its layer's gradient, where exactly one fits.

    A convolution and its gradients have the same three tensors (input, weight, output) as operands
    and result in a different order: they match by their element counts. Layers with tensors of
    equal sizes are ambiguous, and their gradients get no scope. Only JAX records differentiation:
    ``jvp(net)/conv1/…`` is forward, ``transpose(jvp(net))/conv1/…`` its gradient.
    """
    scopes: defaultdict[Tensors, set[str]] = defaultdict(set)
    nameless: list[tuple[Instruction, Tensors]] = []
    for each in instructions.values():
        if each.opcode != "convolution" or (tensors := _tensors(each, instructions)) is None:
            continue
        if not each.scope:
            nameless.append((each, tensors))
        elif (scope := _backward(each.scope)) is not None:
            scopes[tensors].add(scope)
    for each, tensors in nameless:
        each.scope = _only(scopes.get(tensors, set()))


def _tensors(of: Instruction, instructions: Mapping[int, Instruction]) -> Tensors | None:
    operands = [instructions[n].shape for n in of.operands if n in instructions]
    elements = [shape.elements for shape in (*operands, of.shape)]
    known = [each for each in elements if each is not None]
    return tuple(sorted(known)) if len(known) == len(elements) == 3 else None


def _backward(scope: str) -> str | None:
    if _MADE_BACKWARD in scope:
        return scope
    made, number = _DIFFERENTIATED.subn(r"transpose(jvp(\1))", scope, count=1)
    return made if number else None


def _name_by_users(
    computation: Computation,
    by_number: Mapping[int, Instruction],
    roots: Mapping[int, Instruction | None],
) -> None:
    """Go through a computation backwards, so that users have their scopes first.

    A convolution or matrix product is used by the next layer or the optimizer, to which it does not
    belong: it gets no scope.
    """
    used_by: defaultdict[int, set[str]] = defaultdict(set)
    for each in reversed(computation.instructions):
        inner = [root for n in each.called if (root := roots.get(n)) is not None]
        if not each.scope and not any(one.opcode in _CONTRACTIONS for one in (each, *inner)):
            each.scope = _only(used_by.get(each.number, set()))
        for operand in each.operands:
            if operand in by_number:
                used_by[operand].add(each.scope)


def _only(scopes: set[str]) -> str:
    return next(iter(scopes)) if len(scopes) == 1 else ""
