"""The wire format of protocol buffers: many fields at once, one by one, or chains of messages.

:class:`Buffer` decodes the fields of many messages at once in numpy, for the millions of events and
stats. :func:`fields` walks through one message, for the metadata around them.

Finds the events of a line: a chain of lengths, followed in many stretches at once. The position of
an event follows from the length of the one before it. A run of events is therefore cut into
stretches of some kilobytes; in each, the chain is followed from a byte that looks like a record,
all stretches in lockstep. Records within an event (its stats) have the same tag, and the last of
them ends where the event does: a chain that begins within an event joins the chain of events. This
is checked stretch by stretch: a stretch must have visited the record to which the one before it
leads. A stretch that fails is followed again from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.integer[Any]]
"""Row numbers of 32 bits, times of 64."""
Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
PADDING: Final = 320
"""Zero bytes after the content: reading ahead at its end stays in bounds."""
BEYOND: Final = np.uint64(1 << 40)
"""Longer lengths than any file has are cut to this, so that sums do not overflow."""
_LOWEST: Final = np.uint64(0xFF)
_STOPS: Final = np.uint64(0x8080808080808080)
_STOPS_AFTER_TAG: Final = np.uint64(0x8080808080808000)
_PAYLOAD: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONES: Final = np.uint64(0x0101010101010101)
_EVEN_7: Final = np.uint64(0x007F007F007F007F)
_ODD_7: Final = np.uint64(0x7F007F007F007F00)
_EVEN_14: Final = np.uint64(0x00003FFF00003FFF)
_ODD_14: Final = np.uint64(0x3FFF00003FFF0000)
_EVEN_28: Final = np.uint64(0x000000000FFFFFFF)
_ODD_28: Final = np.uint64(0x0FFFFFFF00000000)
_SECOND: Final = np.uint64(0x7F)
_THIRD: Final = np.uint64(0x3F80)
_BOTH_CONTINUE: Final = np.uint64(0x808000)
_0, _1, _2, _4, _7, _8, _9, _15, _56 = (np.uint64(bits) for bits in (0, 1, 2, 4, 7, 8, 9, 15, 56))
VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5
_LONGEST: Final = 10


class Buffer(msgspec.Struct, frozen=True):
    """``size`` bytes of content in ``data``, and the 8-byte word that begins at each of them.

    ``view`` is the same content, for fast access to single bytes.
    """

    data: Bytes
    words: Words
    size: int
    view: memoryview

    @classmethod
    def of(cls, parts: Iterable[bytes], expected: int = 0) -> Buffer:
        """Return the concatenation of ``parts``; ``expected`` bytes are allocated at first."""
        store = np.zeros(expected + PADDING, dtype=np.uint8)
        size = 0
        for part in parts:
            end = size + len(part)
            if end + PADDING > len(store):
                store = np.concatenate((store, np.zeros(max(end, len(store)), dtype=np.uint8)))
            store[size:end] = np.frombuffer(part, dtype=np.uint8)
            size = end
        words = np.ndarray((size + PADDING - 7,), dtype="<u8", buffer=store, strides=(1,))
        return cls(store, words, size, memoryview(store.data))

    def varints(self, at: Ints) -> tuple[Words, Ints]:
        """Return the varints that begin at ``at``, as unsigned 64-bit integers, and their lengths.

        A varint has 1 to 10 bytes; one that continues after the tenth has length 11.
        """
        word = self.words[at]
        stops = ~word & _STOPS
        below = _through_lowest(stops)
        value, length = _close_gaps(word & below & _PAYLOAD), _bytes_in(below)
        if not stops.all():
            self._finish(at, np.flatnonzero(stops == _0), value, length)
        return value, length

    def records(self, at: Ints, tag: int) -> tuple[Mask, Ints, Ints]:
        """Return whether a length-delimited field ``tag`` is at ``at``, and its start and end.

        Elsewhere start and end are undefined. The end may lie beyond the buffer's.
        """
        word = self.words[at]
        is_record = (word & _LOWEST) == np.uint64(tag)
        if ((word & _BOTH_CONTINUE) == _BOTH_CONTINUE).any():
            size, width = self.varints(at + 1)
            start = at + 1 + width
            return is_record, start, start + np.minimum(size, BEYOND).view(np.int64)
        continues = (word >> _15) & _1
        size = ((word >> _8) & _SECOND) | ((word >> _9) & _THIRD & (_0 - continues))
        start = at + 2 + continues.view(np.int64)
        return is_record, start, start + size.view(np.int64)

    def field(self, at: Ints) -> tuple[Words, Words, Ints]:
        """Return the varint fields at ``at``, with tags of one byte: tag, value, the byte after.

        A varint that continues after its tenth byte ends where the eleventh does.
        """
        word = self.words[at]
        stops = ~word & _STOPS_AFTER_TAG
        below = _through_lowest(stops)
        value, width = _close_gaps((word & below & _PAYLOAD) >> _8), _bytes_in(below)
        if not stops.all():
            long = np.flatnonzero(stops == _0)
            value[long], width[long] = self.varints(at[long] + 1)
            width[long] += 1
        return word & _LOWEST, value, at + width

    def _finish(self, at: Ints, long: Ints, value: Words, length: Ints) -> None:
        """Complete the varints of nine or ten bytes, whose first eight are in ``value``."""
        ninth, tenth = self.data[at[long] + 8], self.data[at[long] + 9]
        value[long] |= (ninth & 0x7F).astype(np.uint64) << _56
        continues = ninth >= 0x80
        value[long] |= np.where(continues, tenth & 1, 0).astype(np.uint64) << (_56 + _7)
        length[long] = np.where(continues, np.where(tenth >= 0x80, 11, 10), 9)


def _through_lowest(stops: Words) -> Words:
    """Return all bits up to and including the lowest set bit; all bits for 0."""
    return stops ^ (stops - _1)


def _bytes_in(below: Words) -> Ints:
    return (((below & _ONES) * _ONES) >> _56).view(np.int64)


def _close_gaps(groups: Words) -> Words:
    """Return groups of 7 bits, one per byte, concatenated in three steps."""
    pairs = (groups & _EVEN_7) | ((groups & _ODD_7) >> _1)
    fours = (pairs & _EVEN_14) | ((pairs & _ODD_14) >> _2)
    return (fours & _EVEN_28) | ((fours & _ODD_28) >> _4)


class WireError(ValueError):
    """The bytes are not a valid message."""


class Field(NamedTuple):
    """One field: its number, wire type, and content.

    ``value`` is the unsigned integer of a varint or fixed field; the content of a length-delimited
    field lies between ``start`` and ``end``. ``cut``: the message ends within the field.
    """

    number: int
    wire: int
    value: int
    start: int
    end: int
    cut: bool = False

    @property
    def signed(self) -> int:
        """The value as an int64."""
        return self.value - (1 << 64) if self.value >> 63 else self.value


def fields(buffer: Buffer, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message in ``start`` to ``end``; the last one may be cut.

    Raises :class:`WireError` on an invalid tag.
    """
    at = start
    while at < end:
        field = _field(buffer, at, end)
        yield field
        at = field.end


