"""Reads the events of some lines of a plane, block by block, into columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import numpy as np

from traceana.ingest.xplane.buffer import Buffer, Ints, Numbers
from traceana.ingest.xplane.columns import EventColumns, Stat
from traceana.ingest.xplane.decode import Events, events, places
from traceana.ingest.xplane.runs import TAG, Runs
from traceana.ingest.xplane.space import Line, Plane
from traceana.ingest.xplane.wire import fields

_PS_PER_NS: Final = 1000


def read_events(
    buffer: Buffer,
    plane: Plane,
    lines: Sequence[Line],
    wanted: Collection[str],
    progress: Callable[[int], None],
) -> EventColumns:
    """Decode the events of ``lines``, and of their stats those whose names are ``wanted``.

    Times are rounded to the nearest nanosecond. ``progress`` is told the byte up to which the file
    has been read.
    """
    gathered = _Gathered(plane, lines, wanted)
    begin = np.array([line.begin for line in lines], dtype=np.int64)
    end = np.array([line.end for line in lines], dtype=np.int64)
    of_run = np.flatnonzero(begin < end)
    begin, end = begin[of_run], end[of_run]
    cut = False
    while len(begin):
        runs = Runs(buffer, begin, end)
        for records in runs:
            for part in events(buffer, records, gathered.stat_ids):
                gathered.add(part, of_run)
            if len(records.end):
                progress(int(records.end[-1]))
        begin, end, of_run, broke = _rest(buffer, runs.stop, end, of_run)
        cut |= broke
    return gathered.columns(buffer, cut)


def _rest(buffer: Buffer, stop: Ints, end: Ints, of_run: Ints) -> tuple[Ints, Ints, Ints, bool]:
    """Return the runs that go on behind a field which is no event, and whether an event is cut."""
    again: list[tuple[int, int, int]] = []
    cut = False
    for i in np.flatnonzero(stop < end).tolist():
        at = int(stop[i])
        for part in fields(buffer, at, int(end[i])):
            if part.number == TAG >> 3:
                cut |= part.cut
                if not part.cut:
                    again.append((at, int(end[i]), int(of_run[i])))
                    break
            at = part.end
    columns = np.array(again, dtype=np.int64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2], cut


class _Gathered:
    """Collects blocks of events, and of their stats the wanted ones."""

    def __init__(self, plane: Plane, lines: Sequence[Line], wanted: Collection[str]) -> None:
        self._stat_names = plane.stat_names
        ids = [number for number, name in plane.stat_names.items() if name in wanted]
        self.stat_ids = np.array(sorted(ids), dtype=np.int64)
        self._stats: list[list[Stat]] = [[] for _ in ids]
        self._timestamps = np.array([line.timestamp_ns for line in lines], dtype=np.int64)
        self._names = plane.event_names
        self._name_ids = np.array(sorted(plane.event_names), dtype=np.int64)
        self._columns: tuple[list[Numbers], ...] = ([], [], [], [])
        self._rows = self._damaged = self._aggregates = self._rounded = 0

    def add(self, part: Events, of_run: Ints) -> None:
        """Append a block; ``of_run`` tells the line of each run."""
        timed = part.occurrences == 0
        kept = part.sound & timed
        self._damaged += int((~part.sound).sum())
        self._aggregates += int((part.sound & ~timed).sum())
        line = of_run[part.run]
        offset, rest = np.divmod(part.offset_ps + _PS_PER_NS // 2, _PS_PER_NS)
        duration, rest_too = np.divmod(part.duration_ps + _PS_PER_NS // 2, _PS_PER_NS)
        half = _PS_PER_NS // 2
        self._rounded += int((((rest != half) | (rest_too != half)) & kept).sum())
        columns: tuple[Numbers, ...] = (
            line.astype(np.int32),
            places(part.metadata_id, self._name_ids).astype(np.int32),
            self._timestamps[line] + offset,
            duration,
        )
        row = np.arange(len(kept))
        if not kept.all():
            columns = tuple(column[kept] for column in columns)
            row = np.cumsum(kept) - 1
        for blocks, column in zip(self._columns, columns, strict=True):
            blocks.append(column)
        stats = part.stats
        place = places(stats.metadata_id, self.stat_ids)
        if not kept.all():
            place = np.where(kept[stats.owner], place, len(self.stat_ids))
        for number in np.unique(place).tolist():
            if number < len(self.stat_ids):
                here = np.flatnonzero(place == number)
                self._stats[number].append(
                    Stat(
                        (row[stats.owner[here]] + self._rows).astype(np.int32),
                        stats.kind[here],
                        stats.value[here],
                        stats.length[here].astype(np.int32),
                    )
                )
        self._rows += len(columns[0])

    def columns(self, buffer: Buffer, cut: bool) -> EventColumns:
        """Return what was gathered."""
        line, name, start, duration = map(_joined, self._columns)
        return EventColumns(
            line,
            name,
            start,
            duration,
            [*(self._names[n] or None for n in self._name_ids.tolist()), None],
            self._damaged,
            self._aggregates,
            self._rounded,
            cut,
            buffer,
            self._stat_names,
            self._by_name(),
        )

    def _by_name(self) -> dict[str, Stat]:
        found = {}
        for number, parts in zip(self.stat_ids.tolist(), self._stats, strict=True):
            if parts:
                found[self._stat_names[number]] = Stat(
                    np.concatenate([part.row for part in parts]),
                    np.concatenate([part.kind for part in parts]),
                    np.concatenate([part.value for part in parts]),
                    np.concatenate([part.length for part in parts]),
                )
                parts.clear()
        return found


def _joined(blocks: list[Numbers]) -> Numbers:
    """Return the blocks as one array, and leave none of them."""
    joined = np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.int64)
    blocks.clear()
    return joined
