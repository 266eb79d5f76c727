"""How each column of any result is shown to people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import polars as pl

from traceana.report import human
from traceana.report.kinds import Kind, kind_of
from traceana.report.names import brief
from traceana.report.text import plain
from traceana.trace.schema import CPU_DEVICE

_LONG: Final = (Kind.LONG, Kind.KERNEL, Kind.PATH)

PER_CALL: Final = frozenset({"mean_ns", "median_ns", "min_ns", "max_ns"})

_ZERO_TELLS: Final = frozenset({"exposed_ns"})
"""Durations that are worth their width when all of them are 0."""

_CALLED: Final = {
    "algbw_bytes_per_s": "algbw",
    "busbw_bytes_per_s": "busbw",
    "bytes_per_s": "throughput",
    "flops_per_s": "FLOP/s",
    "executed_flops": "executed",
    "tensor_active": "tensor",
    "host_memory": "memory",
    "mean_bytes": "mean",
    "peak_share": "of peak",
    "step_share": "of step",
    "step_count": "per step",
    "step_bytes": "bytes per step",
    "size": "size from",
    "linear": "O(N-1)",
    "logarithmic": "O(log N)",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """A column made ready for a table of text: its title, unit (may be empty) and cells."""

    title: str
    kind: Kind
    cells: list[str]
    total: str = ""
    unit: str = ""

    @property
    def right(self) -> bool:
        """Whether the column is of numbers."""
        return self.kind not in (Kind.TEXT, *_LONG, Kind.FLAG)

    @property
    def long(self) -> bool:
        """Whether the cells may be too long for a line."""
        return self.kind in _LONG


def title_of(column: str) -> str:
    """Return what ``column`` is called in a table of text; its unit is told apart."""
    title = column.removesuffix("_ns")
    for written, called in _CALLED.items():
        title = title.replace(written, called)
    return title.replace("_", " ")


def tells(values: pl.Series) -> bool:
    """Tell whether a column is worth its width: not all null, and no durations that are all 0."""
    if values.null_count() == len(values):
        return False
    zero_tells = kind_of(values.name) is not Kind.TIME or values.name in _ZERO_TELLS
    return zero_tells or bool((values != 0).any())


def show(frame: pl.DataFrame, totals: Mapping[str, int], columns: Iterable[str]) -> list[Shown]:
    """Return those of ``columns`` of ``frame`` that tell something, for people.

    A column tells something in rows that are not shown where its total is more than 0.
    Durations that belong beside each other share one unit: those of single calls, and the others.
    """
    wanted = [column for column in columns if totals.get(column) or tells(frame[column])]
    times = [column for column in wanted if kind_of(column) is Kind.TIME]
    units: dict[str, human.Unit] = {}
    for group in (set(times) & PER_CALL, set(times) - PER_CALL):
        values = [value for c in group for value in (frame[c].max(), totals.get(c))]
        units |= dict.fromkeys(group, human.time_unit(values))  # type: ignore[arg-type]
    return [column_of(frame[column], units.get(column), totals.get(column)) for column in wanted]


def shown(kind: Kind, value: Any) -> str:
    """Return one value for people, with its unit."""
    return human.duration(value) if kind is Kind.TIME else _WRITERS[kind](value)


def column_of(values: pl.Series, unit: human.Unit | None, total: int | None = None) -> Shown:
    """Return ``values`` as the column of their name; ``unit`` is that of durations alone."""
    kind = kind_of(values.name)
    if kind is Kind.COUNT and values.dtype.is_float():
        kind = Kind.MEAN
    write = _WRITERS[kind] if unit is None else partial(human.in_unit, unit=unit)
    return Shown(
        title_of(values.name),
        kind,
        ["" if value is None else write(value) for value in values],
        "" if total is None else write(total),
        "" if unit is None else unit[1],
    )


_WRITERS: Final[dict[Kind, Callable[[Any], str]]] = {
    Kind.TEXT: lambda value: plain(str(value)),
    Kind.LONG: lambda value: plain(str(value)),
    Kind.PATH: lambda value: plain(str(value)),
    Kind.KERNEL: lambda value: brief(str(value)),
    Kind.NUMBER: str,
    Kind.COUNT: human.count,
    Kind.MEAN: human.mean,
    Kind.BYTES: human.size,
    Kind.BINARY: human.power_of_two,
    Kind.RATE: human.rate,
    Kind.SHARE: human.share,
    Kind.FLOPS: human.flops,
    Kind.FLOP_RATE: human.flop_rate,
    Kind.INTENSITY: human.ratio,
    Kind.RATIO: human.ratio,
    Kind.CHANCE: lambda value: f"{value:.3f}",
    Kind.FLAG: lambda value: "yes" if value else "no",
    Kind.DEVICE: lambda value: "cpu" if value == CPU_DEVICE else str(value),
}
