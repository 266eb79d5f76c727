"""Decodes XPlane's events and stats, thousands at once, field by field.

All profilers write the fields of an event in the order of their numbers, and of a stat its id and
then its value. :func:`events` decodes this order; any other message (aggregates, fields of a newer
schema, integers longer than needed, damage) goes to :func:`any_events` and :func:`any_stats`, which
accept any order.

Field numbers are those of ``xplane.proto`` in openxla/xla: XEvent {metadata_id 1, offset_ps 2,
duration_ps 3, stats 4, num_occurrences 5}; XStat {metadata_id 1, double 2, uint64 3, int64 4,
str 5, bytes 6, ref 7}.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import numpy as np

from traceana.ingest.xplane.wire import (
    BEYOND,
    FIXED32,
    FIXED64,
    LENGTH,
    TAG,
    VARINT,
    Buffer,
    Bytes,
    Ints,
    Mask,
    Numbers,
    Records,
    Words,
)

# Tags: the number of a field and its wire type.
METADATA_ID: Final = 0x08
OFFSET_PS: Final = 0x10
DURATION_PS: Final = 0x18
STAT: Final = 0x22
OCCURRENCES: Final = 0x28

# Kinds of values of a stat: the numbers of their fields.
DOUBLE: Final = 2
UNSIGNED: Final = 3
SIGNED: Final = 4
STRING: Final = 5
BYTES: Final = 6
REFERENCE: Final = 7
_GROUP: Final = 3
"""A wire type that no field of XPlane has."""
_WIRES: Final = np.array(
    [_GROUP, _GROUP, FIXED64, VARINT, VARINT, LENGTH, LENGTH, VARINT], dtype=np.uint64
)
"""The wire type of each kind; a field of another one is unknown, as in every protobuf decoder."""
_MOST_FIELDS: Final = 4_096
"""Fields of an event; each takes a pass over the block. Profilers write some dozens."""

_BLOCK: Final = 1 << 14
"""Messages decoded at once: the columns of so many stay in the processor's cache."""
_DENSE: Final = 1 << 20
"""Numbers below this are looked up in a table, others by binary search."""


class Events(msgspec.Struct, frozen=True):
    """Events of some runs.

    ``sound`` is false for damaged events, ``aggregate`` true for aggregates of several events.
    """

    run: Numbers
    metadata_id: Ints
    offset_ps: Ints
    duration_ps: Ints
    aggregate: Mask
    sound: Mask

    def __len__(self) -> int:
        return len(self.run)

    def part(self, rows: slice) -> Events:
        """Return some of the events."""
        return Events(
            self.run[rows],
            self.metadata_id[rows],
            self.offset_ps[rows],
            self.duration_ps[rows],
            self.aggregate[rows],
            self.sound[rows],
        )


class Stats(msgspec.Struct, frozen=True):
    """Stats of events.

    ``owner`` is the event's row, ``index`` that of the stat among the wanted ids. ``kind`` is
    the number of the value's field. ``value`` holds its bits; for a string, the position of its
    first byte, and ``length`` its number of bytes.
    """

    owner: Numbers
    index: Numbers
    kind: Bytes
    value: Words
    length: Numbers

    def take(self, rows: Numbers | slice) -> Stats:
        """Return some of the stats."""
        return Stats(
            self.owner[rows],
            self.index[rows],
            self.kind[rows],
            self.value[rows],
            self.length[rows],
        )

    def followed_by(self, *others: Stats) -> Stats:
        """Return these stats, and then the others."""
        if not others:
            return self
        parts = (self, *others)
        return Stats(
            np.concatenate([one.owner.astype(np.uint32, copy=False) for one in parts]),
            np.concatenate([one.index for one in parts]),
            np.concatenate([one.kind for one in parts]),
            np.concatenate([one.value for one in parts]),
            np.concatenate([one.length.astype(np.uint32, copy=False) for one in parts]),
        )


