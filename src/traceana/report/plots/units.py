"""Axes in the unit that fits the values."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from traceana.report.plots.picture import Axis

_TIMES = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))
_BYTES = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))
_FLOPS = ((10**12, "TFLOP"), (10**9, "GFLOP"), (10**6, "MFLOP"), (10**3, "kFLOP"), (1, "FLOP"))


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
