"""The wire format of protocol buffers: the fields of a message, one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.integer[Any]]
"""Row numbers of 32 bits, times of 64."""
Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
PADDING: Final = 320
"""Zero bytes after the content: the scanner reads ahead at its end."""
VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
_LONGEST: Final = 10


class Buffer(msgspec.Struct, frozen=True):
    """``size`` bytes of content in ``data``, then :data:`PADDING`.

    ``view`` is the same content, for fast access to single bytes.
    """

    data: Bytes
    size: int
    view: memoryview

    @classmethod
    def of(cls, parts: Iterable[bytes], expected: int = 0) -> Buffer:
        """Return the concatenation of ``parts``; ``expected`` bytes are allocated at first."""
        store = np.zeros(expected + PADDING, dtype=np.uint8)
        size = 0
        for part in parts:
            end = size + len(part)
            if end + PADDING > len(store):
                store = np.concatenate((store, np.zeros(max(end, len(store)), dtype=np.uint8)))
            store[size:end] = np.frombuffer(part, dtype=np.uint8)
            size = end
        return cls(store, size, memoryview(store.data))


class WireError(ValueError):
    """The bytes are not a valid message."""


class Field(NamedTuple):
    """One field: its number, wire type, and content.

    ``value`` is the unsigned integer of a varint or fixed field; the content of a length-delimited
    field lies between ``start`` and ``end``. ``cut``: the message ends within the field.
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

    Raises :class:`WireError` on an invalid tag.
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
        raise WireError(f"invalid field at byte {at}")
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
            raise WireError(f"invalid wire type at byte {at}")
    return Field(number, wire, value, min(at, end), min(after, end), cut=after > end)


def _varint(buffer: Buffer, at: int, end: int) -> tuple[int, int]:
    """Return (value, the byte after it), which is beyond ``end`` where the varint is cut."""
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
    raise WireError(f"invalid integer at byte {at}")


def text(buffer: Buffer, field: Field) -> str:
    """Return a string field; bytes that are not UTF-8 become U+FFFD."""
    return buffer.data[field.start : field.end].tobytes().decode("utf-8", "replace")


TAG: Final = 0x22
"""Field 4 with a length: ``XLine.events``, and ``XEvent.stats``."""
