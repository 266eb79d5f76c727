"""Many messages of one kind decoded in lockstep: a field of each at a time, never one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceana.ingest.xplane.buffer import Buffer, Bytes, Ints, Words
from traceana.ingest.xplane.runs import TAG, Records
from traceana.ingest.xplane.wire import FIXED32, FIXED64, LENGTH, VARINT

_BLOCK: Final = 1 << 15
"""Messages decoded at once: the columns of so many stay in the processor's cache."""
_BEYOND: Final = np.uint64(1 << 40)

_METADATA_ID: Final = 0x08
_OFFSET_PS: Final = 0x10
_DURATION_PS: Final = 0x18
_OCCURRENCES: Final = 0x28
_STAT: Final = TAG

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


def events(buffer: Buffer, records: Records) -> Iterator[Events]:
    """Decode the events that lie in ``records``, some ten thousands at a time."""
    for begin in range(0, len(records.start), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        yield _events(buffer, records.start[part], records.end[part], records.run[part])


def _events(buffer: Buffer, start: Ints, end: Ints, run: Ints) -> Events:
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
    stats = _stats(
        buffer, np.concatenate(owners), np.concatenate(starts), np.concatenate(ends), sound
    )
    return Events(
        run,
        numbers[_METADATA_ID],
        numbers[_OFFSET_PS],
        numbers[_DURATION_PS],
        numbers[_OCCURRENCES],
        sound,
        stats,
    )


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
        tag, content = buffer.data[at].astype(np.int64), at + 1
        if int(tag.max()) >= 0x80:
            wide, width = buffer.varints(at)
            tag, content = np.minimum(wide, _BEYOND).view(np.int64), at + width
        value, width = buffer.varints(content)
        first, after = content, content + width
        wire = tag & 7
        if int(wire.max()) != VARINT:
            has_length = wire == LENGTH
            first = np.where(has_length, after, content)
            after = after + np.where(has_length, np.minimum(value, _BEYOND).view(np.int64), 0)
            fixed = np.where(wire == FIXED64, 8, np.where(wire == FIXED32, 4, 0))
            if fixed.any():
                after = np.where(fixed > 0, content + fixed, after)
                value = np.where(fixed > 0, buffer.words[content], value)
        broken = (
            (after > last) | (tag < 8) | ((wire != 0) & (wire != 1) & (wire != 2) & (wire != 5))
        )
        if broken.any():
            sound[rows[broken]] = False
            kept = ~broken
            rows, tag, value = rows[kept], tag[kept], value[kept]
            first, after, last = first[kept], after[kept], last[kept]
        yield _Step(rows, tag, value, first, after)
        going = after < last
        if going.all():
            at = after
        else:
            rows, at, last = rows[going], after[going], last[going]


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)
