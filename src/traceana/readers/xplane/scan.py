"""Decodes the events of lines with the compiled scanner, or in Python where there is none.

The scanner, ``compiled/xplane_events.c``, decodes events as profilers write them, and leaves any
other event to :mod:`~traceana.readers.xplane.decode`, with the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

import numpy as np
from msgspec.structs import replace

from traceana.readers.compiled import COMPILED
from traceana.readers.xplane.decode import Events, SortedIds, Stats, Walker
from traceana.readers.xplane.wire import Buffer, Ints, Numbers, fields

if COMPILED:
    from traceana.readers.compiled import _scanner

_EVENTS: Final = 1 << 20
_STATS: Final = 1 << 21
"""Rows of the scanner's columns; only what is filled is memory."""
_DECLARED: Final = -1

Block = tuple[Events, Stats]
"""Some events and their stats, whose owners are rows of these events."""


class Blocks(Protocol):
    """The events of some runs, decoded during the iteration.

    Each item is the byte after the last event and the events up to there. Afterwards ``stop`` is
    where each run ended: at its end, at a field other than an event, or before an event that
    reaches beyond it.
    """

    @property
    def stop(self) -> Ints: ...
    def __iter__(self) -> Iterator[tuple[int, Iterable[Block]]]: ...


def blocks(
    buffer: Buffer, begin: Ints, end: Ints, wanted: SortedIds, declared: SortedIds
) -> Blocks:
    """Return the events of the runs from ``begin`` to ``end``.

    ``wanted`` and ``declared`` are the metadata ids of stats as in
    :func:`~traceana.readers.xplane.decode.events`.
    """
    decoder = Scanned if COMPILED else Decoded
    return decoder(buffer, begin, end, wanted, declared)


class Decoded:
    """The events of some runs, decoded in Python."""

    def __init__(
        self, buffer: Buffer, begin: Ints, end: Ints, wanted: SortedIds, declared: SortedIds
    ) -> None:
        self.stop = begin.copy()
        self._end = end
        self._walker = Walker(buffer, wanted, declared)

    def __iter__(self) -> Iterator[tuple[int, Iterable[Block]]]:
        for run, end in enumerate(self._end.tolist()):
            places, at = self._walker.places(run, int(self.stop[run]), end)
            while places:
                self.stop[run] = at
                yield at, [self._walker.events(places)]
                places, at = self._walker.places(run, at, end)


class Scanned:
    """The events of some runs, decoded by the compiled scanner."""

    def __init__(
        self, buffer: Buffer, begin: Ints, end: Ints, wanted: SortedIds, declared: SortedIds
    ) -> None:
        self.stop = begin.copy()
        # Where a damaged file has runs between others, the places are parts of larger arrays.
        self._begin, self._end = np.ascontiguousarray(begin), np.ascontiguousarray(end)
        self._buffer = buffer
        self._walker = Walker(buffer, wanted, declared)
        self._ids = np.union1d(wanted.numbers, declared.numbers)
        self._codes = wanted.indices(self._ids).astype(np.int32)
        self._codes[self._codes == len(wanted)] = _DECLARED

    def __iter__(self) -> Iterator[tuple[int, Iterable[Block]]]:
        state = np.array([0, self._begin[0]], dtype=np.int64)
        # The next block is decoded while tables are made of this one.
        with ThreadPoolExecutor(1) as ahead:
            scanned = ahead.submit(self._next, state)
            while (block := scanned.result()) is not None:
                till = int(state[1])
                scanned = ahead.submit(self._next, state)
                yield till, self._with_odd(*block)

    def _next(self, state: Ints) -> tuple[Events, Stats, Numbers] | None:
        """Return the next events, their stats and the rows of odd events; None after the last.

        ``state`` is the run and the byte at which they begin, then those after them.
        """
        # New arrays for each block, which keeps them.
        run, odd = np.empty(_EVENTS, dtype=np.uint32), np.empty(_EVENTS, dtype=np.uint32)
        metadata_id, offset_ps, duration_ps = np.empty((3, _EVENTS), dtype=np.int64)
        owner, index, length = np.empty((3, _STATS), dtype=np.uint32)
        kind, value = np.empty(_STATS, dtype=np.uint8), np.empty(_STATS, dtype=np.uint64)
        count, odd_count, stat_count = _scanner.xplane_events(
            *(self._buffer.data, self._begin, self._end, self.stop, state, self._ids, self._codes),
            *(run, metadata_id, offset_ps, duration_ps, odd),
            *(owner, index, kind, value, length),
        )
        if not count:
            return None
        sound = np.ones(count, dtype=np.bool_)
        events = Events(run, metadata_id, offset_ps, duration_ps, ~sound, sound)
        stats = Stats(owner, index, kind, value, length).take(slice(0, stat_count))
        return events.part(slice(0, count)), stats, odd[:odd_count]

    def _with_odd(self, events: Events, stats: Stats, odd: Numbers) -> Iterator[Block]:
        """Yield ``events``, with the rows ``odd`` decoded in Python.

        The scanner leaves the position of such an event in place of its metadata id.
        """
        if len(odd):
            places = []
            runs = events.run[odd].tolist()
            for run, position in zip(runs, events.metadata_id[odd].tolist(), strict=True):
                field = next(fields(self._buffer, position, self._buffer.size))
                places.append((run, field.start, field.end))
            walked, walked_stats = self._walker.events(places)
            events.metadata_id[odd] = walked.metadata_id
            events.offset_ps[odd] = walked.offset_ps
            events.duration_ps[odd] = walked.duration_ps
            events.aggregate[odd] = walked.aggregate
            events.sound[odd] = walked.sound
            stats = stats.followed_by(replace(walked_stats, owner=odd[walked_stats.owner]))
        yield events, stats
