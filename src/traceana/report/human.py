"""Numbers for people. Exact figures are in the JSON, CSV and Parquet output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_TIME_UNITS: Final = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
_FLOP_UNITS: Final = (
    *((10**15, "PFLOP"), (10**12, "TFLOP"), (10**9, "GFLOP"), (10**6, "MFLOP")),
    *((10**3, "kFLOP"), (1, "FLOP")),
)
_BYTE_UNITS: Final = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))

_BINARY_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")

Unit = tuple[int, str]


def time_unit(durations: Iterable[int | None]) -> Unit:
    """Return the one unit in which a column of ``durations`` (ns) is shown.

    The largest of them has at least two digits before the point, so that the small ones beside it
    keep theirs behind it.
    """
    largest = max((abs(value) for value in durations if value is not None), default=0)
    return next((unit for unit in _TIME_UNITS if largest >= 10 * unit[0]), _TIME_UNITS[-1])


def in_unit(duration: int, unit: Unit) -> str:
    """Return ``duration`` (ns) in ``unit`` without the unit, to three decimals: ``1,234.500``."""
    size, _ = unit
    if size == 1:
        return f"{duration:,}"
    return f"{duration / size:,.3f}"


def duration(value: int) -> str:
    """Return a duration (ns) in three or four digits with its unit: ``12.35 ms``."""
    size, name = next((unit for unit in _TIME_UNITS if abs(value) >= unit[0]), _TIME_UNITS[-1])
    return f"{value} ns" if size == 1 else f"{_digits(value / size)} {name}"


def size(value: float) -> str:
    """Return a number of bytes with a decimal unit: ``3.84 MB``."""
    return _prefixed(value, _BYTE_UNITS)


def rate(value: float) -> str:
    """Return bytes per second with a decimal unit: ``11.5 GB/s``."""
    return f"{size(value)}/s"


def flops(value: float) -> str:
    """Return a number of floating-point operations with its unit: ``1.25 GFLOP``."""
    return _prefixed(value, _FLOP_UNITS)


def flop_rate(value: float) -> str:
    """Return floating-point operations per second with their unit: ``14.1 TFLOP/s``."""
    return f"{flops(value)}/s"


def share(value: float) -> str:
    """Return a fraction of 1 as percent: ``12.3 %``; what is there and tiny is not shown as 0."""
    if 0 < value < 0.0005:
        return "<0.1 %"
    return f"{100 * value:.1f} %"


def ratio(value: float) -> str:
    """Return a quotient: three digits that tell."""
    return _digits(value)


def count(value: int) -> str:
    """Return a count with its thousands set apart: ``9,329``."""
    return f"{value:,}"


def mean(value: float) -> str:
    """Return a mean of counts: ``12``, ``3.5``, ``<0.1``; what is there and tiny is not 0."""
    if 0 < value < 0.05:
        return "<0.1"
    return f"{value:,.1f}".removesuffix(".0")


def power_of_two(value: int) -> str:
    """Return a power of two of bytes with a binary unit: ``4 KiB``."""
    power = max(value.bit_length() - 1, 0) // 10
    return f"{value >> 10 * power} {_BINARY_UNITS[power]}"


def counted(value: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun: ``1 step``, ``1,200 steps``."""
    return f"{value:,} {noun if value == 1 else plural or f'{noun}s'}"


def _prefixed(value: float, units: tuple[Unit, ...]) -> str:
    unit, name = next((unit for unit in units if abs(value) >= unit[0]), units[-1])
    return f"{value:.0f} {name}" if unit == 1 else f"{_digits(value / unit)} {name}"


def _digits(value: float) -> str:
    magnitude = abs(value)
    decimals = 2 if magnitude < 99.995 else 1
    return f"{value:,.{decimals}f}"
