"""From a compiled program to rows of ``instructions``: what holds what, and which are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from traceana.ingest.xplane.buffer import Buffer
from traceana.ingest.xplane.hlo_attributes import attributes
from traceana.ingest.xplane.hlo_proto import Computation, Instruction, Module
from traceana.ingest.xplane.hlo_scopes import complete_scopes
from traceana.ingest.xplane.hlo_shapes import UNKNOWN, Shape
from traceana.ingest.xplane.wire import WireError

PLUMBING: Final = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast"})
"""Instructions that name or bundle values and compute nothing."""

_HOLDERS: Final = frozenset(
    {"fusion", "call", "while", "conditional", "custom-call", "async-start", "async-update"}
)
"""Instructions that run a computation as it stands; others (reduce, sort, scatter …) apply theirs
to each element."""


class Row(NamedTuple):
    """A row of ``instructions`` but for its program; ``parent`` counts from the program's first."""

    name: str
    parent: int | None
    opcode: str
    target: str | None
    scope: str | None
    attributes: str | None
    input_shapes: str | None = None
    input_types: str | None = None
    output_shape: str | None = None
    output_type: str | None = None


def rows(buffer: Buffer, module: Module, text_budget: int) -> list[Row]:
    """Return the rows of a program, each behind the one that holds it.

    Every computation stands once, under the first instruction that runs it, whatever calls whom.
    Once the texts of shapes come to ``text_budget`` characters, the rest have none: a program may
    name a shape of thousands of parts in each of its instructions.
    """
    by_number = {each.number: each for part in module.computations for each in part.instructions}
    complete_scopes(module, by_number)
    found: list[Row] = []
    for each, parent in _placed(module):
        operands = [by_number[n].shape if n in by_number else UNKNOWN for n in each.operands]
        text_budget -= sum(len(shape.sizes) + len(shape.types) for shape in (*operands, each.shape))
        found.append(
            Row(
                each.name,
                parent,
                each.opcode,
                each.target or None,
                each.scope or None,
                _attributes(buffer, each),
                *(_shapes(operands, each.shape) if text_budget >= 0 else ()),
            )
        )
    return found


def _placed(module: Module) -> Iterator[tuple[Instruction, int | None]]:
    """Yield the instructions that are kept, with the place in this order of what holds them.

    It begins with the program itself and whatever nothing calls. A computation is gone through
    once, so that programs which call themselves, as none can, end too.
    """
    computations: dict[int, Computation] = {part.number: part for part in module.computations}
    called = {n for part in module.computations for each in part.instructions for n in each.called}
    begin = [n for n in computations if n == module.entry or n not in called]
    begin.sort(key=lambda n: n != module.entry)
    waiting: deque[tuple[int, int | None]] = deque((n, None) for n in begin)
    seen = set(begin)
    place = 0
    while waiting:
        number, parent = waiting.popleft()
        for each in computations[number].instructions:
            if each.opcode in PLUMBING:
                continue
            yield each, parent
            if each.opcode in _HOLDERS:
                for inner in each.called:
                    if inner in computations and inner not in seen:
                        seen.add(inner)
                        waiting.append((inner, place))
            place += 1


def _shapes(operands: list[Shape], output: Shape) -> tuple[str, str, str | None, str | None]:
    return (
        f"[{','.join(shape.sizes for shape in operands)}]",
        f"[{','.join(shape.types for shape in operands)}]",
        None if output is UNKNOWN else output.sizes,
        None if output is UNKNOWN else output.types.strip('"'),
    )


def _attributes(buffer: Buffer, of: Instruction) -> str | None:
    try:
        found = attributes(buffer, of)
    except WireError:
        return None
    return msgspec.json.encode(found).decode() if found else None
