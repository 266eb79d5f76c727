"""Reads the messages around XPlane's events: planes, lines, and the metadata with their names.

They are read field by field, so that a truncated file is read up to its end. Of lines and HLO
programs only the position in the file is kept.

Field numbers are those of ``xplane.proto`` in openxla/xla: XSpace {planes 1, errors 2, warnings 3,
hostnames 4}; XPlane {id 1, name 2, lines 3, event_metadata 4, stat_metadata 5, stats 6}; XLine
{id 1, name 2, timestamp_ns 3, events 4, duration_ps 9, display_id 10, display_name 11};
XEventMetadata {id 1, name 2, metadata 3, display_name 4, stats 5}; XStatMetadata {id 1, name 2};
XStat {metadata_id 1, double 2, uint64 3, int64 4, str 5, bytes 6, ref 7}.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from traceana.readers.source import is_text
from traceana.readers.xplane.decode import BYTES, DOUBLE, REFERENCE, STRING
from traceana.readers.xplane.wire import LENGTH, VARINT, Buffer, Field, WireError, fields, text

Value = int | float | str | bytes
_PLANES: Final = 1
_SPACE_FIELDS: Final = (1, 2, 3, 4)
_LINE_EVENTS: Final = 4
_PLANE_FIELDS: Final = frozenset({(1, VARINT), *((number, LENGTH) for number in range(2, 7))})
_LINE_FIELDS: Final = frozenset(
    {(1, VARINT), (2, LENGTH), (3, VARINT), (4, LENGTH), (9, VARINT), (10, VARINT), (11, LENGTH)}
)


class Line(msgspec.Struct):
    """One timeline; its events lie between ``begin`` and ``end``."""

    number: int = 0
    name: str = ""
    timestamp_ns: int = 0
    begin: int = 0
    end: int = 0


class Plane(msgspec.Struct):
    """One plane: its lines and metadata.

    ``kept_bytes`` holds the event metadata's stats of type bytes, by (event metadata id, stat id).
    """

    name: str = ""
    lines: list[Line] = msgspec.field(default_factory=list)
    event_names: dict[int, str] = msgspec.field(default_factory=dict)
    stat_names: dict[int, str] = msgspec.field(default_factory=dict)
    raw_stats: list[tuple[int, int, Value]] = msgspec.field(default_factory=list)
    """Stats of the plane itself: (metadata id, kind of value, value)."""
    kept_bytes: dict[tuple[int, int], Field] = msgspec.field(default_factory=dict)
    cut: bool = False
    broken: int = 0
    """Lines and metadata of a whole plane that end within a field."""
    unknown: int = 0
    """Fields that neither XPlane nor, before its first event, XLine has."""

    def stats(self) -> dict[str, Value]:
        """Return the plane's stats by name, with references resolved."""
        return {
            self.stat_names.get(number, str(number)): (
                self.stat_names.get(int(value), "") if kind == REFERENCE else value
            )
            for number, kind, value in self.raw_stats
        }


class Space(msgspec.Struct):
    """A file. ``cut``: it is truncated. ``not_text``: profiler messages that are not UTF-8."""

    planes: list[Plane] = msgspec.field(default_factory=list)
    errors: list[str] = msgspec.field(default_factory=list)
    warnings: list[str] = msgspec.field(default_factory=list)
    hostnames: list[str] = msgspec.field(default_factory=list)
    cut: bool = False
    not_text: int = 0


def read_space(buffer: Buffer) -> Space:
    """Return everything but the events.

    A truncated file is read up to its end. Raises :class:`WireError` on any other message.
    """
    space = Space()
    texts = {2: space.errors, 3: space.warnings, 4: space.hostnames}
    for part in fields(buffer, 0, buffer.size):
        if part.cut:
            space.cut = True
        if part.number not in _SPACE_FIELDS and not part.cut:
            raise WireError(f"field {part.number} is not in XSpace")
        if part.number == _PLANES and part.wire == LENGTH:
            plane = _plane(buffer, part)
            space.planes.append(plane)
            space.cut |= plane.cut
        elif part.number in texts and part.wire == LENGTH:
            texts[part.number].append(text(buffer, part))
            # A plane whose tag was damaged is read as a warning.
            content = buffer.data[part.start : part.end].tobytes()
            space.not_text += not part.cut and not is_text(content)
    return space


