"""XPlane's events and stats, and their decoder in Python.

The compiled scanner decodes the events of all known profilers: their fields stand in the order of
their numbers, and a stat is its id and then its value. :class:`Walker` decodes any others
(aggregates, fields of a newer schema, integers longer than needed, damage), and all events where
the scanner is not compiled.

Field numbers are those of ``xplane.proto`` in openxla/xla: XEvent {metadata_id 1, offset_ps 2,
duration_ps 3, stats 4, num_occurrences 5}; XStat {metadata_id 1, double 2, uint64 3, int64 4,
str 5, bytes 6, ref 7}.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import msgspec
import numpy as np

from traceana.readers.xplane.wire import (
    FIXED64,
    LENGTH,
    TAG,
    VARINT,
    Buffer,
    Bytes,
    Ints,
    Mask,
    Numbers,
    WireError,
    Words,
    fields,
)

METADATA_ID: Final = 1
OFFSET_PS: Final = 2
DURATION_PS: Final = 3
STAT: Final = 4
OCCURRENCES: Final = 5

# Kinds of values of a stat: the numbers of their fields.
DOUBLE: Final = 2
UNSIGNED: Final = 3
SIGNED: Final = 4
STRING: Final = 5
BYTES: Final = 6
REFERENCE: Final = 7
_WIRES: Final = {
    DOUBLE: FIXED64,
    UNSIGNED: VARINT,
    SIGNED: VARINT,
    STRING: LENGTH,
    BYTES: LENGTH,
    REFERENCE: VARINT,
}
"""The wire type of each kind; a field of another one is unknown, as in every protobuf decoder."""
_LEADING_ID: Final = METADATA_ID << 3
_BLOCK: Final = 1 << 14
"""Events decoded together."""
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
            np.concatenate([part.owner.astype(np.uint32, copy=False) for part in parts]),
            np.concatenate([part.index for part in parts]),
            np.concatenate([part.kind for part in parts]),
            np.concatenate([part.value for part in parts]),
            np.concatenate([part.length.astype(np.uint32, copy=False) for part in parts]),
        )


class SortedIds:
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


class Walker:
    """Decodes events one by one, field by field.

    ``wanted`` are the metadata ids of the stats to decode. Others are passed over unless they are
    not ``declared`` by the plane: such an id can be damage that swallowed the tag of the value.
    """

    def __init__(self, buffer: Buffer, wanted: SortedIds, declared: SortedIds) -> None:
        self._buffer = buffer
        self._index = {number: i for i, number in enumerate(wanted.numbers.tolist())}
        self._passed = set(declared.numbers.tolist()) - set(self._index)

    def events(self, places: Iterable[tuple[int, int, int]]) -> tuple[Events, Stats]:
        """Return the events whose contents are at ``places``: (run, first byte, byte after it).

        The owners of the stats are rows of the events.
        """
        rows: list[tuple[int, int, int, int, bool, bool]] = []
        stats: list[tuple[int, int, int, int, int]] = []
        for run, start, end in places:
            numbers = dict.fromkeys((METADATA_ID, OFFSET_PS, DURATION_PS, OCCURRENCES), 0)
            event_stats: list[tuple[int, int, int, int]] = []
            try:
                for field in fields(self._buffer, start, end):
                    if field.cut:
                        raise WireError(f"event cut at byte {end}")
                    if field.number == STAT and field.wire == LENGTH:
                        event_stats += self._stat(field.start, field.end)
                    elif field.number in numbers and field.wire == VARINT:
                        numbers[field.number] = field.signed
                sound = True
            except WireError:
                sound = False
                event_stats = []
            stats += [(len(rows), *stat) for stat in event_stats]
            metadata_id, offset_ps, duration_ps, occurrences = numbers.values()
            rows.append((run, metadata_id, offset_ps, duration_ps, occurrences != 0, sound))
        return Events(*_columns(rows, Events)), Stats(*_columns(stats, Stats))

    def _stat(self, start: int, end: int) -> Iterable[tuple[int, int, int, int]]:
        """Return index, kind, value and length of a stat, nothing for one that is not wanted.

        Raises :class:`WireError` on damage.
        """
        metadata_id = kind = value = length = 0
        for position, field in enumerate(fields(self._buffer, start, end)):
            if field.cut:
                raise WireError(f"stat cut at byte {end}")
            if field.number == METADATA_ID and field.wire == VARINT:
                metadata_id = field.signed
                leads = position == 0 and self._buffer.view[start] == _LEADING_ID
                if leads and metadata_id in self._passed:
                    return ()
            elif _WIRES.get(field.number) == field.wire:
                kind, value, length = field.number, field.value, 0
                if field.wire == LENGTH:
                    value, length = field.start, field.end - field.start
        index = self._index.get(metadata_id)
        return () if index is None else ((index, kind, value, length),)

    def places(self, run: int, begin: int, end: int) -> tuple[list[tuple[int, int, int]], int]:
        """Return the places of some events of a ``run`` from ``begin`` on, and the byte after them.

        There are none at ``end``, at another field, and before an event that reaches beyond.
        """
        places: list[tuple[int, int, int]] = []
        with suppress(WireError):
            for field in islice(fields(self._buffer, begin, end), _BLOCK):
                if field.cut or self._buffer.view[begin] != TAG:
                    break
                places.append((run, field.start, field.end))
                begin = field.end
        return places, begin


_TYPES: Final = {
    Events: (np.uint32, np.int64, np.int64, np.int64, np.bool_, np.bool_),
    Stats: (np.uint32, np.uint32, np.uint8, np.uint64, np.uint32),
}


def _columns(rows: Sequence[tuple[int, ...]], record: type[Events] | type[Stats]) -> list[Any]:
    """Return the columns of ``record`` with the values of ``rows``."""
    types = _TYPES[record]
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    return [np.array(column, dtype=kind) for column, kind in zip(columns, types, strict=True)]
