"""The cells of a table as text, with one unit per column; in records each value has its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
import polars as pl

from traceana.plain_text import plain
from traceana.report import display_names, numbers
from traceana.report.page import Table
from traceana.table import STEP, Column, Kind
from traceana.trace.schema import CPU_DEVICE

BAR: Final = "bar"
"""The name of the bar column."""
BAR_WIDTH: Final = 20
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"

_LONG: Final = (Kind.LONG, Kind.KERNEL, Kind.PATH, Kind.LINE, Kind.CODE, Kind.PARTS)
_TEXT: Final = (*_LONG, Kind.TEXT, Kind.CATEGORY, Kind.PART, Kind.LIBRARY, Kind.BATCHED, Kind.FLAG)

DISPLAY_UNITS: Final[dict[Kind, numbers.Units]] = {
    Kind.TIME: numbers.TIME,
    Kind.MOMENT: numbers.TIME,
    Kind.BYTES: numbers.BYTES,
    Kind.RATE: numbers.BYTE_RATE,
    Kind.FLOPS: numbers.FLOPS,
    Kind.FLOP_RATE: numbers.FLOP_RATE,
}


_RATES: Final = (Kind.RATE, Kind.FLOP_RATE)
"""Kinds with the unit of the largest value: all tables of a run then have the same unit."""


class Cells(msgspec.Struct, frozen=True):
    """A column as text: its name, title, unit (may be empty), cells, and the total below them."""

    name: str
    title: str
    unit: str
    kind: Kind
    cells: list[str]
    total: str = ""
    group: str = ""

    @property
    def right(self) -> bool:
        """Whether the column is right-aligned, because it has numbers."""
        return self.kind not in _TEXT

    @property
    def long(self) -> bool:
        """Whether the cells may be too long for a line."""
        return self.kind in _LONG


def cells_of(table: Table) -> list[Cells]:
    """Return the columns of ``table`` as text, with bars after the column that they show."""
    scales = {} if table.layout == "records" else _scales(table)
    cells = []
    for column in table.columns:
        cells.append(_cells(column, table, scales.get(column.name)))
        if column.name == table.bars:
            bars = [_bar(share) for share in table.bars_of(column.name)]
            cells.append(Cells(BAR, "", "", Kind.TEXT, bars))
    return cells


def value_text(kind: Kind, value: Any) -> str:
    """Return one value with its unit."""
    if kind in DISPLAY_UNITS:
        return _WITH_UNIT[kind](value)
    return _WRITERS[kind](value)


def texts(kind: Kind, values: pl.Series) -> list[str]:
    """Return ``values`` as text, each with its unit; null is the empty text."""
    if kind is Kind.KERNEL:
        # Arguments stay where these alone distinguish two kernels.
        brief = display_names.briefs(map(str, values.drop_nulls().unique(maintain_order=True)))
        return ["" if value is None else brief[str(value)] for value in values]
    return ["" if value is None else value_text(kind, value) for value in values]


def _scales(table: Table) -> dict[str, numbers.Scale]:
    """Return the scale of each column that has a unit; columns of one group share theirs."""
    sharing: dict[tuple[Kind, str], list[str]] = {}
    for column in table.columns:
        if column.kind in DISPLAY_UNITS or column.kind is Kind.INTENSITY:
            shared = column.scale or column.name
            sharing.setdefault((column.kind, shared), []).append(column.name)
    scales = {}
    for (kind, shared), columns in sharing.items():
        values = [value for name in columns for value in table.frame[name]]
        total = max(abs(table.totals.get(name, 0)) for name in columns)
        if kind is Kind.INTENSITY:
            scale = numbers.ratio_scale(values)
        elif kind is Kind.MOMENT:
            durations = table.frame["time_ns"] if "time_ns" in table.frame.columns else ()
            scale = numbers.moment_scale(values, DISPLAY_UNITS[kind], durations)
        elif shared == STEP or kind in _RATES:
            scale = numbers.scale(values, DISPLAY_UNITS[kind], total)
        else:
            scale = numbers.column_scale(values, DISPLAY_UNITS[kind], total)
        scales.update(dict.fromkeys(columns, scale))
    return scales


def _cells(column: Column, table: Table, scale: numbers.Scale | None) -> Cells:
    values = table.frame[column.name]
    kind = column.kind
    if kind is Kind.COUNT and values.dtype.is_float():
        kind = Kind.MEAN
    write: Callable[[Any], str] = partial(value_text, kind)
    write_total = write
    if scale is not None:
        write, write_total = scale.write, scale.write_total
    if column.signed:
        write, write_total = (partial(_signed, writer) for writer in (write, write_total))
    if kind is Kind.KERNEL:
        cells = texts(kind, values)
    else:
        cells = ["" if value is None else write(value) for value in values]
    total = table.totals.get(column.name)
    return Cells(
        column.name,
        column.title,
        "" if scale is None else scale.unit,
        kind,
        cells,
        "" if total is None else write_total(total),
        column.group,
    )


def _signed(write: Callable[[Any], str], value: Any) -> str:
    text = write(value)
    # Less than the smallest share that is shown.
    if text.endswith("%") and text.startswith(("<", ">")):
        return "≈ 0"
    return numbers.with_sign(text, value)


def _bar(share: float) -> str:
    """Return a bar with ``share`` of the full width, in eighths of a character."""
    eighths = round(max(0.0, min(share, 1.0)) * BAR_WIDTH * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


_WITH_UNIT: Final[dict[Kind, Callable[[Any], str]]] = {
    Kind.TIME: numbers.duration,
    Kind.MOMENT: numbers.duration,
    Kind.BYTES: numbers.size,
    Kind.RATE: numbers.rate,
    Kind.FLOPS: numbers.flops,
    Kind.FLOP_RATE: numbers.flop_rate,
}

_WRITERS: Final[dict[Kind, Callable[[Any], str]]] = {
    Kind.TEXT: lambda value: plain(str(value)),
    Kind.LONG: lambda value: plain(str(value)),
    Kind.PATH: lambda value: plain(str(value)),
    Kind.LINE: lambda value: plain(str(value)),
    Kind.CODE: lambda value: plain(str(value).expandtabs(4)),
    Kind.KERNEL: lambda value: display_names.brief(str(value)),
    Kind.CATEGORY: display_names.category,
    Kind.PART: display_names.part,
    Kind.PARTS: display_names.part,
    Kind.LIBRARY: display_names.libraries,
    Kind.BATCHED: lambda value: display_names.BATCHED.get(value, value),
    Kind.NUMBER: str,
    Kind.COUNT: numbers.count,
    Kind.MEAN: numbers.mean,
    Kind.BINARY: numbers.power_of_two,
    Kind.SHARE: numbers.share,
    Kind.INTENSITY: numbers.ratio,
    Kind.RATIO: numbers.ratio,
    Kind.PROBABILITY: lambda value: "<0.001" if value < 0.0005 else f"{value:.3f}",
    Kind.VALUE: numbers.value,
    Kind.FLAG: lambda value: "yes" if value else "no",
    Kind.DEVICE: lambda value: "cpu" if value == CPU_DEVICE else str(value),
}