class Known:
    """Sorted numbers: metadata ids of events or stats."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self.numbers: Ints = np.array(sorted(numbers), dtype=np.int64)
        self._table: Numbers | None = None
        if len(self) and self.numbers[0] >= 0 and self.numbers[-1] < _DENSE:
            self._table = np.full(int(self.numbers[-1]) + 2, len(self), dtype=np.uint32)
            self._table[self.numbers] = np.arange(len(self))

    def __len__(self) -> int:
        return len(self.numbers)

    def indices(self, ids: Ints) -> Numbers:
        """Return the index of each id among the numbers; their count for unknown ids."""
        if not len(self):
            return np.zeros(len(ids), dtype=np.uint32)
        if self._table is not None:
            # A negative id is a huge unsigned one.
            most = np.uint64(len(self._table) - 1)
            return self._table[np.minimum(ids.view(np.uint64), most).view(np.int64)]
        index = np.minimum(np.searchsorted(self.numbers, ids), len(self) - 1)
        return np.where(self.numbers[index] == ids, index, len(self)).astype(np.uint32)


def events(
    buffer: Buffer, records: Records, wanted: Known, declared: Known
) -> Iterator[tuple[Events, Stats]]:
    """Yield the events in ``records`` and their stats, some ten thousands at a time.

    ``wanted`` are the metadata ids of the stats to decode; their owners are rows of the events of
    the same block. Others are passed over unless they are not ``declared`` by the plane: such an id
    can be damage that swallowed the tag of the value.
    """
    for begin in range(0, len(records.at), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        yield _events(buffer, records.at[part], records.run[part], wanted, declared)


def _events(
    buffer: Buffer, at: Ints, run: Ints, wanted: Known, declared: Known
) -> tuple[Events, Stats]:
    _, start, end = buffer.records(at, TAG)
    metadata_id, at = _number(buffer, start, end, METADATA_ID)
    offset_ps, at = _number(buffer, at, end, OFFSET_PS)
    duration_ps, at = _number(buffer, at, end, DURATION_PS)
    nested = _Nested(buffer, at, end)
    sound, aggregate = np.ones(len(at), dtype=np.bool_), np.zeros(len(at), dtype=np.bool_)
    odd = np.flatnonzero(nested.broken)
    if len(odd):
        found = any_events(buffer, start[odd], end[odd])
        metadata_id[odd] = found.numbers[METADATA_ID]
        offset_ps[odd] = found.numbers[OFFSET_PS]
        duration_ps[odd] = found.numbers[DURATION_PS]
        aggregate[odd] = found.numbers[OCCURRENCES] != 0
        sound[odd] = found.sound
        nested.replace(odd[found.owner], found.start, found.end)
    stats = _stats(buffer, nested, wanted, declared, sound)
    return Events(run, metadata_id, offset_ps, duration_ps, aggregate, sound), stats


def _number(buffer: Buffer, at: Ints, end: Ints, tag: int) -> tuple[Ints, Ints]:
    """Return the values of the field ``tag`` where it is at ``at``, else 0, and the byte after."""
    found, value, after = buffer.field(at)
    here = (found == np.uint64(tag)) & (at < end)
    if here.all():
        return value.view(np.int64), after
    return (value * here).view(np.int64), np.where(here, after, at)


class _Nested:
    """Positions of the events' stats, which lie between ``at`` and ``end`` of each event.

    ``broken`` are the events with other fields among them: some of their stats may be missing.
    """

    def __init__(self, buffer: Buffer, at: Ints, end: Ints) -> None:
        nothing = np.zeros(0, dtype=np.int64)
        owners, starts, ends = [nothing], [nothing], [nothing]
        self.broken: Mask = at > end
        rows = np.flatnonzero(at < end)
        at, last = at[rows], end[rows]
        for _ in range(_MOST_FIELDS):
            if not len(rows):
                break
            is_stat, start, after = buffer.records(at, STAT)
            is_stat &= after <= last
            if not is_stat.all():
                self.broken[rows[~is_stat]] = True
                kept = np.flatnonzero(is_stat)
                rows, start, after, last = rows[kept], start[kept], after[kept], last[kept]
            owners.append(rows)
            starts.append(start)
            ends.append(after)
            going = after < last
            if not going.all():
                kept = np.flatnonzero(going)
                rows, after, last = rows[kept], after[kept], last[kept]
            at = after
        self.broken[rows] = True
        self.owner = np.concatenate(owners)
        self.start = np.concatenate(starts)
        self.end = np.concatenate(ends)

    def replace(self, owner: Ints, start: Ints, end: Ints) -> None:
        """Replace the stats of the broken events."""
        kept = ~self.broken[self.owner]
        self.owner = np.concatenate((self.owner[kept], owner))
        self.start = np.concatenate((self.start[kept], start))
        self.end = np.concatenate((self.end[kept], end))


def _stats(buffer: Buffer, nested: _Nested, wanted: Known, declared: Known, sound: Mask) -> Stats:
    """Return the wanted stats; owners of damaged ones become false in ``sound``."""
    owner, start, end = nested.owner, nested.start, nested.end
    metadata_id, at = _number(buffer, start, end, METADATA_ID)
    index = wanted.indices(metadata_id)
    # A stat that does not begin with its id may have any.
    checked = (index < len(wanted)) | (at == start)
    others = np.flatnonzero(~checked)
    checked[others] = declared.indices(metadata_id[others]) == len(declared)
    kept = np.flatnonzero(checked)
    if len(kept) < len(owner):
        owner, start, end, at, index = owner[kept], start[kept], end[kept], at[kept], index[kept]
    tag, value, after = buffer.field(at)
    value, length, after = _content(buffer, at, tag, value, after)
    number, wire = tag >> np.uint64(3), tag & np.uint64(7)
    kind = number.astype(np.uint8)
    regular = (at > start) & (after == end) & (number <= REFERENCE)
    regular &= _WIRES[np.minimum(number, REFERENCE)] == wire
    if not regular.all():
        odd = np.flatnonzero(~regular)
        found = any_stats(buffer, start[odd], end[odd])
        index[odd] = wanted.indices(found.metadata_id)
        kind[odd], value[odd], length[odd] = found.kind, found.value, found.length
        sound[owner[odd[~found.sound]]] = False
    kept = np.flatnonzero(index < len(wanted))
    if len(kept) < len(owner):
        owner, index, kind = owner[kept], index[kept], kind[kept]
        value, length = value[kept], length[kept]
    return Stats(owner, index, kind, value, length)


def _content(
    buffer: Buffer, at: Ints, tag: Words, value: Words, after: Ints
) -> tuple[Words, Ints, Ints]:
    """Return value, length and end of fields of any wire type.

    The value of a length-delimited field is the position of its content.
    """
    length = np.zeros(len(at), dtype=np.int64)
    wire = tag & np.uint64(7)
    texts = np.flatnonzero(wire == LENGTH)
    if len(texts):
        length[texts] = np.minimum(value[texts], BEYOND).view(np.int64)
        value[texts] = after[texts].view(np.uint64)
        after[texts] += length[texts]
    fixed = np.flatnonzero(wire == FIXED64)
    if len(fixed):
        value[fixed] = buffer.words[at[fixed] + 1]
        after[fixed] = at[fixed] + 9
    return value, length, after


class AnyEvents(msgspec.Struct, frozen=True):
    """Numbers of events by tag, the sound events, and the positions of their stats."""

    numbers: dict[int, Ints]
    sound: Mask
    owner: Ints
    start: Ints
    end: Ints


class AnyStats(msgspec.Struct, frozen=True):
    """Stats as in :class:`Stats`, by their metadata ids."""

    metadata_id: Ints
    kind: Bytes
    value: Words
    length: Ints
    sound: Mask


def any_events(buffer: Buffer, start: Ints, end: Ints) -> AnyEvents:
    """Return the events whose contents lie between ``start`` and ``end``."""
    numbers = {
        tag: np.zeros(len(start), dtype=np.int64)
        for tag in (METADATA_ID, OFFSET_PS, DURATION_PS, OCCURRENCES)
    }
    sound = np.ones(len(start), dtype=np.bool_)
    nothing = np.zeros(0, dtype=np.int64)
    owners, starts, ends = [nothing], [nothing], [nothing]
    for step in _steps(buffer, start, end, sound):
        for tag, here in step.by_tag():
            if tag in numbers:
                numbers[tag][step.rows[here]] = step.value[here].view(np.int64)
            elif tag == STAT:
                owners.append(step.rows[here])
                starts.append(step.at[here])
                ends.append(step.after[here])
    return AnyEvents(
        numbers, sound, np.concatenate(owners), np.concatenate(starts), np.concatenate(ends)
    )


def any_stats(buffer: Buffer, start: Ints, end: Ints) -> AnyStats:
    """Return the stats whose contents lie between ``start`` and ``end``."""
    count = len(start)
    metadata_id, length = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    kind, value = np.zeros(count, dtype=np.uint8), np.zeros(count, dtype=np.uint64)
    sound = np.ones(count, dtype=np.bool_)
    for step in _steps(buffer, start, end, sound):
        for tag, here in step.by_tag():
            rows, number = step.rows[here], tag >> 3
            if tag == METADATA_ID:
                metadata_id[rows] = step.value[here].view(np.int64)
            elif number <= REFERENCE and _WIRES[number] == tag & 7:
                kind[rows] = number
                value[rows] = step.value[here]
                if tag & 7 == LENGTH:
                    value[rows] = step.at[here].view(np.uint64)
                    length[rows] = (step.after - step.at)[here]
    return AnyStats(metadata_id, kind, value, length, sound)


class _Step(msgspec.Struct, frozen=True):
    """One field of each message: the message's row, the tag, the value, the content's position."""

    rows: Ints
    tag: Ints
    value: Words
    at: Ints
    after: Ints

    def by_tag(self) -> Iterator[tuple[int, Ints]]:
        """Yield each tag and its positions."""
        for tag in np.unique(self.tag).tolist():
            yield tag, np.flatnonzero(self.tag == tag)


def _steps(buffer: Buffer, start: Ints, end: Ints, sound: Mask) -> Iterator[_Step]:
    """Yield the first field of every message, then the second of those that have one, and so on.

    Truncated messages and those with an invalid field or too many become false in ``sound``.
    """
    rows = np.flatnonzero(start < end)
    at, last = start[rows], end[rows]
    for _ in range(_MOST_FIELDS):
        if not len(rows):
            return
        step, known = _fields(buffer, rows, at)
        fits = known & (step.after <= last)
        sound[rows[~fits]] = False
        step = _Step(
            step.rows[fits], step.tag[fits], step.value[fits], step.at[fits], step.after[fits]
        )
        yield step
        last = last[fits]
        going = step.after < last
        rows, at, last = step.rows[going], step.after[going], last[going]
    sound[rows] = False


def _fields(buffer: Buffer, rows: Ints, at: Ints) -> tuple[_Step, Mask]:
    """Return the fields at ``at``, and which of them are valid."""
    wide, width = buffer.varints(at)
    tag, content = np.minimum(wide, BEYOND).view(np.int64), at + width
    value, width = buffer.varints(content)
    wire = tag & 7
    has_length = wire == LENGTH
    after = content + width
    first = np.where(has_length, after, content)
    after = after + np.where(has_length, np.minimum(value, BEYOND).view(np.int64), 0)
    fixed = np.where(wire == FIXED64, 8, np.where(wire == FIXED32, 4, 0))
    after = np.where(fixed > 0, content + fixed, after)
    value = np.where(fixed > 0, buffer.words[content], value)
    known = (wire == VARINT) | (wire == FIXED64) | has_length | (wire == FIXED32)
    return _Step(rows, tag, value, first, after), known & (tag >= 8)
