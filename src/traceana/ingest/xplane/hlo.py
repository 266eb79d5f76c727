"""Name scopes of XLA's instructions, from the HLO modules in the metadata plane.

A profiled event names its instruction (``hlo_op``) and module; where in the program that came from
(``jit(step)/jvp(conv1)/conv_general_dilated``) stands in the module alone. Field numbers are
those of ``hlo.proto`` and ``xla_data.proto`` in openxla/xla: HloProto {hlo_module 1};
HloModuleProto {computations 3}; HloComputationProto {instructions 2, id 5, root_id 6};
HloInstructionProto {name 1, metadata 7, id 35, called_computation_ids 38}; OpMetadata
{op_name 2}.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import polars as pl

from traceana.ingest.xplane.buffer import Buffer
from traceana.ingest.xplane.space import Plane, Space
from traceana.ingest.xplane.wire import LENGTH, Field, WireError, fields, packed, text

METADATA_PLANE: Final = "/host:metadata"
_PROTO: Final = "Hlo Proto"
_LABEL: Final = re.compile(r"^(?P<module>.*)\((?P<program>\d+)\)$", re.DOTALL)


@dataclass(slots=True)
class _Instruction:
    name: str = ""
    scope: str = ""
    number: int = 0
    called: tuple[int, ...] = ()


class HloScopes:
    """Looks up instructions; a module is decoded when it is first asked for."""

    def __init__(self, buffer: Buffer, space: Space) -> None:
        self._buffer = buffer
        self._places: dict[str, Field] = {}
        self._decoded: dict[str, dict[str, str]] = {}
        for plane in space.planes:
            if plane.name == METADATA_PLANE:
                self._places |= _modules(plane)

    def of(self, events: pl.DataFrame) -> pl.Series:
        """Return the scope of each event, as Categorical, null where none is known.

        ``events`` has the columns hlo_module, program_id and hlo_op.
        """
        keys = events.select("hlo_module", "program_id", "hlo_op")
        distinct = keys.unique().drop_nulls(["hlo_module", "hlo_op"])
        texts = distinct.cast({"hlo_module": pl.String, "hlo_op": pl.String})
        scopes = pl.Series([self._scope(*row) for row in texts.rows()], dtype=pl.String)
        told = distinct.with_columns(scopes.cast(pl.Categorical()).alias("scope"))
        found = keys.join(
            told, on=keys.columns, how="left", nulls_equal=True, maintain_order="left"
        )
        return found["scope"]

    def _scope(self, module: str, program: int | None, instruction: str) -> str | None:
        for label in (f"{module}({program})", *self._labels(module)):
            if label in self._places:
                if label not in self._decoded:
                    self._decoded[label] = _decode(self._buffer, self._places[label])
                return self._decoded[label].get(instruction)
        return None

    def _labels(self, module: str) -> list[str]:
        """Return the labels of a module whose program is not told, if there is but one."""
        found = [
            label
            for label in self._places
            if label == module or ((m := _LABEL.match(label)) and m["module"] == module)
        ]
        return found if len(found) == 1 else []


def _modules(plane: Plane) -> dict[str, Field]:
    return {
        plane.event_names[event]: place
        for (event, stat), place in plane.kept_bytes.items()
        if plane.stat_names.get(stat) == _PROTO and event in plane.event_names
    }


def _decode(buffer: Buffer, proto: Field) -> dict[str, str]:
    """Return the scope of every instruction that has one.

    An instruction without one of its own, as some fusions, has that of its computation's root.
    """
    instructions: list[_Instruction] = []
    roots: dict[int, int] = {}
    try:
        for module in fields(buffer, proto.start, proto.end):
            if module.number == 1 and module.wire == LENGTH:
                for part in fields(buffer, module.start, module.end):
                    if part.number == 3 and part.wire == LENGTH:
                        _computation(buffer, part, instructions, roots)
    except WireError:
        return {}
    by_number = {each.number: each for each in instructions}
    for each in instructions:
        if not each.scope and each.called:
            root = by_number.get(roots.get(each.called[0], -1))
            each.scope = root.scope if root is not None else ""
    return {each.name: each.scope for each in instructions if each.scope}


def _computation(
    buffer: Buffer, whole: Field, instructions: list[_Instruction], roots: dict[int, int]
) -> None:
    number = root = 0
    for part in fields(buffer, whole.start, whole.end):
        if part.number == 2 and part.wire == LENGTH:
            instructions.append(_instruction(buffer, part))
        elif part.number == 5:
            number = part.signed
        elif part.number == 6:
            root = part.signed
    roots[number] = root


def _instruction(buffer: Buffer, whole: Field) -> _Instruction:
    found = _Instruction()
    for part in fields(buffer, whole.start, whole.end):
        match part.number, part.wire:
            case (1, 2):
                found.name = text(buffer, part)
            case (7, 2):
                for inner in fields(buffer, part.start, part.end):
                    if inner.number == 2 and inner.wire == LENGTH:
                        found.scope = text(buffer, inner)
            case (35, 0):
                found.number = part.signed
            case (38, 0):
                found.called = (*found.called, part.signed)
            case (38, 2):
                found.called = tuple(packed(buffer, part))
    return found
