"""Decoded events as columns: names, nanoseconds, and the stats that were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from traceana.ingest.xplane.buffer import Buffer, Bytes, Ints, Mask, Numbers, Words
from traceana.ingest.xplane.decode import REFERENCE, SIGNED, STRING, UNSIGNED

_STRINGS_AT_ONCE: Final = 1 << 16
_SEPARATOR: Final = 0
_INT64: Final = np.uint64(1 << 63)


@dataclass(frozen=True, slots=True)
class Stat:
    """One stat of many events: the rows of those that have it, and the value of each.

    See :class:`traceana.ingest.xplane.decode.Stats`.
    """

    row: Numbers
    kind: Bytes
    value: Words
    length: Numbers


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Events of some lines, in the order of the file.

    ``line`` indexes the lines asked for, ``name`` indexes ``names``; times are nanoseconds on the
    file's clock. Not among the rows: ``damaged`` events, and ``aggregates``, which stand for
    several events and have no time. ``rounded`` counts the rows whose picoseconds are no whole
    nanoseconds; ``unnamed`` those whose name is not in the file. ``cut``: the last event breaks
    off.
    """

    line: Numbers
    name: Numbers
    start: Numbers
    duration: Numbers
    names: list[str | None]
    damaged: int
    aggregates: int
    rounded: int
    cut: bool
    buffer: Buffer
    stat_names: dict[int, str]
    stats: dict[str, Stat]

    @property
    def events(self) -> int:
        """How many events there are in the file, whether they have become rows or not."""
        return len(self.line) + self.damaged + self.aggregates + int(self.cut)

    @property
    def unnamed(self) -> int:
        """How many rows have no name."""
        lacking = np.array([name is None for name in self.names], dtype=np.bool_)
        return int(lacking[self.name].sum()) if lacking.any() else 0

    def labels(self, labels: Sequence[str | None]) -> pl.Series:
        """Return for each row the entry of ``labels``, one for each of ``names``."""
        texts = pl.Series(labels, dtype=pl.String).cast(pl.Categorical())
        return texts.gather(pl.Series(self.name))

    def has(self, stat: str) -> Mask:
        """Tell which rows have a stat."""
        known = np.zeros(len(self.line), dtype=np.bool_)
        if (found := self.stats.get(stat)) is not None:
            known[found.row] = True
        return known

    def integers(self, stat: str) -> pl.Series:
        """Return an integer stat as Int64, null for rows without one."""
        values = np.zeros(len(self.line), dtype=np.int64)
        known = np.zeros(len(self.line), dtype=np.bool_)
        if (found := self.stats.get(stat)) is not None:
            fits = (found.kind == SIGNED) | ((found.kind == UNSIGNED) & (found.value < _INT64))
            values[found.row[fits]] = found.value[fits].view(np.int64)
            known[found.row[fits]] = True
        return nullable(values, known)

    def texts(self, stat: str) -> pl.Series:
        """Return a text stat as Categorical, null for rows without one."""
        found = self.stats.get(stat)
        if found is None:
            return pl.repeat(None, len(self.line), dtype=pl.Categorical(), eager=True)
        code = np.zeros(len(self.line), dtype=np.int64)
        known = np.zeros(len(self.line), dtype=np.bool_)
        refers, spelt = found.kind == REFERENCE, found.kind == STRING
        number, inverse = np.unique(found.value[refers].view(np.int64), return_inverse=True)
        referred = [self.stat_names.get(n) for n in number.tolist()]
        code[found.row[refers]] = inverse
        written = _strings(self.buffer, found.value[spelt].view(np.int64), found.length[spelt])
        distinct = written.unique(maintain_order=True)
        code[found.row[spelt]] = len(referred) + _codes(written, distinct)
        known[found.row[refers | spelt]] = True
        labels = pl.concat([pl.Series(referred, dtype=pl.String).cast(pl.Categorical()), distinct])
        return labels.gather(nullable(code, known))


def nullable(values: Ints, known: Mask) -> pl.Series:
    """Return ``values`` as Int64, null where not ``known``."""
    series = pl.Series(values, dtype=pl.Int64)
    if known.all():
        return series
    return pl.select(pl.when(pl.Series(known)).then(series)).to_series()


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
