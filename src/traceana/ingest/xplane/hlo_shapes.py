"""Shapes and element types of XLA's values.

ShapeProto {element_type 2, dimensions 3, tuple_shapes 4}, and the numbers of PrimitiveType, as in
``xla_data.proto`` of openxla/xla. Names of types are those that HLO's text has.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Final

import msgspec

from traceana.ingest.xplane.buffer import Buffer
from traceana.ingest.xplane.wire import Field, fields, packed

_DEEPEST: Final = 16
"""Tuples within tuples; what lies deeper is shown as empty."""
_HIGHEST_RANK: Final = 64
"""Of arrays whose elements are counted: a product of a million sizes takes hours."""
_TUPLE: Final = 13
_TYPES: Final = {
    1: "pred",
    2: "s8",
    3: "s16",
    4: "s32",
    5: "s64",
    6: "u8",
    7: "u16",
    8: "u32",
    9: "u64",
    10: "f16",
    11: "f32",
    12: "f64",
    14: "opaque",
    15: "c64",
    16: "bf16",
    17: "token",
    18: "c128",
    19: "f8e5m2",
    20: "f8e4m3fn",
    21: "s4",
    22: "u4",
    23: "f8e4m3b11fnuz",
    24: "f8e5m2fnuz",
    25: "f8e4m3fnuz",
    26: "s2",
    27: "u2",
    28: "f8e4m3",
    29: "f8e3m4",
    30: "s1",
    31: "u1",
    32: "f4e2m1fn",
    33: "f8e8m0fnu",
    34: "buffer",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """``sizes`` and ``types`` are JSON text: of an array ``[4,3]`` and ``"f32"``, of a tuple a list
    of those. ``elements`` is the number of an array's, None of a tuple.
    """

    sizes: str
    types: str
    elements: int | None = None


UNKNOWN: Final = Shape("null", "null")


class Shapes:
    """Reads shapes; equal bytes, of which a program has many, are read once."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._known: dict[bytes, Shape] = {}

    def of(self, whole: Field) -> Shape:
        """Return a shape; raises ``WireError`` where it is none."""
        key = self._buffer.data[whole.start : whole.end].tobytes()
        if (found := self._known.get(key)) is None:
            sizes, types = self._parts(whole, 0)
            counted = isinstance(types, str) and len(sizes) <= _HIGHEST_RANK
            elements = prod(sizes) if counted else None
            found = Shape(_json(sizes), _json(types), elements)
            self._known[key] = found
        return found

    def _parts(self, whole: Field, depth: int) -> tuple[list[Any], Any]:
        number, sizes = 0, []
        parts: list[tuple[list[Any], Any]] = []
        for part in fields(self._buffer, whole.start, whole.end):
            match part.number, part.wire:
                case (2, 0):
                    number = part.value
                case (3, 0):
                    sizes.append(part.signed)
                case (3, 2):
                    sizes += packed(self._buffer, part)
                case (4, 2) if depth < _DEEPEST:
                    parts.append(self._parts(part, depth + 1))
        if number == _TUPLE:
            return [size for size, _ in parts], [kind for _, kind in parts]
        return sizes, _TYPES.get(number, "unknown")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
