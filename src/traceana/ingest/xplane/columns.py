"""Decoded events as columns: names, nanoseconds, and the stats that were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from traceana.ingest.xplane.buffer import Buffer, Ints, Mask, Numbers
from traceana.ingest.xplane.known import Known
from traceana.ingest.xplane.messages import REFERENCE, SIGNED, STRING, UNSIGNED, Stats

_STRINGS_AT_ONCE: Final = 1 << 16
_SEPARATOR: Final = 0
_INT64: Final = np.uint64(1 << 63)


@dataclass(frozen=True, slots=True)
class Labels:
    """Texts by their numbers in the file."""

    known: Known
    texts: pl.Series
    """Of each number in order, and null for one unknown."""

    @classmethod
    def of(cls, names: Mapping[int, str]) -> Labels:
        """Return the labels that a plane's metadata tells."""
        known = Known(names)
        texts = [*(names[number] for number in known.numbers.tolist()), None]
        return cls(known, pl.Series(texts, dtype=pl.String).cast(pl.Categorical()))


@dataclass(frozen=True, slots=True)
class StatColumns:
    """Stats of some events; ``places`` tells ``stats.place`` of a name."""

    buffer: Buffer
    places: Mapping[str, int]
    referred: Labels
    stats: Stats

    def of(self, name: str) -> Stats:
        """Return the stats of one name."""
        return self.stats.take(np.flatnonzero(self.stats.place == self.places.get(name, -1)))


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Events of some lines, as :class:`traceana.ingest.xplane.plane_events.PlaneEvents`.

    ``picked`` tells which of the owners of ``stats`` the rows are; None: all of them.
    """

    line: Numbers
    name: Numbers
    start: Ints
    duration: Ints
    stats: StatColumns
    picked: Mask | None = None

    def pick(self, rows: Mask) -> EventColumns:
        """Return some rows of columns that nothing was picked of."""
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
        """Tell which rows have a stat."""
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
        labels = self.stats.referred.texts
        refers, spelt = found.kind == REFERENCE, found.kind == STRING
        code = np.zeros(len(row), dtype=np.int64)
        code[refers] = self.stats.referred.known.places(found.value[refers].view(np.int64))
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
        """Return one stat, and the row of each among these."""
        found = self.stats.of(name)
        if self.picked is None or not len(found.owner):
            return found.owner, found
        found = found.take(np.flatnonzero(self.picked[found.owner]))
        return (np.cumsum(self.picked) - 1)[found.owner], found

    def _spread(self, row: Numbers, values: Ints) -> pl.Series:
        """Return ``values`` in their rows, null in the others."""
        column, known = np.zeros(len(self.line), dtype=np.int64), np.zeros(len(self.line), np.bool_)
        column[row], known[row] = values, True
        if known.all():
            return pl.Series(column)
        return pl.select(pl.when(pl.Series(known)).then(pl.Series(column))).to_series()


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
    """Return the strings at some places of the file as Categorical, without one object each."""
    parts = [
        _joined(buffer, start[i : i + _STRINGS_AT_ONCE], length[i : i + _STRINGS_AT_ONCE])
        for i in range(0, len(start), _STRINGS_AT_ONCE)
    ]
    return pl.concat([pl.Series(dtype=pl.Categorical()), *parts])


def _joined(buffer: Buffer, start: Ints, length: Numbers) -> pl.Series:
    """Copy the strings one behind the other, a separator between them, and let polars split."""
    ends = np.cumsum(length + 1, dtype=np.int64)
    place = np.arange(int(ends[-1]))
    text = buffer.data[place + np.repeat(start - (ends - length - 1), length + 1)]
    # A string that has the separator within it must not become two.
    text[text == _SEPARATOR] = ord("?")
    text[ends - 1] = _SEPARATOR
    whole = text[:-1].tobytes().decode("utf-8", "replace")
    return pl.Series([whole]).str.split(chr(_SEPARATOR)).explode().cast(pl.Categorical())
