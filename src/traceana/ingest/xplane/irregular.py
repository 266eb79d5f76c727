"""Messages with their fields in any order, still many at once: the first of each, then the second …

What ``decode.py`` does not know comes here: events that stand for several, fields of a newer
schema, integers longer than they need be, damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from traceana.ingest.xplane.buffer import BEYOND, Buffer, Bytes, Ints, Mask, Words
from traceana.ingest.xplane.messages import (
    DOUBLE,
    DURATION_PS,
    METADATA_ID,
    OCCURRENCES,
    OFFSET_PS,
    REFERENCE,
    STAT,
)
from traceana.ingest.xplane.wire import FIXED32, FIXED64, LENGTH, VARINT


@dataclass(frozen=True, slots=True)
class AnyEvents:
    """Events by the tags of their numbers, which of them are sound, and where their stats lie."""

    numbers: dict[int, Ints]
    sound: Mask
    owner: Ints
    start: Ints
    end: Ints


@dataclass(frozen=True, slots=True)
class AnyStats:
    """Stats as in :class:`traceana.ingest.xplane.messages.Stats`, by their ids."""

    metadata_id: Ints
    kind: Bytes
    value: Words
    length: Ints
    sound: Mask


def any_events(buffer: Buffer, start: Ints, end: Ints) -> AnyEvents:
    """Decode the events whose contents lie between ``start`` and ``end``."""
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
    """Decode the stats whose contents lie between ``start`` and ``end``."""
    count = len(start)
    metadata_id, length = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    kind, value = np.zeros(count, dtype=np.uint8), np.zeros(count, dtype=np.uint64)
    sound = np.ones(count, dtype=np.bool_)
    for step in _steps(buffer, start, end, sound):
        for tag, here in step.by_tag():
            rows, number = step.rows[here], tag >> 3
            if tag == METADATA_ID:
                metadata_id[rows] = step.value[here].view(np.int64)
            elif DOUBLE <= number <= REFERENCE:
                kind[rows] = number
                value[rows] = step.value[here]
                if tag & 7 == LENGTH:
                    value[rows] = step.at[here].view(np.uint64)
                    length[rows] = (step.after - step.at)[here]
    return AnyStats(metadata_id, kind, value, length, sound)


@dataclass(frozen=True, slots=True)
class _Step:
    """One field of each message: the message's row, the tag, the value, where the content lies."""

    rows: Ints
    tag: Ints
    value: Words
    at: Ints
    after: Ints

    def by_tag(self) -> Iterator[tuple[int, Ints]]:
        """Yield each tag that occurs, and where."""
        for tag in np.unique(self.tag).tolist():
            yield tag, np.flatnonzero(self.tag == tag)


def _steps(buffer: Buffer, start: Ints, end: Ints, sound: Mask) -> Iterator[_Step]:
    """Yield the first field of every message, then the second of those that have one, and so on.

    Messages that break off, or hold a field that is none, are marked in ``sound``.
    """
    rows = np.flatnonzero(start < end)
    at, last = start[rows], end[rows]
    while len(rows):
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


def _fields(buffer: Buffer, rows: Ints, at: Ints) -> tuple[_Step, Mask]:
    """Return the fields at ``at``, and which of them are any."""
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
