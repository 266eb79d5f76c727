"""Finds the events of a line: a chain of lengths, followed in many stretches at once.

The position of an event follows from the length of the one before it. A run of events is therefore
cut into stretches of some kilobytes; in each, the chain is followed from a byte that looks like a
record, all stretches in lockstep. Records within an event (its stats) have the same tag, and the
last of them ends where the event does: a chain that begins within an event joins the chain of
events. This is checked stretch by stretch: a stretch must have visited the record to which the one
before it leads. A stretch that fails is followed again from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

from traceana.ingest.xplane.wire import Buffer, Ints, Mask

TAG: Final = 0x22
"""Field 4 with a length: ``XLine.events``, and ``XEvent.stats``."""
_ID_TAG: Final = 0x08
_STRETCH: Final = 8192
_AT_ONCE: Final = 4096
"""Stretches followed in lockstep: 32 MiB of the file."""
_SCANNED_BYTES: Final = 256
"""Bytes of a stretch that are searched for a record."""
_NOTHING: Final = np.zeros(0, dtype=np.int64)


class Records(msgspec.Struct, frozen=True):
    """Some records in the order of the file: the position of each tag, and its run.

    ``till`` is the first byte after the last of them.
    """

    at: Ints
    run: Ints
    till: int


class Runs:
    """The records of some runs, found during the iteration.

    Each run begins at a record (``begin``) and ends at ``end`` or before; runs are in the order of
    the file and do not overlap. Afterwards ``stop`` is where each ended: at its end, at a field
    of another number, or before a record that reaches beyond it.
    """

    def __init__(self, buffer: Buffer, begin: Ints, end: Ints) -> None:
        self.stop = begin.copy()
        self._buffer = buffer
        count = np.maximum(-(-(end - begin) // _STRETCH), 1)
        self._run = np.repeat(np.arange(len(begin)), count)
        number = np.arange(len(self._run)) - np.repeat(np.cumsum(count) - count, count)
        self._first = begin[self._run] + number * _STRETCH
        self._last = end[self._run]
        self._limit = np.minimum(self._first + _STRETCH, self._last)
        self._exact = number == 0

    def __iter__(self) -> Iterator[Records]:
        reached = 0
        for begin in range(0, len(self._run), _AT_ONCE):
            lanes = slice(begin, begin + _AT_ONCE)
            at, count, reached = self._records(lanes, reached)
            yield Records(at, np.repeat(self._run[lanes], count), reached)

    def _records(self, lanes: slice, reached: int) -> tuple[Ints, Ints, int]:
        """Return the records of some stretches, how many each has, and the position after the last.

        ``reached`` is the position after the last record of the stretch before them.
        """
        first, limit, last = self._first[lanes], self._limit[lanes], self._last[lanes]
        exact = self._exact[lanes]
        entry = np.where(exact, first, _guess(self._buffer, first))
        at, count, landing = _walk(self._buffer, entry, limit, last)
        came = np.where(exact, first, np.concatenate(([reached], landing[:-1])))
        sound = exact | ((came < limit) & _among(came, at))
        if not sound.all():
            at, came, landing = self._corrected(at, came, landing, sound, lanes)
            count = np.diff(np.searchsorted(at, first), append=len(at))
        np.maximum.at(self.stop, self._run[lanes], landing)
        # Records visited before the stretch's first event are not events.
        visited = at >= np.repeat(came, count)
        kept = np.diff(np.concatenate(([0], np.cumsum(visited)))[np.cumsum(count)], prepend=0)
        return at[visited], kept, int(landing[-1])

    def _corrected(
        self, at: Ints, came: Ints, landing: Ints, sound: Mask, lanes: slice
    ) -> tuple[Ints, Ints, Ints]:
        """Return the records, entries and ends of all stretches, those of a wrong guess corrected.

        A stretch with a wrong guess is followed again from ``came``.
        """
        first, limit, last = self._first[lanes], self._limit[lanes], self._last[lanes]
        exact, again = self._exact[lanes], np.zeros(len(first), dtype=np.bool_)
        found = [_NOTHING]
        unverified = set(np.flatnonzero(~sound).tolist())
        while unverified:
            lane = min(unverified)
            unverified.remove(lane)
            here, one, led = int(came[lane]), slice(lane, lane + 1), int(landing[lane])
            if not first[lane] <= here < limit[lane]:
                # The run ended before this stretch, or a record spans it.
                came[lane], landing[lane] = limit[lane], here
            elif not _among(came[one], at)[0]:
                records, _, landing[one] = _walk(self._buffer, came[one], limit[one], last[one])
                found.append(records)
                again[lane] = True
            if landing[lane] != led and lane + 1 < len(first) and not exact[lane + 1]:
                came[lane + 1] = landing[lane]
                unverified.add(lane + 1)
        lane_of = np.searchsorted(first, at, side="right") - 1
        return np.sort(np.concatenate((at[~again[lane_of]], *found))), came, landing


def _guess(buffer: Buffer, first: Ints) -> Ints:
    """Return the first byte of each stretch that looks like a record, else its first byte."""
    ahead = np.lib.stride_tricks.sliding_window_view(buffer.data, _SCANNED_BYTES + 3)[first]
    # The content begins with its id, after a length of one or two bytes.
    behind = np.where(ahead[:, 1:-2] < 0x80, ahead[:, 2:-1], ahead[:, 3:])
    looks = (ahead[:, :-3] == TAG) & (behind == _ID_TAG)
    guess: Ints = first + looks.argmax(axis=1)
    return guess


def _walk(buffer: Buffer, entry: Ints, limit: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the records of the chains from ``entry`` up to ``limit``, their counts and ends.

    Records are listed chain by chain. The end of a chain is the first byte after its last record,
    or the position at which no record follows.
    """
    landing = entry.copy()
    count = np.zeros(len(entry), dtype=np.int64)
    lanes = np.flatnonzero(entry < limit)
    at, till, last = entry[lanes], limit[lanes], end[lanes]
    visited: list[tuple[Ints, Ints]] = []
    while len(lanes):
        is_record, _, after = buffer.records(at, TAG)
        is_record &= after <= last
        going = is_record & (after < till)
        if going.all():
            visited.append((lanes, at))
        else:
            over = ~going
            landing[lanes[over]] = np.where(is_record, after, at)[over]
            count[lanes[over]] = len(visited) + is_record[over]
            visited.append((lanes, at) if is_record.all() else (lanes[is_record], at[is_record]))
            lanes, till, last, after = lanes[going], till[going], last[going], after[going]
        at = after
    offset = np.cumsum(count) - count
    records = np.empty(int(count.sum()), dtype=np.int64)
    for step, (of_lane, where) in enumerate(visited):
        records[offset[of_lane] + step] = where
    return records, count, landing


def _among(wanted: Ints, sorted_: Ints) -> Mask:
    if not len(sorted_):
        return np.zeros(len(wanted), dtype=np.bool_)
    index = np.minimum(np.searchsorted(sorted_, wanted), len(sorted_) - 1)
    return np.asarray(sorted_[index] == wanted)