def _field(buffer: Buffer, at: int, end: int) -> Field:
    tag, at = _varint(buffer, at, end)
    if at > end:
        return Field(0, VARINT, 0, end, end, cut=True)
    number, wire = tag >> 3, tag & 7
    if not number:
        raise WireError(f"invalid field at byte {at}")
    match wire:
        case 0:
            value, after = _varint(buffer, at, end)
        case 1 | 5:
            after = at + (8 if wire == FIXED64 else 4)
            value = int.from_bytes(buffer.data[at:after].tobytes(), "little")
        case 2:
            value, at = _varint(buffer, at, end)
            after = at + value
        case _:
            raise WireError(f"invalid wire type at byte {at}")
    return Field(number, wire, value, min(at, end), min(after, end), cut=after > end)


def _varint(buffer: Buffer, at: int, end: int) -> tuple[int, int]:
    """Return (value, the byte after it), which is beyond ``end`` where the varint is cut."""
    if at >= end:
        return 0, end + 1
    value = buffer.view[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for i in range(1, _LONGEST):
        if at + i >= end:
            return 0, end + 1
        byte = buffer.view[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + i + 1
    raise WireError(f"invalid integer at byte {at}")


def text(buffer: Buffer, field: Field) -> str:
    """Return a string field; bytes that are not UTF-8 become U+FFFD."""
    return buffer.data[field.start : field.end].tobytes().decode("utf-8", "replace")


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
