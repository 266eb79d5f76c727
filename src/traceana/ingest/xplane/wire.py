"""Protocol buffers' wire format, field by field: for the messages of which there are few.

Events and their stats, of which there are millions, go through ``runs.py`` and ``decode.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from traceana.ingest.xplane.buffer import Buffer

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5
_LONGEST: Final = 10


class WireError(ValueError):
    """The bytes are no message."""


class Field(NamedTuple):
    """One field: its number, wire type, and where its content lies.

    ``value`` is the unsigned integer of a varint or a fixed field; a field of a length has it in
    ``start`` to ``end``. ``cut``: the message ends before the field does.
    """

    number: int
    wire: int
    value: int
    start: int
    end: int
    cut: bool = False

    @property
    def signed(self) -> int:
        """The value as an int64."""
        return self.value - (1 << 64) if self.value >> 63 else self.value


def fields(buffer: Buffer, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message in ``start`` to ``end``; the last one may be cut.

    Raises :class:`WireError` where a tag is none.
    """
    at = start
    while at < end:
        field = _field(buffer, at, end)
        yield field
        at = field.end


def _field(buffer: Buffer, at: int, end: int) -> Field:
    tag, at = _varint(buffer, at, end)
    if at > end:
        return Field(0, VARINT, 0, end, end, cut=True)
    number, wire = tag >> 3, tag & 7
    if not number:
        raise WireError(f"no field at byte {at}")
    match wire:
        case 0:
            value, after = _varint(buffer, at, end)
        case 1 | 5:
            after = at + (8 if wire == FIXED64 else 4)
            value = int.from_bytes(buffer.data[at:after].tobytes(), "little")
        case 2:
            value, at = _varint(buffer, at, end)
            after = at + value
        case _:
            raise WireError(f"no wire type at byte {at}")
    return Field(number, wire, value, min(at, end), min(after, end), cut=after > end)


def _varint(buffer: Buffer, at: int, end: int) -> tuple[int, int]:
    """Return (value, byte behind it); that byte lies behind ``end`` where the varint is cut."""
    if at >= end:
        return 0, end + 1
    value = buffer.view[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for i in range(1, _LONGEST):
        if at + i >= end:
            return 0, end + 1
        byte = buffer.view[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + i + 1
    raise WireError(f"no integer at byte {at}")


def text(buffer: Buffer, field: Field) -> str:
    """Return a string field; what is no UTF-8 in it is replaced."""
    return buffer.data[field.start : field.end].tobytes().decode("utf-8", "replace")


def packed(buffer: Buffer, field: Field) -> list[int]:
    """Return the integers of a packed repeated field."""
    numbers, at = [], field.start
    while at < field.end:
        value, at = _varint(buffer, at, field.end)
        numbers.append(value)
    return numbers
