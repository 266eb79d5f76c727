"""Reads the events of some lines of a plane, block by block, into columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from traceana.ingest.xplane.buffer import Buffer, Ints, Mask
from traceana.ingest.xplane.columns import EventColumns, Labels, StatColumns
from traceana.ingest.xplane.decode import events
from traceana.ingest.xplane.known import Known
from traceana.ingest.xplane.messages import Events, Stats
from traceana.ingest.xplane.runs import TAG, Records, Runs
from traceana.ingest.xplane.space import Line, Plane
from traceana.ingest.xplane.wire import fields

_PS_PER_NS: Final = 1000


class LineEvents:
    """The events of some lines of a plane, decoded while they are iterated over, block by block.

    Of their stats those are decoded whose names are wanted. Times are rounded to the nearest
    nanosecond.

    Afterwards ``events`` is how many events there are in the file, whether they have become rows or
    not. Not among the rows: ``damaged`` events, and ``aggregates``, which stand for several events
    and have no time. ``rounded`` counts the rows whose picoseconds are no whole nanoseconds;
    ``unnamed`` those whose name is not in the file. ``cut``: the last event breaks off. ``till`` is
    the byte up to which the file has been read.
    """

    def __init__(
        self, buffer: Buffer, plane: Plane, lines: Sequence[Line], wanted: Collection[str]
    ) -> None:
        self.rows = self.damaged = self.aggregates = self.rounded = self.unnamed = self.till = 0
        self.cut = False
        ordered = sorted(plane.event_names)
        self.names: list[str | None] = [*(plane.event_names[n] or None for n in ordered), None]
        self._unnamed = np.array([name is None for name in self.names], dtype=np.bool_)
        self._buffer = buffer
        self._lines = lines
        self._timestamps = np.array([line.timestamp_ns for line in lines], dtype=np.int64)
        self._known_names = Known(plane.event_names)
        self._wanted = Known(number for number, name in plane.stat_names.items() if name in wanted)
        ids = self._wanted.numbers.tolist()
        self._places = {plane.stat_names[number]: i for i, number in enumerate(ids)}
        self._referred = Labels.of(plane.stat_names)

    @property
    def events(self) -> int:
        """How many events there are in the file."""
        return self.rows + self.damaged + self.aggregates + int(self.cut)

    def __iter__(self) -> Iterator[EventColumns]:
        begin = np.array([line.begin for line in self._lines], dtype=np.int64)
        end = np.array([line.end for line in self._lines], dtype=np.int64)
        line = np.flatnonzero(begin < end)
        begin, end = begin[line], end[line]
        while len(begin):
            runs = Runs(self._buffer, begin, end)
            for records in runs:
                self.till = records.till
                if len(records.at):
                    yield self._columns(records, line)
            begin, end, line = self._rest(runs.stop, end, line)

    def _rest(self, stop: Ints, end: Ints, line: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the runs that go on behind a field which is no event."""
        again: list[tuple[int, int, int]] = []
        for i in np.flatnonzero(stop < end).tolist():
            at = int(stop[i])
            for part in fields(self._buffer, at, int(end[i])):
                if part.number == TAG >> 3:
                    self.cut |= part.cut
                    if not part.cut:
                        again.append((at, int(end[i]), int(line[i])))
                        break
                at = part.end
        columns = np.array(again, dtype=np.int64).reshape(-1, 3)
        return columns[:, 0], columns[:, 1], columns[:, 2]

    def _columns(self, records: Records, line_of_run: Ints) -> EventColumns:
        """Decode what lies in ``records``; events that are no rows are left out and counted."""
        count = len(records.at)
        line = line_of_run.astype(np.uint32)[records.run]
        name = np.empty(count, dtype=np.uint32)
        start, duration = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        kept = np.empty(count, dtype=np.bool_)
        parts = []
        begin = 0
        for found, stats in events(self._buffer, records, self._wanted):
            here = slice(begin, begin + len(found.run))
            start[here], duration[here], kept[here] = self._times(found)
            name[here] = self._known_names.places(found.metadata_id)
            parts.append((begin, stats))
            begin = here.stop
        start += self._timestamps[line]
        stats = _joined(parts)
        if not kept.all():
            stats = _of_kept(stats, kept)
            line, name, start, duration = line[kept], name[kept], start[kept], duration[kept]
        self.rows += len(line)
        if self._unnamed[name].any():
            self.unnamed += int(self._unnamed[name].sum())
        columns = StatColumns(self._buffer, self._places, self._referred, stats)
        return EventColumns(line, name, start, duration, columns)

    def _times(self, found: Events) -> tuple[Ints, Ints, Mask]:
        """Return nanoseconds from the line's start, durations, and which events have them."""
        half = _PS_PER_NS // 2
        offset = (found.offset_ps + half) // _PS_PER_NS
        duration = (found.duration_ps + half) // _PS_PER_NS
        kept = found.sound & ~found.aggregate
        inexact = (offset * _PS_PER_NS != found.offset_ps) | (
            duration * _PS_PER_NS != found.duration_ps
        )
        self.rounded += int(np.count_nonzero(inexact & kept))
        self.damaged += int(np.count_nonzero(~found.sound))
        self.aggregates += int(np.count_nonzero(found.sound & found.aggregate))
        return offset, duration, kept


def _joined(parts: Sequence[tuple[int, Stats]]) -> Stats:
    """Return the stats of all blocks; each comes with how many events stand before it."""
    return Stats(
        np.concatenate([(stats.owner + before).astype(np.uint32) for before, stats in parts]),
        np.concatenate([stats.place for _, stats in parts]),
        np.concatenate([stats.kind for _, stats in parts]),
        np.concatenate([stats.value for _, stats in parts]),
        np.concatenate([stats.length.astype(np.uint32) for _, stats in parts]),
    )


def _of_kept(stats: Stats, kept: Mask) -> Stats:
    row = (np.cumsum(kept) - 1).astype(np.uint32)
    stats = stats.take(np.flatnonzero(kept[stats.owner]))
    return replace(stats, owner=row[stats.owner])
