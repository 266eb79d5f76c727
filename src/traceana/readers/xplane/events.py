"""Events of a plane's lines as columns: names, nanoseconds, and the stats that are read.

The tables are made of :class:`PlaneEvents`, which an XPlane file and a ``trace.json`` both provide.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, Self

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from traceana.readers.xplane.decode import (
    REFERENCE,
    SIGNED,
    STRING,
    UNSIGNED,
    Events,
    SortedIds,
    Stats,
)
from traceana.readers.xplane.scan import Block, blocks
from traceana.readers.xplane.space import Line, Plane, in_line
from traceana.readers.xplane.wire import (
    LENGTH,
    TAG,
    Buffer,
    Ints,
    Mask,
    Numbers,
    fields,
)

DEVICE_STATS: Final = (
    "correlation_id",
    "kernel_details",
    "memcpy_details",
    "memset_details",
    "context_id",
    "tf_op",
    "annotation",
    "hlo_op",
    "hlo_module",
    "program_id",
)
"""Names of the stats of activities; ``trace.json`` has them as arguments."""
HOST_STATS: Final = ("correlation_id", "hlo_op", "hlo_module", "program_id", "shape", "step_num")
ALLOCATOR_STATS: Final = (
    "allocator_name",
    "allocation_bytes",
    "addr",
    "bytes_allocated",
    "bytes_reserved",
)
"""Stats of the host's allocations; no recorded ``trace.json`` has them."""
_AT_ONCE: Final = 1 << 14
"""Events whose times are computed at once: the columns of so many stay in the processor's cache."""
_STRINGS_AT_ONCE: Final = 1 << 16
_SEPARATOR: Final = 0
_INT64: Final = np.uint64(1 << 63)
_PS_PER_NS: Final = 1000


class PlaneEvents(Protocol):
    """Events of some lines of a plane.

    ``line`` indexes the requested lines, ``name`` the plane's names; times are nanoseconds on the
    file's clock.
    """

    @property
    def line(self) -> Numbers: ...
    @property
    def name(self) -> Numbers: ...
    @property
    def start(self) -> Numbers: ...
    @property
    def duration(self) -> Numbers: ...

    def pick(self, rows: Mask) -> Self:
        """Return some rows; the result cannot be narrowed again."""
        ...

    def has(self, stat: str) -> Mask:
        """Return which rows have a stat."""
        ...

    def integers(self, stat: str) -> pl.Series:
        """Return an integer stat as Int64, null for rows without one."""
        ...

    def texts(self, stat: str) -> pl.Series:
        """Return a text stat as Categorical, null for rows without one."""
        ...


