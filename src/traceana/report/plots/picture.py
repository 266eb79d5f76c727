"""What a picture shows, before anything is drawn: panels with lines or with bars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

_TIMES = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))
_BYTES = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))
_FLOPS = ((10**12, "TFLOP"), (10**9, "GFLOP"), (10**6, "MFLOP"), (10**3, "kFLOP"), (1, "FLOP"))


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its label with the unit; ``log`` is the base of a logarithmic one."""

    label: str
    log: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that gave no figure: where it would stand, and why there is none."""

    x: float
    reason: str


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one series in the order of ``x``, in the units of the axes.

    ``low`` and ``high`` bound each point. A line with a ``dash`` is no measurement (a model, what
    would be ideal): thin, grey, without points.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    failures: Sequence[Failure] = ()
    dash: str | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """One series of bars: a value for each of the panel's ``rows``, null where there is none.

    ``notes`` stand in place of bars that are not there; a ``printed`` series is a paper's.
    """

    label: str
    values: Sequence[float | None]
    notes: Sequence[str | None] = ()
    printed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: lines over ``x``, or bars that lie along ``x``, one group a name of ``rows``."""

    title: str
    x: Axis
    y: Axis | None = None
    lines: Sequence[Line] = ()
    rows: Sequence[str] = ()
    bars: Sequence[Bars] = ()
    mark: float | None = None
    """Of bars: a value to compare with, drawn as a line."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Panels, ``columns`` beside each other, under what was measured (``title``) on what."""

    title: str
    on: Sequence[str] = ()
    panels: Sequence[Panel] = field(default_factory=tuple)
    columns: int = 2
    share: Literal["row", "all"] | None = None
    """Which panels have one y axis: the same rows of bars are then named once."""
    one_scale: bool = False
    """Whether all panels have one x axis: their bars can be compared by their lengths."""


def time_axis(label: str, values: pl.Series, log: int | None = None) -> tuple[Axis, int]:
    """Return the axis of times (ns), and what they are to be divided by."""
    return _axis(label, values, log, _TIMES)


def bytes_axis(label: str, values: pl.Series, log: int | None = None) -> tuple[Axis, int]:
    """Return the axis of sizes in bytes, and what they are to be divided by."""
    return _axis(label, values, log, _BYTES)


def flops_axis(label: str, values: pl.Series, log: int | None = None) -> tuple[Axis, int]:
    """Return the axis of numbers of operations, and what they are to be divided by."""
    return _axis(label, values, log, _FLOPS)


def scaled(values: Iterable[float | None], size: float) -> list[float | None]:
    """Return ``values`` over ``size``, null where there is none."""
    return [None if value is None else value / size for value in values]


def _axis(
    label: str, values: pl.Series, log: int | None, units: tuple[tuple[int, str], ...]
) -> tuple[Axis, int]:
    most = max(values.drop_nulls().to_list(), default=0)
    size, unit = next((one for one in units if most >= one[0]), units[-1])
    return Axis(f"{label} ({unit})", log), size


def summed(
    frame: pl.DataFrame, series: str, item: str, rows: Sequence[str], column: str, size: float
) -> list[Bars]:
    """Return a series of bars for each value of ``series``: the sums of ``column`` over ``size``.

    There is a bar for each of ``rows``, which are values of ``item``; a series without a figure is
    left out. One that has a ``source`` is a paper's.
    """
    found = []
    for (label,), own in frame.group_by(series, maintain_order=True):
        sums = own.drop_nulls(column).group_by(item).agg(pl.col(column).sum())
        values = dict(sums.iter_rows())
        printed = "source" in own.columns and own["source"].is_not_null().any()
        if values:
            heights = scaled([values.get(row) for row in rows], size)
            found.append(Bars(str(label), heights, printed=printed))
    return found
