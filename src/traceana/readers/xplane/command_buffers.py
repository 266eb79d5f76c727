"""The instructions of kernels that XLA runs from a command buffer, a CUDA or HIP graph.

All kernels of a launch have the buffer's name as ``hlo_op``, and the program has no instruction of
that name (openxla/xprof, issues 2544 and 3070). What they are follows from the program:

- A kernel that XLA generated has its instruction's name, with ``_`` for what no symbol may hold.
- XLA compiles equal fusions once: the kernel has the name of the first one, and runs for the others
  in the order of the program's schedule.
- Kernels of libraries and collectives are those of the calls that stand between the instructions
  around them.

Where that leaves a choice, a kernel gets no instruction.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

_NO_SYMBOL: Final = re.compile(r"[^A-Za-z0-9_]")
_CODE_OBJECT: Final = ".kd"
"""The end of the names of AMD's kernels."""
_COLLECTIVE_KERNEL: Final = re.compile(r"^(?:nccl|rccl|mscclKernel)")
_COLLECTIVE: Final = re.compile(r"^(?:all-|reduce-scatter|collective-|ragged-all)")
_CALLS: Final = ("library", "collective")


class Scheduled(NamedTuple):
    """An instruction that may run kernels; ``group`` is what runs its computation.

    Within a group rows are in the order of the schedule.
    """

    row: int
    group: int | None
    name: str
    opcode: str
    shapes: str

    @property
    def kind(self) -> str:
        """What makes its kernels: XLA (``generated``), a ``library`` or ``collective`` call."""
        if self.opcode == "custom-call":
            return "library"
        return "collective" if _COLLECTIVE.match(self.opcode) else "generated"

    @property
    def alike(self) -> tuple[int | None, str]:
        """What equal fusions have in common."""
        return self.group, self.shapes


def symbol(name: str) -> str:
    """Return ``name`` as XLA names kernels."""
    return _NO_SYMBOL.sub("_", name.removesuffix(_CODE_OBJECT))


class CommandBuffers(msgspec.Struct, frozen=True):
    """The instructions of a program, for lookups in a time that does not grow with it."""

    by_name: dict[str, list[Scheduled]]
    """Instructions by the symbol of their kernel."""
    nameless: dict[tuple[int | None, str], list[int]]
    """Rows of fusions without a kernel of their name, by what equal fusions have in common."""
    calls: dict[tuple[int | None, str], list[int]]
    """Rows of calls by group and kind."""

    @classmethod
    def of(cls, instructions: Iterable[Scheduled], kernels: Iterable[str]) -> CommandBuffers:
        """Return the ``instructions`` of a program whose kernels have the names ``kernels``."""
        seen = {symbol(name) for name in kernels}
        by_name, nameless, calls = defaultdict(list), defaultdict(list), defaultdict(list)
        for instruction in instructions:
            name, kind = symbol(instruction.name), instruction.kind
            by_name[name].append(instruction)
            if kind in _CALLS:
                calls[instruction.group, kind].append(instruction.row)
            elif instruction.opcode == "fusion" and name not in seen:
                nameless[instruction.alike].append(instruction.row)
        return cls(dict(by_name), dict(nameless), dict(calls))

    def rows(self, kernels: Sequence[str | None], *, whole: bool) -> list[int | None]:
        """Return the row of the instruction of each of the ``kernels`` of a launch, in their order.

        A name is None for a copy. ``whole`` tells whether all kernels of the launch are there.
        """
        places: dict[str, list[int]] = defaultdict(list)
        for place, name in enumerate(kernels):
            if name is not None:
                places[symbol(name)].append(place)
        rows: list[int | None] = [None] * len(kernels)
        groups: dict[int, int | None] = {}
        for name, places_of_name in places.items():
            for place, (row, group) in zip(
                places_of_name, self._runs(name, len(places_of_name)), strict=False
            ):
                rows[place], groups[place] = row, group
        self._between(rows, groups, kernels, whole=whole)
        return rows

    def _runs(self, name: str, times: int) -> list[tuple[int, int | None]]:
        """Return row and group of the instructions for which the kernel ``name`` ran so many times;
        nothing where they are unknown."""
        instructions = self.by_name.get(name, [])
        if len(instructions) != 1 or instructions[0].kind != "generated":
            return []
        (first,) = instructions
        equal_fusions = self.nameless.get(first.alike, []) if first.opcode == "fusion" else []
        later = bisect_right(equal_fusions, first.row)
        if later == len(equal_fusions):
            return [(first.row, first.group)] * times
        if len(equal_fusions) - later + 1 != times:
            return []
        return [(row, first.group) for row in (first.row, *equal_fusions[later:])]

    def _between(
        self,
        rows: list[int | None],
        groups: dict[int, int | None],
        kernels: Sequence[str | None],
        *,
        whole: bool,
    ) -> None:
        """Add the calls of libraries and collectives between the ``rows`` instructions.

        ``groups`` are those of the instructions by place; the one with most of them counts.
        """
        if not groups:
            return
        ((group, _),) = Counter(groups.values()).most_common(1)
        anchors = [
            (place, row)
            for place, row in enumerate(rows)
            if row is not None and groups[place] == group
        ]
        if any(later <= earlier for (_, earlier), (_, later) in pairwise(anchors)):
            return
        if whole:
            anchors = [(-1, -1), *anchors, (len(kernels), _AFTER_ALL)]
        for (begin, first), (end, last) in pairwise(anchors):
            for kind in _CALLS:
                unknown = [
                    place
                    for place in range(begin + 1, end)
                    if rows[place] is None and self._kernel_kind(kernels[place]) == kind
                ]
                calls = self.calls.get((group, kind), [])
                since, until = bisect_right(calls, first), bisect_right(calls, last)
                if until - since == 1:
                    called = [calls[since]] * len(unknown)
                elif until - since == len(unknown):
                    called = calls[since:until]
                else:
                    continue
                for place, row in zip(unknown, called, strict=True):
                    rows[place] = row

    def _kernel_kind(self, name: str | None) -> str | None:
        if name is None or symbol(name) in self.by_name:
            return None
        return "collective" if _COLLECTIVE_KERNEL.match(name) else "library"


_AFTER_ALL: Final = 1 << 62
