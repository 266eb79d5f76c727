"""Events and their stats as profilers write them, many at once and field by field.

All profilers write the fields of an event in the order of their numbers, and of a stat its id and
then its value. That is what is decoded here; a message that is anything else goes to
``irregular.py``, which knows every order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceana.ingest.xplane.buffer import BEYOND, Buffer, Ints, Mask, Words
from traceana.ingest.xplane.irregular import any_events, any_stats
from traceana.ingest.xplane.known import Known
from traceana.ingest.xplane.messages import (
    DOUBLE,
    DURATION_PS,
    METADATA_ID,
    OCCURRENCES,
    OFFSET_PS,
    REFERENCE,
    STAT,
    Events,
    Stats,
)
from traceana.ingest.xplane.runs import TAG, Records
from traceana.ingest.xplane.wire import FIXED64, LENGTH, VARINT

_BLOCK: Final = 1 << 14
"""Messages decoded at once: the columns of so many stay in the processor's cache."""


def events(buffer: Buffer, records: Records, wanted: Known) -> Iterator[tuple[Events, Stats]]:
    """Decode the events that lie in ``records``, some ten thousands at a time.

    ``wanted`` has the metadata ids of the stats that are to be decoded; their owners are counted
    within the events that they come with.
    """
    for begin in range(0, len(records.at), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        yield _events(buffer, records.at[part], records.run[part], wanted)


def _events(buffer: Buffer, at: Ints, run: Ints, wanted: Known) -> tuple[Events, Stats]:
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
    stats = _stats(buffer, nested, wanted, sound)
    return Events(run, metadata_id, offset_ps, duration_ps, aggregate, sound), stats


def _number(buffer: Buffer, at: Ints, end: Ints, tag: int) -> tuple[Ints, Ints]:
    """Return the values of the field ``tag`` where it is at ``at``, else 0, and what is behind."""
    found, value, after = buffer.field(at)
    here = (found == np.uint64(tag)) & (at < end)
    if here.all():
        return value.view(np.int64), after
    return (value * here).view(np.int64), np.where(here, after, at)


class _Nested:
    """Where the stats of events lie, of whose contents ``at`` to ``end`` is left.

    ``broken`` are the events in which something else is left, of whose stats some may be missing.
    """

    def __init__(self, buffer: Buffer, at: Ints, end: Ints) -> None:
        nothing = np.zeros(0, dtype=np.int64)
        owners, starts, ends = [nothing], [nothing], [nothing]
        self.broken: Mask = at > end
        rows = np.flatnonzero(at < end)
        at, last = at[rows], end[rows]
        while len(rows):
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
        self.owner = np.concatenate(owners)
        self.start = np.concatenate(starts)
        self.end = np.concatenate(ends)

    def replace(self, owner: Ints, start: Ints, end: Ints) -> None:
        """Put other stats in the place of those of the broken events."""
        kept = ~self.broken[self.owner]
        self.owner = np.concatenate((self.owner[kept], owner))
        self.start = np.concatenate((self.start[kept], start))
        self.end = np.concatenate((self.end[kept], end))


def _stats(buffer: Buffer, nested: _Nested, wanted: Known, sound: Mask) -> Stats:
    """Decode the stats that are wanted; what is damaged makes its owner so in ``sound``."""
    owner, start, end = nested.owner, nested.start, nested.end
    metadata_id, at = _number(buffer, start, end, METADATA_ID)
    place = wanted.places(metadata_id)
    # A stat that does not begin with its id may be any.
    kept = np.flatnonzero((place < len(wanted)) | (at == start))
    if len(kept) < len(owner):
        owner, start, end, at, place = owner[kept], start[kept], end[kept], at[kept], place[kept]
    tag, value, after = buffer.field(at)
    value, length, after = _content(buffer, at, tag, value, after)
    number, wire = tag >> np.uint64(3), tag & np.uint64(7)
    kind = number.astype(np.uint8)
    regular = (at > start) & (after == end) & (number >= DOUBLE) & (number <= REFERENCE)
    regular &= (wire == VARINT) | (wire == LENGTH) | (wire == FIXED64)
    if not regular.all():
        odd = np.flatnonzero(~regular)
        found = any_stats(buffer, start[odd], end[odd])
        place[odd] = wanted.places(found.metadata_id)
        kind[odd], value[odd], length[odd] = found.kind, found.value, found.length
        sound[owner[odd[~found.sound]]] = False
        kept = np.flatnonzero(place < len(wanted))
        owner, place, kind = owner[kept], place[kept], kind[kept]
        value, length = value[kept], length[kept]
    return Stats(owner, place, kind, value, length)


def _content(
    buffer: Buffer, at: Ints, tag: Words, value: Words, after: Ints
) -> tuple[Words, Ints, Ints]:
    """Return value, length and end of fields that may be no varints.

    What has a length has the place of its content for a value.
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