def _plane(buffer: Buffer, whole: Field) -> Plane:
    plane = Plane(cut=whole.cut)
    for part in fields(buffer, whole.start, whole.end):
        plane.cut |= part.cut
        # A line whose tag was damaged reads as a field of another number.
        plane.unknown += not part.cut and (part.number, part.wire) not in _PLANE_FIELDS
        match part.number, part.wire:
            case (2, 2):
                plane.name = text(buffer, part)
            case (3, 2):
                line, broken, unknown = read_line(buffer, part.start, part.end)
                plane.lines.append(line)
                plane.broken += broken and not part.cut
                plane.unknown += unknown
            case (4, 2):
                _event_metadata(buffer, part, plane)
            case (5, 2):
                _stat_metadata(buffer, part, plane)
            case (6, 2):
                plane.raw_stats.append(_stat(buffer, part))
                inside = fields(buffer, part.start, part.end)
                plane.broken += not part.cut and any(field.cut for field in inside)
    return plane


def in_line(field: Field) -> bool:
    """Return whether XLine has such a field."""
    return (field.number, field.wire) in _LINE_FIELDS


def read_line(buffer: Buffer, start: int, end: int) -> tuple[Line, bool, int]:
    """Return a line, read up to its first event; whether it ends within a field; unknown fields.

    Later fields are for display only.
    """
    line = Line(begin=end, end=end)
    at, unknown = start, 0
    for part in fields(buffer, start, end):
        match part.number, part.wire:
            case (1, 0):
                line.number = part.signed
            case (2, 2):
                line.name = text(buffer, part)
            case (3, 0):
                line.timestamp_ns = part.signed
            case (number, _) if number == _LINE_EVENTS:
                line.begin = at
                break
        if part.cut:
            return line, True, unknown
        unknown += not in_line(part)
        at = part.end
    return line, False, unknown


def _entry(buffer: Buffer, entry: Field, plane: Plane) -> tuple[int, list[Field] | None]:
    """Return the key of a map entry and its value's fields, None where it has no whole value.

    A damaged length or tag leaves a field that is cut, or one that no entry has: ``plane`` counts
    them.
    """
    key, value, whole = 0, None, True
    for part in fields(buffer, entry.start, entry.end):
        whole &= not part.cut
        if part.number == 1 and part.wire == VARINT:
            key = part.signed
        elif part.number == 2 and part.wire == LENGTH:
            value = part
        else:
            whole = False
    inside = None
    if value is None or value.cut:
        whole = False
    else:
        inside = [*fields(buffer, value.start, value.end)]
        whole &= not any(field.cut for field in inside)
    plane.broken += not whole and not entry.cut
    return key, inside


def _event_metadata(buffer: Buffer, entry: Field, plane: Plane) -> None:
    key, value = _entry(buffer, entry, plane)
    if value is None:
        return
    for part in value:
        if part.number == 2 and part.wire == LENGTH:
            plane.event_names[key] = text(buffer, part)
        elif part.number == 5 and part.wire == LENGTH:
            number, content = 0, None
            for field in fields(buffer, part.start, part.end):
                if field.number == 1:
                    number = field.signed
                elif field.number == BYTES and field.wire == LENGTH and not field.cut:
                    content = field
            if content is not None:
                plane.kept_bytes[key, number] = content
    plane.event_names.setdefault(key, "")


def _stat_metadata(buffer: Buffer, entry: Field, plane: Plane) -> None:
    key, value = _entry(buffer, entry, plane)
    if value is None:
        return
    plane.stat_names.setdefault(key, "")
    for part in value:
        if part.number == 2 and part.wire == LENGTH:
            plane.stat_names[key] = text(buffer, part)


def _stat(buffer: Buffer, stat: Field) -> tuple[int, int, Value]:
    number, kind = 0, 0
    value: Value = 0
    for part in fields(buffer, stat.start, stat.end):
        if part.number == 1:
            number = part.signed
            continue
        kind = part.number
        match part.number:
            case _ if part.number == DOUBLE:
                value = float(struct.unpack("<d", part.value.to_bytes(8, "little"))[0])
            case _ if part.number == STRING:
                value = text(buffer, part)
            case _ if part.number == BYTES:
                value = buffer.data[part.start : part.end].tobytes()
            case 3 | 7:
                value = part.value
            case _:
                value = part.signed
    return number, kind, value
