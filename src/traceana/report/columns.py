"""How each column of any result is shown to people, and its unit in the JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import polars as pl

from traceana.report import human
from traceana.report.text import plain
from traceana.trace.schema import CPU_DEVICE


class Kind(Enum):
    """What the values of a column are."""

    TEXT = auto()
    NAME = auto()  # text that may be long: takes the width that is left
    NUMBER = auto()  # an ordinal or identifier: no thousands set apart
    COUNT = auto()
    TIME = auto()
    BYTES = auto()
    RATE = auto()
    SHARE = auto()
    FLAG = auto()
    DEVICE = auto()


UNITS: Final[dict[Kind, str]] = {
    Kind.TIME: "ns",
    Kind.BYTES: "B",
    Kind.RATE: "B/s",
    Kind.SHARE: "fraction of 1",
}

_KINDS: Final[dict[str, Kind]] = {
    "name": Kind.NAME,
    "layer": Kind.NAME,
    "subject": Kind.NAME,
    "reason": Kind.NAME,
    "also_matched": Kind.NAME,
    "value": Kind.NAME,
    "calls": Kind.COUNT,
    "count": Kind.COUNT,
    "devices": Kind.COUNT,
    "bytes": Kind.BYTES,
    "mean_bytes": Kind.BYTES,
    "bytes_per_s": Kind.RATE,
    "share": Kind.SHARE,
    "step": Kind.NUMBER,
    "process": Kind.NUMBER,
    "position": Kind.NUMBER,
    "device": Kind.DEVICE,
    "warm_up": Kind.FLAG,
    "batched": Kind.FLAG,
    "tensor_core": Kind.FLAG,
}


@dataclass(frozen=True, slots=True)
class Shown:
    """A column made ready for a table of text: its title and its cells."""

    title: str
    kind: Kind
    cells: list[str]
    total: str

    @property
    def right(self) -> bool:
        """Whether the column is of numbers."""
        return self.kind not in (Kind.TEXT, Kind.NAME, Kind.FLAG)


def kind_of(column: str) -> Kind:
    """Return the kind of ``column``: what is listed, durations by their ``_ns``, else text."""
    if column in _KINDS:
        return _KINDS[column]
    return Kind.TIME if column.endswith("_ns") else Kind.TEXT


def unit_of(column: str) -> str | None:
    """Return the unit of ``column`` in CSV, JSON and Parquet output; null for those without."""
    return UNITS.get(kind_of(column))


def show(values: pl.Series, total: int | None = None) -> Shown:
    """Return the column ``values`` for people; durations share one unit, named in the title."""
    column, kind = values.name, kind_of(values.name)
    title = column.replace("_", " ")
    if kind is Kind.TIME:
        unit = human.time_unit([*values, total])
        cells = ["" if value is None else human.in_unit(value, unit) for value in values]
        footer = "" if total is None else human.in_unit(total, unit)
        return Shown(f"{title.removesuffix(' ns')} ({unit[1]})", kind, cells, footer)
    write = _WRITERS[kind]
    cells = ["" if value is None else write(value) for value in values]
    title = title.replace("bytes per s", "throughput")
    return Shown(title, kind, cells, "" if total is None else write(total))


_WRITERS: Final[dict[Kind, Callable[[Any], str]]] = {
    Kind.TEXT: lambda value: plain(str(value)),
    Kind.NAME: lambda value: plain(str(value)),
    Kind.NUMBER: str,
    Kind.COUNT: human.count,
    Kind.BYTES: human.size,
    Kind.RATE: human.rate,
    Kind.SHARE: human.share,
    Kind.FLAG: lambda value: "yes" if value else "no",
    Kind.DEVICE: lambda value: "cpu" if value == CPU_DEVICE else str(value),
}
