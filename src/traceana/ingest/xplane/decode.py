"""Many messages of one kind decoded in lockstep: a field of each at a time, never one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceana.ingest.xplane.buffer import Buffer, Bytes, Ints, Words
from traceana.ingest.xplane.runs import TAG, Records
from traceana.ingest.xplane.wire import FIXED32, FIXED64, LENGTH, VARINT

_BLOCK: Final = 1 << 14
"""Messages decoded at once: the columns of so many stay in the processor's cache."""
_DENSE: Final = 1 << 20
"""Ids below this are looked up in a table, others searched for."""
_BEYOND: Final = np.uint64(1 << 40)

_METADATA_ID: Final = 0x08
_OFFSET_PS: Final = 0x10
_DURATION_PS: Final = 0x18
_OCCURRENCES: Final = 0x28
_STAT: Final = TAG

_SIMPLE: Final = frozenset({_METADATA_ID, _OFFSET_PS, _DURATION_PS, _STAT, 0x20, 0x38})
"""Tags of varints and lengths that whole blocks have at one place."""

DOUBLE: Final = 2
UNSIGNED: Final = 3
SIGNED: Final = 4
STRING: Final = 5
BYTES: Final = 6
REFERENCE: Final = 7


@dataclass(frozen=True, slots=True)
class Stats:
    """Stats of messages: whose, which, and what is in them.

    ``kind`` is the number of the field that holds the value. ``value`` has its bits; of a string
    it is the first byte's place, and ``length`` how many there are.
    """

    owner: Ints
    metadata_id: Ints
    kind: Bytes
    value: Words
    length: Ints


@dataclass(frozen=True, slots=True)
class Events:
    """Events of some runs. ``occurrences`` is 0 but for events that stand for several.

    ``sound`` is false for messages that are damaged; ``stats.owner`` counts within these events.
    """

    run: Ints
    metadata_id: Ints
    offset_ps: Ints
    duration_ps: Ints
    occurrences: Ints
    sound: np.ndarray
    stats: Stats