class LineEvents:
    """The events of some lines of a plane, decoded block by block during the iteration.

    Only stats named in ``wanted`` are decoded. Times are rounded to the nearest nanosecond. The
    counts are complete after the iteration.
    """

    def __init__(
        self, buffer: Buffer, plane: Plane, lines: Sequence[Line], wanted: Collection[str]
    ) -> None:
        self.rows = self.damaged = 0
        self.aggregates = 0
        """Aggregates of several events, which have no time, and no row."""
        self.rounded = 0
        """Rows with a fraction of a nanosecond."""
        self.empty = 0
        """Events without a name, a time and stats, which have no row."""
        self.unnamed = 0
        """Rows whose name is not in the file."""
        self.unknown = 0
        """Fields among the events that XLine does not have."""
        self.till = 0
        """The byte up to which the file has been read."""
        self.cut = False
        """Whether the last event is truncated."""
        ordered = sorted(plane.event_names)
        self.names: list[str | None] = [*(plane.event_names[n] or None for n in ordered), None]
        self._unnamed = np.array([name is None for name in self.names], dtype=np.bool_)
        self._buffer = buffer
        self._lines = lines
        self._timestamps = np.array([line.timestamp_ns for line in lines], dtype=np.int64)
        self._name_ids = SortedIds(plane.event_names)
        self._wanted = SortedIds(
            number for number, name in plane.stat_names.items() if name in wanted
        )
        self._declared = SortedIds(plane.stat_names)
        ids = self._wanted.numbers.tolist()
        self._places = {plane.stat_names[number]: i for i, number in enumerate(ids)}
        self._referenced = Labels.of(plane.stat_names)

    @property
    def events(self) -> int:
        """The number of events in the file."""
        return self.rows + self.damaged + self.aggregates + self.empty + int(self.cut)

    def __iter__(self) -> Iterator[EventColumns]:
        begin = np.array([line.begin for line in self._lines], dtype=np.int64)
        end = np.array([line.end for line in self._lines], dtype=np.int64)
        line = np.flatnonzero(begin < end)
        begin, end = begin[line], end[line]
        while len(begin):
            decoded = blocks(self._buffer, begin, end, self._wanted, self._declared)
            for till, events in decoded:
                self.till = till
                yield self._columns(events, line)
            begin, end, line = self._rest(decoded.stop, end, line)

    def _rest(self, stop: Ints, end: Ints, line: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the runs that continue after a field other than an event."""
        again: list[tuple[int, int, int]] = []
        for i in np.flatnonzero(stop < end).tolist():
            at = int(stop[i])
            for part in fields(self._buffer, at, int(end[i])):
                if part.number == TAG >> 3:
                    self.cut |= part.cut
                    if not part.cut and part.wire == LENGTH and self._buffer.view[at] == TAG:
                        again.append((at, int(end[i]), int(line[i])))
                        break
                    # Of another wire type, or a tag of more bytes than it needs.
                    self.damaged += not part.cut
                elif (part.cut and part.end < self._buffer.size) or not in_line(part):
                    # Damage within an event can make the events behind it one field.
                    self.unknown += 1
                at = part.end
        columns = np.array(again, dtype=np.int64).reshape(-1, 3)
        return columns[:, 0], columns[:, 1], columns[:, 2]

    def _columns(self, parts: Iterable[Block], line_of_run: Ints) -> EventColumns:
        """Return the columns of some events; those without a row are counted."""
        columns, stat_parts, before = [], [], 0
        for events, event_stats in parts:
            stat_parts.append(replace(event_stats, owner=event_stats.owner + before))
            before += len(events)
            for at in range(0, len(events), _AT_ONCE):
                part = events.part(slice(at, at + _AT_ONCE))
                name = self._name_ids.indices(part.metadata_id)
                columns.append((part.run, name, *self._times(part)))
        run, name, start, duration, kept = map(np.concatenate, zip(*columns, strict=True))
        line = line_of_run.astype(np.uint32)[run]
        stats = stat_parts[0].followed_by(*stat_parts[1:])
        empty = kept & self._unnamed[name] & (start == 0) & (duration == 0)
        empty[stats.owner] = False
        self.empty += int(np.count_nonzero(empty))
        kept &= ~empty
        start += self._timestamps[line]
        if not kept.all():
            line, name, start, duration = line[kept], name[kept], start[kept], duration[kept]
            row = (np.cumsum(kept) - 1).astype(np.uint32)
            stats = stats.take(np.flatnonzero(kept[stats.owner]))
            stats = replace(stats, owner=row[stats.owner])
        self.rows += len(line)
        if self._unnamed[name].any():
            self.unnamed += int(self._unnamed[name].sum())
        stat_columns = StatColumns(self._buffer, self._places, self._referenced, stats)
        return EventColumns(line, name, start, duration, stat_columns)

    def _times(self, events: Events) -> tuple[Ints, Ints, Mask]:
        """Return nanoseconds since the line's start, durations, and which events become rows."""
        half = _PS_PER_NS // 2
        offset = (events.offset_ps + half) // _PS_PER_NS
        duration = (events.duration_ps + half) // _PS_PER_NS
        kept = events.sound & ~events.aggregate
        inexact_offset = offset * _PS_PER_NS != events.offset_ps
        inexact_duration = duration * _PS_PER_NS != events.duration_ps
        self.rounded += int(np.count_nonzero((inexact_offset | inexact_duration) & kept))
        self.damaged += int(np.count_nonzero(~events.sound))
        self.aggregates += int(np.count_nonzero(events.sound & events.aggregate))
        return offset, duration, kept


class EventColumns(msgspec.Struct, frozen=True):
    """Events of an XPlane file, as :class:`PlaneEvents`.

    ``picked`` is which of the owners of ``stats`` are rows; None: all of them.
    """

    line: Numbers
    name: Numbers
    start: Ints
    duration: Ints
    stats: StatColumns
    picked: Mask | None = None

    def pick(self, rows: Mask) -> EventColumns:
        """Return some rows; the result cannot be narrowed again."""
        if rows.all():
            return self
        return EventColumns(
            self.line[rows],
            self.name[rows],
            self.start[rows],
            self.duration[rows],
            self.stats,
            rows,
        )

    def has(self, stat: str) -> Mask:
        """Return which rows have a stat."""
        has_stat = np.zeros(len(self.line), dtype=np.bool_)
        has_stat[self._stat(stat)[0]] = True
        return has_stat

    def integers(self, stat: str) -> pl.Series:
        """Return an integer stat as Int64, null for rows without one."""
        row, stats = self._stat(stat)
        fits = (stats.kind == SIGNED) | ((stats.kind == UNSIGNED) & (stats.value < _INT64))
        return self._spread(row[fits], stats.value[fits].view(np.int64))

    def texts(self, stat: str) -> pl.Series:
        """Return a text stat as Categorical, null for rows without one."""
        row, stats = self._stat(stat)
        labels = self.stats.referenced.texts
        is_reference, is_string = stats.kind == REFERENCE, stats.kind == STRING
        code = np.zeros(len(row), dtype=np.int64)
        ids = stats.value[is_reference].view(np.int64)
        code[is_reference] = self.stats.referenced.ids.indices(ids)
        if is_string.any():
            start, length = stats.value[is_string].view(np.int64), stats.length[is_string]
            strings = _strings(self.stats.buffer, start, length)
            distinct = strings.unique(maintain_order=True)
            numbers = pl.Series(np.arange(len(distinct)))
            places = strings.to_physical().replace_strict(
                distinct.to_physical(), numbers, return_dtype=pl.Int64
            )
            code[is_string] = len(labels) + places.to_numpy()
            labels = pl.concat([labels, distinct])
        is_text = is_reference | is_string
        if not is_text.any():
            return pl.repeat(None, len(self.line), dtype=pl.Categorical(), eager=True)
        return labels.gather(self._spread(row[is_text], code[is_text]))

    def _stat(self, name: str) -> tuple[Numbers, Stats]:
        """Return one stat, and the row of each value."""
        stats = self.stats.of(name)
        if self.picked is None or not len(stats.owner):
            return stats.owner, stats
        stats = stats.take(np.flatnonzero(self.picked[stats.owner]))
        return (np.cumsum(self.picked) - 1)[stats.owner], stats

    def _spread(self, row: Numbers, values: Ints) -> pl.Series:
        """Return ``values`` in their rows, null in other rows."""
        column = np.zeros(len(self.line), dtype=np.int64)
        column[row] = values
        has_value = np.zeros(len(self.line), np.bool_)
        has_value[row] = True
        if has_value.all():
            return pl.Series(column)
        return pl.select(pl.when(pl.Series(has_value)).then(pl.Series(column))).to_series()


class StatColumns(msgspec.Struct, frozen=True):
    """Stats of some events; ``indices`` maps a name to its ``stats.index``."""

    buffer: Buffer
    indices: Mapping[str, int]
    referenced: Labels
    stats: Stats

    def of(self, name: str) -> Stats:
        """Return the stats with the name ``name``."""
        return self.stats.take(np.flatnonzero(self.stats.index == self.indices.get(name, -1)))


class Labels(msgspec.Struct, frozen=True):
    """Texts by their metadata ids."""

    ids: SortedIds
    texts: pl.Series
    """In the order of the ids; last, null for unknown ids."""

    @classmethod
    def of(cls, names: Mapping[int, str]) -> Labels:
        """Return the labels in a plane's metadata."""
        ids = SortedIds(names)
        texts = [*(names[number] for number in ids.numbers.tolist()), None]
        return cls(ids, pl.Series(texts, dtype=pl.String).cast(pl.Categorical()))


def _codes(labels: pl.Series, distinct: pl.Series) -> Ints:
    if not len(labels):
        return np.zeros(0, dtype=np.int64)
    numbers = pl.Series(np.arange(len(distinct)))
    return (
        labels.to_physical()
        .replace_strict(distinct.to_physical(), numbers, return_dtype=pl.Int64)
        .to_numpy()
    )


def _strings(buffer: Buffer, start: Ints, length: Numbers) -> pl.Series:
    """Return the strings at some positions of the file as Categorical.

    They are concatenated with a separator, at which polars splits them.
    """
    parts = [pl.Series(dtype=pl.Categorical())]
    for at in range(0, len(start), _STRINGS_AT_ONCE):
        starts, lengths = (column[at : at + _STRINGS_AT_ONCE] for column in (start, length))
        ends = np.cumsum(lengths + 1, dtype=np.int64)
        index = np.arange(int(ends[-1]))
        text = buffer.data[index + np.repeat(starts - (ends - lengths - 1), lengths + 1)]
        # A string that contains the separator must not become two.
        text[text == _SEPARATOR] = ord("?")
        text[ends - 1] = _SEPARATOR
        whole = text[:-1].tobytes().decode("utf-8", "replace")
        strings = pl.Series([whole]).str.split(chr(_SEPARATOR)).explode()
        parts.append(strings.cast(pl.Categorical()))
    return pl.concat(parts)


def labels(texts: Sequence[str | None]) -> pl.Series:
    """Return texts as Categorical, for :func:`gathered` to choose from."""
    return pl.Series(texts, dtype=pl.String).cast(pl.Categorical())


def gathered(values: pl.Series, numbers: Numbers) -> pl.Series:
    """Return the value at each of ``numbers``."""
    return values.gather(pl.Series(numbers.astype(np.uint32, copy=False)))


def per_distinct(texts: pl.Series, **columns: pl.Expr) -> pl.DataFrame:
    """Return ``columns``, expressions of ``text``, for each of ``texts`` (Categorical).

    They are evaluated once per distinct text; null stays null.
    """
    distinct = texts.unique().drop_nulls()
    evaluated = (
        distinct.alias("label")
        .to_frame()
        .with_columns(pl.col("label").cast(pl.String).alias("text"))
        .select("label", *(expression.alias(name) for name, expression in columns.items()))
    )
    frame = texts.alias("label").to_frame()
    if not len(distinct):
        nothing = (pl.lit(None, dtype).alias(name) for name, dtype in evaluated.schema.items())
        return frame.with_columns(nothing).drop("label")
    return frame.join(evaluated, on="label", how="left", maintain_order="left").drop("label")
