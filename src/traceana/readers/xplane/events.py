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
    Known,
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

    Only stats named in ``wanted`` are decoded. Times are rounded to the nearest nanosecond.

    Afterwards ``events`` is the number of events in the file. Those without a row are ``damaged``,
    or ``aggregates`` of several events, which have no time. ``rounded`` counts rows with a
    fraction of a nanosecond, ``unnamed`` those whose name is not in the file. ``unknown`` counts
    fields among the events that XLine does not have. ``cut``: the last event is truncated.
    ``till`` is the byte up to which the file has been read.
    """

    def __init__(
        self, buffer: Buffer, plane: Plane, lines: Sequence[Line], wanted: Collection[str]
    ) -> None:
        self.rows = self.damaged = self.aggregates = self.rounded = self.unnamed = 0
        self.unknown = self.till = 0
        self.cut = False
        ordered = sorted(plane.event_names)
        self.names: list[str | None] = [*(plane.event_names[n] or None for n in ordered), None]
        self._unnamed = np.array([name is None for name in self.names], dtype=np.bool_)
        self._buffer = buffer
        self._lines = lines
        self._timestamps = np.array([line.timestamp_ns for line in lines], dtype=np.int64)
        self._known_names = Known(plane.event_names)
        self._wanted = Known(number for number, name in plane.stat_names.items() if name in wanted)
        self._declared = Known(plane.stat_names)
        ids = self._wanted.numbers.tolist()
        self._places = {plane.stat_names[number]: i for i, number in enumerate(ids)}
        self._referenced = Labels.of(plane.stat_names)

    @property
    def events(self) -> int:
        """The number of events in the file."""
        return self.rows + self.damaged + self.aggregates + int(self.cut)

    def __iter__(self) -> Iterator[EventColumns]:
        begin = np.array([line.begin for line in self._lines], dtype=np.int64)
        end = np.array([line.end for line in self._lines], dtype=np.int64)
        line = np.flatnonzero(begin < end)
        begin, end = begin[line], end[line]
        while len(begin):
            found = blocks(self._buffer, begin, end, self._wanted, self._declared)
            for till, some in found:
                self.till = till
                yield self._columns(some, line)
            begin, end, line = self._rest(found.stop, end, line)

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

    def _columns(self, some: Iterable[Block], line_of_run: Ints) -> EventColumns:
        """Return the columns of some events; those without a row are counted."""
        columns, stats, before = [], [], 0
        for found, of_found in some:
            stats.append(replace(of_found, owner=of_found.owner + before))
            before += len(found)
            for at in range(0, len(found), _AT_ONCE):
                part = found.part(slice(at, at + _AT_ONCE))
                name = self._known_names.indices(part.metadata_id)
                columns.append((part.run, name, *self._times(part)))
        run, name, start, duration, kept = map(np.concatenate, zip(*columns, strict=True))
        line = line_of_run.astype(np.uint32)[run]
        start += self._timestamps[line]
        found_stats = stats[0].followed_by(*stats[1:])
        if not kept.all():
            found_stats = _of_kept(found_stats, kept)
            line, name, start, duration = line[kept], name[kept], start[kept], duration[kept]
        self.rows += len(line)
        if self._unnamed[name].any():
            self.unnamed += int(self._unnamed[name].sum())
        of_stats = StatColumns(self._buffer, self._places, self._referenced, found_stats)
        return EventColumns(line, name, start, duration, of_stats)

    def _times(self, found: Events) -> tuple[Ints, Ints, Mask]:
        """Return nanoseconds since the line's start, durations, and which events become rows."""
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


