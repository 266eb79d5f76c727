"""XPlane files as trees of protobuf fields: taken apart, written again, and judged.

Independent of the reader: a plain walk with the message types of xplane.proto and hlo.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MESSAGES: Final[dict[str, dict[int, str]]] = {
    "space": {1: "plane"},
    "plane": {3: "line", 4: "event entry", 5: "stat entry", 6: "stat"},
    "line": {4: "event"},
    "event": {4: "stat"},
    "event entry": {2: "event metadata"},
    "event metadata": {5: "stat"},
    "stat entry": {2: "stat metadata"},
    "stat": {6: "program"},
    "program": {1: "module"},
    "module": {3: "computation"},
    "computation": {2: "instruction"},
    "instruction": {3: "shape", 7: "scope"},
    "shape": {4: "shape"},
    "stat metadata": {},
    "scope": {},
    # Perfetto's
    "packets": {1: "packet"},
    "packet": {11: "slice", 12: "interned", 60: "track"},
    "slice": {4: "annotation"},
    "interned": dict.fromkeys((1, 2, 3, 29), "interned text"),
    "track": {3: "process"},
    "annotation": {},
    "interned text": {},
    "process": {},
}
"""The fields of each message that are messages themselves."""

_GUESSED: Final = {"program"}
"""Bytes that hold a message in some stats and something else in others."""


class BrokenError(Exception):
    """The bytes are no message of their type."""


@dataclass
class Field:
    """One field: ``value`` is an integer, the bytes, or the fields of a message of type ``kind``.

    Where ``raw`` is set, it is written in place of the field.
    """

    number: int
    wire: int
    value: int | bytes | list[Field]
    kind: str = ""
    raw: bytes | None = None


def parsed(content: bytes, kind: str = "space") -> list[Field]:
    """Return the fields of ``content``, a message of type ``kind``; raises :class:`BrokenError`."""
    fields: list[Field] = []
    for number, wire, value, begin, end in _fields(content):
        if wire == 0:
            fields.append(Field(number, wire, value))
            continue
        part = content[begin:end]
        inside = MESSAGES[kind].get(number) if wire == 2 else None
        if inside is None:
            fields.append(Field(number, wire, part))
            continue
        try:
            fields.append(Field(number, wire, parsed(part, inside), inside))
        except BrokenError:
            if inside not in _GUESSED:
                raise
            fields.append(Field(number, wire, part))
    return fields


def _fields(content: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the number, the wire type, the value and the place of each field of a message.

    The value is that of an integer, the place that of other content. Raises :class:`BrokenError`.
    """
    at, end = 0, len(content)
    while at < end:
        # Most numbers have one byte, and a space has millions.
        tag, at = (content[at], at + 1) if content[at] < 0x80 else _varint(content, at)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise BrokenError("field 0")
        if wire == 0:
            short = at < end and content[at] < 0x80
            value, at = (content[at], at + 1) if short else _varint(content, at)
            yield number, wire, value, at, at
            continue
        if wire == 2:
            size, at = _varint(content, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise BrokenError(f"wire type {wire}")
        if at + size > end:
            raise BrokenError("a length beyond the end")
        yield number, wire, 0, at, at + size
        at += size


def encoded(fields: list[Field]) -> bytes:
    """Return the bytes of ``fields``."""
    parts = []
    for field in fields:
        if field.raw is not None:
            parts.append(field.raw)
            continue
        parts.append(varint(field.number << 3 | field.wire))
        if isinstance(field.value, int):
            parts.append(varint(field.value))
            continue
        content = encoded(field.value) if isinstance(field.value, list) else field.value
        parts += [varint(len(content)), content] if field.wire == 2 else [content]
    return b"".join(parts)


def varint(value: int) -> bytes:
    """Return an integer as protobuf writes it; negative ones in ten bytes."""
    value &= (1 << 64) - 1
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(content):
            raise BrokenError("ends inside a number")
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
    raise BrokenError("a number of more than ten bytes")


def walked(fields: list[Field]) -> Iterator[tuple[list[Field], Field]]:
    """Yield every field at every depth, with the list that holds it."""
    for field in fields:
        yield fields, field
        if isinstance(field.value, list):
            yield from walked(field.value)


def shortened(fields: list[Field], events: int) -> list[Field]:
    """Return a space with the first ``events`` of each line, and programs of moderate size."""
    kept: list[Field] = []
    seen = 0
    for field in fields:
        if field.kind == "event":
            seen += 1
            if seen > events:
                continue
        if isinstance(field.value, list):
            if field.kind == "event entry" and len(encoded(field.value)) > 60_000:
                continue
            inside = shortened(field.value, events)
            kept.append(Field(field.number, field.wire, inside, field.kind))
        else:
            kept.append(field)
    return kept


def event_count(content: bytes) -> int | None:
    """Return the events in a sound space, of any wire type; None where it is broken."""
    try:
        return _counted(content, "space")
    except BrokenError:
        return None


def _counted(content: bytes, kind: str) -> int:
    """Return the events in a message, without making fields of it: it may have millions."""
    inside = MESSAGES[kind]
    events = 0
    for number, wire, _, begin, end in _fields(content):
        events += kind == "line" and number == 4
        if wire == 2 and number in inside and begin < end:
            try:
                events += _counted(content[begin:end], inside[number])
            except BrokenError:
                if inside[number] not in _GUESSED:
                    raise
    return events
