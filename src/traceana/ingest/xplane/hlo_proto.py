"""Compiled programs of XLA, from the wire into plain records.

Field numbers are those of ``hlo.proto`` and ``xla_data.proto`` in openxla/xla: HloProto
{hlo_module 1}; HloModuleProto {computations 3, entry_computation_id 6}; HloComputationProto
{instructions 2, id 5, root_id 6}; HloInstructionProto {name 1, opcode 2, shape 3, metadata 7,
fusion_kind 11, window 15, convolution_dimension_numbers 16, custom_call_target 28,
dot_dimension_numbers 30, id 35, operand_ids 36, called_computation_ids 38, backend_config 43,
feature_group_count 50, batch_group_count 58}; OpMetadata {op_name 2}.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from traceana.ingest.xplane.buffer import Buffer
from traceana.ingest.xplane.hlo_shapes import UNKNOWN, Shape, Shapes
from traceana.ingest.xplane.wire import LENGTH, VARINT, Field, fields, packed, text


@dataclass(slots=True)
class Instruction:
    """One instruction; what only few have is left in the file (:class:`Field`) until asked for."""

    name: str = ""
    opcode: str = ""
    shape: Shape = UNKNOWN
    scope: str = ""
    number: int = 0
    operands: tuple[int, ...] = ()
    called: tuple[int, ...] = ()
    target: str = ""
    kind: str = ""
    feature_groups: int = 1
    batch_groups: int = 1
    window: Field | None = None
    convolution: Field | None = None
    dot: Field | None = None
    config: Field | None = None


@dataclass(slots=True)
class Computation:
    """A function of the program; instructions stand behind those that they use."""

    number: int = 0
    root: int = 0
    instructions: list[Instruction] = field(default_factory=list)


@dataclass(slots=True)
class Module:
    """A program: ``entry`` is the number of the computation that runs."""

    entry: int = 0
    computations: list[Computation] = field(default_factory=list)


def read_module(buffer: Buffer, proto: Field) -> Module:
    """Read an HloProto.

    Raises :class:`~traceana.ingest.xplane.wire.WireError` where it is none.
    """
    module = Module()
    shapes = Shapes(buffer)
    for part in fields(buffer, proto.start, proto.end):
        if part.number == 1 and part.wire == LENGTH:
            for inner in fields(buffer, part.start, part.end):
                if inner.number == 3 and inner.wire == LENGTH:
                    module.computations.append(_computation(buffer, inner, shapes))
                elif inner.number == 6 and inner.wire == VARINT:
                    module.entry = inner.signed
    return module


def _computation(buffer: Buffer, whole: Field, shapes: Shapes) -> Computation:
    found = Computation()
    for part in fields(buffer, whole.start, whole.end):
        match part.number, part.wire:
            case (2, 2):
                found.instructions.append(_instruction(buffer, part, shapes))
            case (5, 0):
                found.number = part.signed
            case (6, 0):
                found.root = part.signed
    return found


def _instruction(buffer: Buffer, whole: Field, shapes: Shapes) -> Instruction:
    found = Instruction()
    for part in fields(buffer, whole.start, whole.end):
        match part.number, part.wire:
            case (1, 2):
                found.name = text(buffer, part)
            case (2, 2):
                found.opcode = text(buffer, part)
            case (3, 2):
                found.shape = shapes.of(part)
            case (7, 2):
                for inner in fields(buffer, part.start, part.end):
                    if inner.number == 2 and inner.wire == LENGTH:
                        found.scope = text(buffer, inner)
            case (11, 2):
                found.kind = text(buffer, part)
            case (15, 2):
                found.window = part
            case (16, 2):
                found.convolution = part
            case (28, 2):
                found.target = text(buffer, part)
            case (30, 2):
                found.dot = part
            case (35, 0):
                found.number = part.signed
            case (36, _):
                found.operands = (*found.operands, *integers(buffer, part))
            case (38, _):
                found.called = (*found.called, *integers(buffer, part))
            case (43, 2):
                found.config = part
            case (50, 0):
                found.feature_groups = part.signed
            case (58, 0):
                found.batch_groups = part.signed
    return found


def integers(buffer: Buffer, part: Field) -> list[int]:
    """Return the integers of a repeated field, which may be packed or stand one by one."""
    if part.wire == VARINT:
        return [part.signed]
    return packed(buffer, part) if part.wire == LENGTH else []