def events(buffer: Buffer, records: Records, wanted: Ints) -> Iterator[Events]:
    """Decode the events that lie in ``records``, some ten thousands at a time.

    ``wanted`` holds the metadata ids of the stats that are to be decoded, sorted.
    """
    for begin in range(0, len(records.start), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        yield _events(buffer, records.start[part], records.end[part], records.run[part], wanted)


def _events(buffer: Buffer, start: Ints, end: Ints, run: Ints, wanted: Ints) -> Events:
    numbers = {
        tag: np.zeros(len(start), dtype=np.int64)
        for tag in (_METADATA_ID, _OFFSET_PS, _DURATION_PS, _OCCURRENCES)
    }
    sound = np.ones(len(start), dtype=np.bool_)
    owners, starts, ends = [_none()], [_none()], [_none()]
    for step in _steps(buffer, start, end, sound):
        for tag, (rows, value, at, after) in step.by_tag():
            if tag in numbers:
                numbers[tag][rows] = value.view(np.int64)
            elif tag == _STAT:
                owners.append(rows)
                starts.append(at)
                ends.append(after)
    owner, first, last = np.concatenate(owners), np.concatenate(starts), np.concatenate(ends)
    kept = _may_be(buffer, first, wanted)
    stats = _stats(buffer, owner[kept], first[kept], last[kept], sound)
    return Events(
        run,
        numbers[_METADATA_ID],
        numbers[_OFFSET_PS],
        numbers[_DURATION_PS],
        numbers[_OCCURRENCES],
        sound,
        stats,
    )


def _may_be(buffer: Buffer, start: Ints, wanted: Ints) -> Ints:
    """Return which stats are wanted, by the id that they begin with, or do not begin with one."""
    if not len(wanted):
        return _none()
    begins = buffer.data[start] == _METADATA_ID
    number, _ = buffer.varints(start + 1)
    place = places(number.view(np.int64), wanted)
    return np.flatnonzero((place < len(wanted)) | ~begins)


def places(ids: Ints, known: Ints) -> Ints:
    """Return where each id stands in ``known``, which is sorted; its length for those unknown."""
    if not len(known):
        return np.zeros(len(ids), dtype=np.int64)
    lowest, highest = int(known[0]), int(known[-1])
    if lowest >= 0 and highest < _DENSE:
        table = np.full(highest + 2, len(known), dtype=np.int64)
        table[known] = np.arange(len(known))
        # A negative id is a huge unsigned one.
        return table[np.minimum(ids.view(np.uint64), np.uint64(highest + 1)).view(np.int64)]
    place = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return np.where(known[place] == ids, place, len(known))


def _stats(buffer: Buffer, owner: Ints, start: Ints, end: Ints, sound: np.ndarray) -> Stats:
    count = len(owner)
    metadata_id, length = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    kind, bits = np.zeros(count, dtype=np.uint8), np.zeros(count, dtype=np.uint64)
    whole = np.ones(count, dtype=np.bool_)
    for step in _steps(buffer, start, end, whole):
        for tag, (rows, value, at, after) in step.by_tag():
            if tag == _METADATA_ID:
                metadata_id[rows] = value.view(np.int64)
                continue
            number, wire = tag >> 3, tag & 7
            if not DOUBLE <= number <= REFERENCE:
                continue
            kind[rows] = number
            if wire == LENGTH:
                bits[rows] = at.view(np.uint64)
                length[rows] = after - at
            else:
                bits[rows] = value
    sound[owner[~whole]] = False
    return Stats(owner, metadata_id, kind, bits, length)


@dataclass(frozen=True, slots=True)
class _Step:
    """One field of each message: the message's row, the tag, the value, where the content lies."""

    rows: Ints
    tag: Ints
    value: Words
    at: Ints
    after: Ints

    def by_tag(self) -> Iterator[tuple[int, tuple[Ints, Words, Ints, Ints]]]:
        """Yield (tag, (rows, value, content's start, content's end)) for each tag that occurs."""
        if not len(self.rows):
            return
        low = int(self.tag.min())
        if low == int(self.tag.max()):
            yield low, (self.rows, self.value, self.at, self.after)
            return
        for tag in np.unique(self.tag).tolist():
            here = self.tag == tag
            yield tag, (self.rows[here], self.value[here], self.at[here], self.after[here])


def _steps(buffer: Buffer, start: Ints, end: Ints, sound: np.ndarray) -> Iterator[_Step]:
    """Yield the first field of every message, then the second of those that have one, and so on.

    Messages that break off, or hold a field that is none, are marked in ``sound``.
    """
    rows = np.flatnonzero(start < end)
    at, last = start[rows], end[rows]
    while len(rows):
        tag, content = buffer.data[at], at + 1
        low, high = int(tag.min()), int(tag.max())
        if low == high and low in _SIMPLE:
            value, width = buffer.varints(content)
            first = after = content + width
            if low & 7 == LENGTH:
                after = first + np.minimum(value, _BEYOND).view(np.int64)
            tags = tag.astype(np.int64)
            broken = after > last
        else:
            tags, value, first, after, broken = _any_field(buffer, at, last)
        if broken.any():
            sound[rows[broken]] = False
            kept = ~broken
            rows, tags, value = rows[kept], tags[kept], value[kept]
            first, after, last = first[kept], after[kept], last[kept]
        yield _Step(rows, tags, value, first, after)
        going = after < last
        if going.all():
            at = after
        else:
            rows, at, last = rows[going], after[going], last[going]


def _any_field(buffer: Buffer, at: Ints, last: Ints) -> tuple[Ints, Words, Ints, Ints, np.ndarray]:
    """Return tag, value, where the content and the field end, and which fields are none."""
    wide, width = buffer.varints(at)
    tag, content = np.minimum(wide, _BEYOND).view(np.int64), at + width
    value, width = buffer.varints(content)
    wire = tag & 7
    has_length = wire == LENGTH
    after = content + width
    first = np.where(has_length, after, content)
    after = after + np.where(has_length, np.minimum(value, _BEYOND).view(np.int64), 0)
    fixed = np.where(wire == FIXED64, 8, np.where(wire == FIXED32, 4, 0))
    if fixed.any():
        after = np.where(fixed > 0, content + fixed, after)
        value = np.where(fixed > 0, buffer.words[content], value)
    known = (wire == VARINT) | (wire == FIXED64) | has_length | (wire == FIXED32)
    return tag, value, first, after, (after > last) | (tag < 8) | ~known


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)
