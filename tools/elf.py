"""The few parts of the ELF format needed to read a shared library's constant strings."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_MAGIC = b"\x7fELF"
_PRINTABLE = re.compile(rb"[\x20-\x7e]{4,}\x00")


class NotAnElfError(ValueError):
    """The bytes are not a 64-bit little-endian ELF file."""


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    offset: int
    size: int


def sections(image: bytes | memoryview) -> Iterator[Section]:
    """Yield the sections of a 64-bit little-endian ELF ``image``. Raises :class:`NotAnElfError`."""
    if bytes(image[:6]) != _MAGIC + b"\x02\x01":
        raise NotAnElfError("not a 64-bit little-endian ELF file")
    try:
        (table,) = struct.unpack_from("<Q", image, 0x28)
        entry_size, count, names_at = struct.unpack_from("<HHH", image, 0x3A)
        entries = [
            struct.unpack_from("<IIQQQQ", image, table + number * entry_size)
            for number in range(count)
        ]
    except struct.error as error:
        raise NotAnElfError(f"section table is truncated: {error}") from None
    if not entries:
        return
    names = bytes(image[entries[names_at][4] : entries[names_at][4] + entries[names_at][5]])
    for name_at, _kind, _flags, _address, offset, size in entries:
        end = names.index(b"\0", name_at)
        yield Section(names[name_at:end].decode("ascii", "replace"), offset, size)


def constant_strings(image: bytes | memoryview) -> Iterator[str]:
    """Yield the NUL-terminated printable strings of ``.rodata``, in the order of the file."""
    for section in sections(image):
        if section.name.startswith(".rodata"):
            data = bytes(image[section.offset : section.offset + section.size])
            for found in _PRINTABLE.finditer(data):
                yield found[0][:-1].decode("ascii")