def _of_kept(stats: Stats, kept: Mask) -> Stats:
    row = (np.cumsum(kept) - 1).astype(np.uint32)
    stats = stats.take(np.flatnonzero(kept[stats.owner]))
    return replace(stats, owner=row[stats.owner])


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
        known = np.zeros(len(self.line), dtype=np.bool_)
        known[self._stat(stat)[0]] = True
        return known

    def integers(self, stat: str) -> pl.Series:
        """Return an integer stat as Int64, null for rows without one."""
        row, found = self._stat(stat)
        fits = (found.kind == SIGNED) | ((found.kind == UNSIGNED) & (found.value < _INT64))
        return self._spread(row[fits], found.value[fits].view(np.int64))

    def texts(self, stat: str) -> pl.Series:
        """Return a text stat as Categorical, null for rows without one."""
        row, found = self._stat(stat)
        labels = self.stats.referenced.texts
        refers, spelt = found.kind == REFERENCE, found.kind == STRING
        code = np.zeros(len(row), dtype=np.int64)
        code[refers] = self.stats.referenced.known.indices(found.value[refers].view(np.int64))
        if spelt.any():
            start, length = found.value[spelt].view(np.int64), found.length[spelt]
            written = _strings(self.stats.buffer, start, length)
            distinct = written.unique(maintain_order=True)
            code[spelt] = len(labels) + _codes(written, distinct)
            labels = pl.concat([labels, distinct])
        known = refers | spelt
        if not known.any():
            return pl.repeat(None, len(self.line), dtype=pl.Categorical(), eager=True)
        return labels.gather(self._spread(row[known], code[known]))

    def _stat(self, name: str) -> tuple[Numbers, Stats]:
        """Return one stat, and the row of each value."""
        found = self.stats.of(name)
        if self.picked is None or not len(found.owner):
            return found.owner, found
        found = found.take(np.flatnonzero(self.picked[found.owner]))
        return (np.cumsum(self.picked) - 1)[found.owner], found

    def _spread(self, row: Numbers, values: Ints) -> pl.Series:
        """Return ``values`` in their rows, null in other rows."""
        column, known = np.zeros(len(self.line), dtype=np.int64), np.zeros(len(self.line), np.bool_)
        column[row], known[row] = values, True
        if known.all():
            return pl.Series(column)
        return pl.select(pl.when(pl.Series(known)).then(pl.Series(column))).to_series()


class StatColumns(msgspec.Struct, frozen=True):
    """Stats of some events; ``indices`` maps a name to its ``stats.index``."""

    buffer: Buffer
    indices: Mapping[str, int]
    referenced: Labels
    stats: Stats

    def of(self, name: str) -> Stats:
        """Return the stats of one name."""
        return self.stats.take(np.flatnonzero(self.stats.index == self.indices.get(name, -1)))


class Labels(msgspec.Struct, frozen=True):
    """Texts by their metadata ids."""

    known: Known
    texts: pl.Series
    """In the order of the ids; last, null for unknown ids."""

    @classmethod
    def of(cls, names: Mapping[int, str]) -> Labels:
        """Return the labels in a plane's metadata."""
        known = Known(names)
        texts = [*(names[number] for number in known.numbers.tolist()), None]
        return cls(known, pl.Series(texts, dtype=pl.String).cast(pl.Categorical()))


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
    """Return the strings at some positions of the file as Categorical."""
    parts = [
        _split(buffer, start[i : i + _STRINGS_AT_ONCE], length[i : i + _STRINGS_AT_ONCE])
        for i in range(0, len(start), _STRINGS_AT_ONCE)
    ]
    return pl.concat([pl.Series(dtype=pl.Categorical()), *parts])


def _split(buffer: Buffer, start: Ints, length: Numbers) -> pl.Series:
    """Concatenate the strings with a separator, and let polars split them."""
    ends = np.cumsum(length + 1, dtype=np.int64)
    index = np.arange(int(ends[-1]))
    text = buffer.data[index + np.repeat(start - (ends - length - 1), length + 1)]
    # A string that contains the separator must not become two.
    text[text == _SEPARATOR] = ord("?")
    text[ends - 1] = _SEPARATOR
    whole = text[:-1].tobytes().decode("utf-8", "replace")
    return pl.Series([whole]).str.split(chr(_SEPARATOR)).explode().cast(pl.Categorical())


def labels(texts: Sequence[str | None]) -> pl.Series:
    """Return texts as Categorical, for :func:`of_each` to choose from."""
    return pl.Series(texts, dtype=pl.String).cast(pl.Categorical())


def of_each(values: pl.Series, numbers: Numbers) -> pl.Series:
    """Return the value at each of ``numbers``."""
    return values.gather(pl.Series(numbers.astype(np.uint32, copy=False)))


def of_distinct(texts: pl.Series, **columns: pl.Expr) -> pl.DataFrame:
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
