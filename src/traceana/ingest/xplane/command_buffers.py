"""The instructions of kernels that XLA runs from a command buffer, a CUDA or HIP graph.

All kernels of a launch have the buffer's name as ``hlo_op``, which is no instruction of the program
(openxla/xprof, issues 2544 and 3070). What they are follows from the program:

- A kernel that XLA generated has its instruction's name, with ``_`` for what no symbol may hold.
- XLA compiles equal fusions once: the kernel has the name of the first one, and runs for the others
  in the order of the program's schedule.
- Kernels of libraries and collectives are those of the calls that stand between the instructions
  around them.

Where that leaves a choice, a kernel gets no instruction.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

_NO_SYMBOL: Final = re.compile(r"[^A-Za-z0-9_]")
_CODE_OBJECT: Final = ".kd"
"""The end of the names of AMD's kernels."""
_COLLECTIVE_KERNEL: Final = re.compile(r"^(?:nccl|rccl|mscclKernel)")
_COLLECTIVE: Final = re.compile(r"^(?:all-|reduce-scatter|collective-|ragged-all)")


class Instruction(NamedTuple):
    """An instruction that may run kernels; ``group`` is what runs its computation."""

    row: int
    group: int | None
    name: str
    opcode: str
    shapes: str


def symbol(name: str) -> str:
    """Return ``name`` as XLA names kernels."""
    return _NO_SYMBOL.sub("_", name.removesuffix(_CODE_OBJECT))


def _kind(opcode: str) -> str:
    if opcode == "custom-call":
        return "library"
    return "collective" if _COLLECTIVE.match(opcode) else "generated"


class CommandBuffers(msgspec.Struct, frozen=True):
    """The instructions of a program by the names of their kernels, in the order of its schedule."""

    by_name: dict[str, list[Instruction]]
    by_group: dict[int | None, list[Instruction]]

    @classmethod
    def of(cls, instructions: Iterable[Instruction]) -> CommandBuffers:
        by_name, by_group = defaultdict(list), defaultdict(list)
        for one in instructions:
            by_name[symbol(one.name)].append(one)
            by_group[one.group].append(one)
        return cls(dict(by_name), dict(by_group))

    def rows(
        self, kernels: Sequence[str | None], seen: frozenset[str], *, whole: bool
    ) -> list[int | None]:
        """Return the row of the instruction of each of the ``kernels`` of a launch, in their order.

        A name is None for a copy. ``seen`` are the symbols of all kernels of the program;
        ``whole`` tells whether all kernels of the launch are there.
        """
        found: list[Instruction | None] = [None] * len(kernels)
        places: dict[str, list[int]] = defaultdict(list)
        for place, name in enumerate(kernels):
            if name is not None:
                places[symbol(name)].append(place)
        for name, own in places.items():
            named = self.by_name.get(name, [])
            if len(named) != 1 or _kind(named[0].opcode) != "generated":
                continue
            shared = [named[0], *self._compiled_once(named[0], seen)]
            if len(shared) == 1:
                shared *= len(own)
            if len(shared) == len(own):
                for place, one in zip(own, shared, strict=True):
                    found[place] = one
        self._between(found, kernels, whole=whole)
        return [None if one is None else one.row for one in found]

    def _compiled_once(self, first: Instruction, seen: frozenset[str]) -> list[Instruction]:
        """Return the later fusions like ``first`` without a kernel of their own name."""
        same = self.by_group[first.group]
        return [
            one
            for one in same[same.index(first) + 1 :]
            if (one.opcode, one.shapes) == (first.opcode, first.shapes)
            and first.opcode == "fusion"
            and symbol(one.name) not in seen
        ]

    def _between(
        self, found: list[Instruction | None], kernels: Sequence[str | None], *, whole: bool
    ) -> None:
        """Add the calls of libraries and collectives between the ``found`` instructions."""
        groups = [one.group for one in found if one is not None]
        if not groups:
            return
        most = max(set(groups), key=groups.count)
        schedule = self.by_group[most]
        number = {one.row: place for place, one in enumerate(schedule)}
        anchors = [
            (place, number[one.row])
            for place, one in enumerate(found)
            if one is not None and one.group == most
        ]
        if any(later <= earlier for (_, earlier), (_, later) in pairwise(anchors)):
            return
        if whole:
            anchors = [(-1, -1), *anchors, (len(kernels), len(schedule))]
        for (begin, first), (end, last) in pairwise(anchors):
            for kind in ("library", "collective"):
                calls = [one for one in schedule[first + 1 : last] if _kind(one.opcode) == kind]
                own = [
                    place
                    for place in range(begin + 1, end)
                    if found[place] is None and self._kernel_kind(kernels[place]) == kind
                ]
                if len(calls) == 1:
                    calls *= len(own)
                if len(calls) == len(own):
                    for place, one in zip(own, calls, strict=True):
                        found[place] = one

    def _kernel_kind(self, name: str | None) -> str | None:
        if name is None or symbol(name) in self.by_name:
            return None
        return "collective" if _COLLECTIVE_KERNEL.match(name) else "library"
