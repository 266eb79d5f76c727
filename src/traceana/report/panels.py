"""A picture of several panels with lines or bars, which share a title and a legend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import polars as pl

from traceana.report.page import Illustration

_TIMES = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))
_BYTES = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))
_FLOPS = ((10**12, "TFLOP"), (10**9, "GFLOP"), (10**6, "MFLOP"), (10**3, "kFLOP"), (1, "FLOP"))


class Axis(msgspec.Struct, frozen=True):
    """One axis: its label with the unit; ``log`` is the base of a logarithmic one."""

    label: str
    log: int | None = None


class Failure(msgspec.Struct, frozen=True):
    """A run without a value: its position on the x axis, and the reason."""

    x: float
    reason: str


class Line(msgspec.Struct, frozen=True):
    """Points of one series in the order of ``x``, in the units of the axes.

    ``low`` and ``high`` are the bounds of each point. A line with a ``dash`` is a model or an
    ideal, not a measurement: thin, grey, without points.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    failures: Sequence[Failure] = ()
    dash: str | None = None


class Bars(msgspec.Struct, frozen=True):
    """One series of bars: a value, or None, for each of the panel's ``rows``.

    ``notes`` replace missing bars. A ``printed`` series is from a paper.
    """

    label: str
    values: Sequence[float | None]
    notes: Sequence[str | None] = ()
    printed: bool = False


class Panel(msgspec.Struct, frozen=True):
    """One plot: lines over ``x``, or horizontal bars, with one group per name in ``rows``."""

    title: str
    x: Axis
    y: Axis | None = None
    lines: Sequence[Line] = ()
    rows: Sequence[str] = ()
    bars: Sequence[Bars] = ()
    mark: float | None = None
    """A reference value of bars, drawn as a line."""


class Panels(Illustration, frozen=True):
    """Panels, ``columns`` side by side, below a title and the conditions of the measurement."""

    title: str
    conditions: Sequence[str] = ()
    panels: Sequence[Panel] = msgspec.field(default_factory=tuple)
    columns: int = 2
    share: Literal["row", "all"] | None = None
    """The panels that share a y axis, so that rows of bars are named once."""
    one_scale: bool = False
    """Whether all panels share an x axis, so that the lengths of their bars are comparable."""


def time_axis(label: str, values: pl.Series, log: int | None = None) -> tuple[Axis, int]:
    """Return the axis of times (ns), and the divisor of the values."""
    return _axis(label, values, log, _TIMES)


def bytes_axis(label: str, values: pl.Series, log: int | None = None) -> tuple[Axis, int]:
    """Return the axis of sizes in bytes, and the divisor of the values."""
    return _axis(label, values, log, _BYTES)


def flops_axis(label: str, values: pl.Series, log: int | None = None) -> tuple[Axis, int]:
    """Return the axis of FLOPs, and the divisor of the values."""
    return _axis(label, values, log, _FLOPS)


def scaled(values: Iterable[float | None], size: float) -> list[float | None]:
    """Return ``values`` divided by ``size``; None is kept."""
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
    """Return a series of bars for each value of ``series``: sums of ``column`` divided by ``size``.

    Each of ``rows``, which are values of ``item``, has a bar. Series without a value are omitted. A
    series with a ``source`` is from a paper.
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
