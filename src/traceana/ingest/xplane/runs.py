"""Where the events of a line begin: a chain of lengths, followed in many places at once.

Every event says how long it is, so the next one is known only when this one has been looked at. A
run of events is therefore cut into stretches of some kilobytes, in each of which the chain is taken
up at a byte that looks like a record and followed, all stretches in lockstep. Records within an
event (its stats) have the same tag, and the last of them ends where the event does: a chain that
began within an event runs into the chain of events. Whether it did is checked, stretch by stretch:
the record that the one before ends with must be one that this one visited. A stretch that fails is
followed again from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceana.ingest.xplane.buffer import Buffer, Ints, Mask

TAG: Final = 0x22
"""Field 4 with a length: ``XLine.events``, and ``XEvent.stats``."""
_ID_TAG: Final = 0x08
_STRETCH: Final = 8192
_AT_ONCE: Final = 4096
"""Stretches followed in lockstep: 32 MiB of the file."""
_GLANCE: Final = 256
"""Bytes of a stretch in which a record is looked for."""
_BEYOND: Final = np.uint64(1 << 40)
"""Lengths beyond any file need not be exact, and must not overflow."""
_NOTHING: Final = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Records:
    """Some records in the order of the file: where the content of each lies, and of which run."""

    start: Ints
    end: Ints
    run: Ints


class Runs:
    """The records of some runs, found while they are iterated over.

    Each run begins at a record (``begin``) and lasts to ``end`` at most; they are in the order of
    the file and do not overlap. Afterwards ``stop`` tells where each ended: at its end, at a field
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
            at, reached = self._records(lanes, reached)
            size, width = self._buffer.varints(at + 1)
            start = at + 1 + width
            first, run = self._first[lanes], self._run[lanes]
            yield Records(start, start + size.view(np.int64), run[_lane_of(at, first)])

    def _records(self, lanes: slice, reached: int) -> tuple[Ints, int]:
        """Return the records of some stretches and where the last of them led.

        ``reached`` is where the stretch before them led.
        """
        first, limit, last = self._first[lanes], self._limit[lanes], self._last[lanes]
        exact, run = self._exact[lanes], self._run[lanes]
        entry = np.where(exact, first, _guess(self._buffer, first))
        at, landing = _walk(self._buffer, entry, limit, last)
        at.sort()
        came = np.where(exact, first, np.concatenate(([reached], landing[:-1])))
        sound = exact | ((came < limit) & _among(came, at))
        if not sound.all():
            at, came, landing = self._mended(at, came, landing, sound, lanes)
        np.maximum.at(self.stop, run, landing)
        return at[at >= came[_lane_of(at, first)]], int(landing[-1])

    def _mended(
        self, at: Ints, came: Ints, landing: Ints, sound: Mask, lanes: slice
    ) -> tuple[Ints, Ints, Ints]:
        """Follow again what the guesses missed; what lies before ``came`` is no record."""
        first, limit, last = self._first[lanes], self._limit[lanes], self._last[lanes]
        exact, again = self._exact[lanes], np.zeros(len(first), dtype=np.bool_)
        found = [_NOTHING]
        doubted = set(np.flatnonzero(~sound).tolist())
        while doubted:
            lane = min(doubted)
            doubted.remove(lane)
            here, one, led = int(came[lane]), slice(lane, lane + 1), int(landing[lane])
            if not first[lane] <= here < limit[lane]:
                # The run broke off before this stretch, or a record jumps over it.
                came[lane], landing[lane] = limit[lane], here
            elif not _among(came[one], at)[0]:
                records, landing[one] = _walk(self._buffer, came[one], limit[one], last[one])
                found.append(records)
                again[lane] = True
            if landing[lane] != led and lane + 1 < len(first) and not exact[lane + 1]:
                came[lane + 1] = landing[lane]
                doubted.add(lane + 1)
        return np.sort(np.concatenate((at[~again[_lane_of(at, first)]], *found))), came, landing


def _guess(buffer: Buffer, first: Ints) -> Ints:
    """Return, for each stretch, the first byte that looks like a record; its own if none does."""
    at = np.minimum(first[:, None] + np.arange(_GLANCE), buffer.size)
    # The content begins with its id, behind a length of one byte or two.
    behind = np.where(buffer.data[at + 1] < 0x80, buffer.data[at + 2], buffer.data[at + 3])
    looks = (buffer.data[at] == TAG) & (behind == _ID_TAG)
    guess: Ints = first + looks.argmax(axis=1)
    return guess


def _walk(buffer: Buffer, entry: Ints, limit: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Follow the chains from ``entry`` up to ``limit``.

    Returns the records visited, of all chains together, and for each chain where it landed: the
    first byte behind its last record, or the place where it broke off.
    """
    landing = entry.copy()
    lanes = np.flatnonzero(entry < limit)
    at, till, last = entry[lanes], limit[lanes], end[lanes]
    visited = [_NOTHING]
    while len(lanes):
        size, width = buffer.varints(at + 1)
        after = at + 1 + width + np.minimum(size, _BEYOND).view(np.int64)
        is_record = (buffer.data[at] == TAG) & (after <= last)
        going = is_record & (after < till)
        visited.append(at if is_record.all() else at[is_record])
        if not going.all():
            over = ~going
            landing[lanes[over]] = np.where(is_record, after, at)[over]
            lanes, till, last, after = lanes[going], till[going], last[going], after[going]
        at = after
    return np.concatenate(visited), landing


def _among(sought: Ints, sorted_: Ints) -> Mask:
    if not len(sorted_):
        return np.zeros(len(sought), dtype=np.bool_)
    place = np.minimum(np.searchsorted(sorted_, sought), len(sorted_) - 1)
    return np.asarray(sorted_[place] == sought)


def _lane_of(at: Ints, first: Ints) -> Ints:
    lane: Ints = np.searchsorted(first, at, side="right") - 1
    return lane
