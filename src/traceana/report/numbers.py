"""Display of numbers with at most four significant digits; machine formats have exact values."""

from __future__ import annotations

from collections.abc import Iterable
from math import log10
from typing import Final

import msgspec
from msgspec.structs import replace

Units = tuple[tuple[int, str], ...]

TIME: Final[Units] = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))
BYTES: Final[Units] = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))
FLOPS: Final[Units] = (
    *((10**15, "PFLOP"), (10**12, "TFLOP"), (10**9, "GFLOP"), (10**6, "MFLOP")),
    *((10**3, "kFLOP"), (1, "FLOP")),
)
BYTE_RATE: Final[Units] = tuple((size, f"{name}/s") for size, name in BYTES)
FLOP_RATE: Final[Units] = tuple((size, f"{name}/s") for size, name in FLOPS)

LONGEST: Final = 100_000
"""A column's values stay below this, its total below ten times this, in a unit that suits most."""
MINUS: Final = "\u2212"
_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class Scale(msgspec.Struct, frozen=True):
    """The unit of a column, and the decimals that give its largest value four digits."""

    factor: int
    unit: str
    decimals: int

    def write(self, value: float) -> str:
        """Return ``value`` without the unit; ``<0.1`` if it is too small for the decimals."""
        scaled = value / self.factor
        text = f"{scaled:,.{self.decimals}f}"
        if value and not float(text.replace(",", "")):
            return f"{'<' if value > 0 else f'>{MINUS}'}{10**-self.decimals:.{self.decimals}f}"
        return text.replace("-", MINUS) if value else "0"

    def write_total(self, value: float) -> str:
        """Return the sum of a column, which may be larger than its values, in four digits."""
        return replace(self, decimals=min(self.decimals, _decimals(value / self.factor))).write(
            value
        )


def scale(values: Iterable[float | None], units: Units) -> Scale:
    """Return the scale of a column of ``values``, chosen by the largest value."""
    largest = max((abs(value) for value in values if value is not None), default=0)
    factor, unit = _unit(largest, units)
    return Scale(factor, unit, 0 if factor == 1 else _decimals(largest / factor))


def column_scale(cells: Iterable[float | None], units: Units, total: float = 0) -> Scale:
    """Return the scale of a column, chosen by its largest value and by most of its ``cells``.

    Where most are less than a tenth of the unit of the largest value, the unit is the next smaller
    one, unless that value or the ``total`` below the column becomes too long.
    """
    sizes = sorted(abs(value) for value in cells if value)
    whole = scale(sizes[-1:] or (total,), units)
    smaller = next((unit for unit in units if unit[0] < whole.factor), None)
    if not sizes or smaller is None:
        return whole
    factor, name = smaller
    typical = sizes[(len(sizes) - 1) // 2]
    if typical >= 0.1 * whole.factor or max(sizes[-1], total / 10) >= LONGEST * factor:
        return whole
    whole_numbers = factor == 1 or sizes[0] >= 10 * factor or sizes[-1] >= 10_000 * factor
    return Scale(factor, name, 0 if whole_numbers else 1)


def moment_scale(values: Iterable[int | None], units: Units) -> Scale:
    """Return the scale of moments, with decimals that keep most of different ones different."""
    known = [value for value in values if value is not None]
    found = scale(known, units)
    if found.factor == 1:
        return found
    distinct = len(set(known))
    for decimals in range(found.decimals, round(log10(found.factor))):
        if len({round(value * 10**decimals / found.factor) for value in known}) >= 0.9 * distinct:
            return replace(found, decimals=decimals)
    return replace(found, decimals=round(log10(found.factor)))


def duration(value: float) -> str:
    """Return a duration (ns) with its unit: ``12.35 ms``."""
    return _with_unit(value, TIME)


def size(value: float) -> str:
    """Return a number of bytes with a decimal unit: ``3.84 MB``."""
    return _with_unit(value, BYTES)


def rate(value: float) -> str:
    """Return bytes per second with a decimal unit: ``11.5 GB/s``."""
    return _with_unit(value, BYTE_RATE)


def flops(value: float) -> str:
    """Return a number of floating-point operations with its unit: ``1.25 GFLOP``."""
    return _with_unit(value, FLOPS)


def flop_rate(value: float) -> str:
    """Return floating-point operations per second with their unit: ``14.1 TFLOP/s``."""
    return _with_unit(value, FLOP_RATE)


def share(value: float) -> str:
    """Return a fraction of 1 as percent: ``12.3 %``, ``<0.1 %``."""
    if 0 < abs(value) < 0.0005:
        return "<0.1 %" if value > 0 else f">{MINUS}0.1 %"
    return f"{100 * value:,.1f} %".replace("-", MINUS)


def ratio(value: float) -> str:
    """Return a ratio in three or four digits."""
    return _digits(value)


def count(value: int) -> str:
    """Return a count with thousands separators: ``9,329``."""
    return f"{value:,}"


def mean(value: float) -> str:
    """Return a mean of counts: ``12``, ``3.5``, ``<0.1``."""
    if 0 < value < 0.05:
        return "<0.1"
    return f"{value:,.1f}".removesuffix(".0")


def power_of_two(value: int) -> str:
    """Return a power of two of bytes with a binary unit: ``4 KiB``."""
    power = max(value.bit_length() - 1, 0) // 10
    return f"{value >> 10 * power} {_BINARY[power]}"


def counted(value: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun: ``1 step``, ``1,200 steps``."""
    return f"{value:,} {noun if value == 1 else plural or f'{noun}s'}"


def arrow(before: int, after: int) -> str:
    """Return two durations in one unit: ``12.35 → 14.10 ms``."""
    both = scale([before, after], TIME)
    return f"{both.write(before)} → {both.write(after)} {both.unit}"


def signed(value: float) -> str:
    """Return a difference of durations with its sign: ``+1.25 ms``."""
    sign = "+" if value > 0 else MINUS if value < 0 else ""
    return f"{sign}{duration(abs(value))}"


def percent(value: float) -> str:
    """Return a relative difference with its sign: ``+2.3 %``."""
    return f"{100 * value:+,.1f} %".replace("-", MINUS)


def _unit(value: float, units: Units) -> tuple[int, str]:
    """Return the unit in which ``value`` has one to three digits before the point."""
    for factor, name in units:
        # A value that rounds up to the next unit in four digits has that unit.
        if abs(value) >= 0.99995 * factor:
            return factor, name
    return units[-1]


def _with_unit(value: float, units: Units) -> str:
    factor, name = _unit(value, units)
    return f"{value:.0f} {name}" if factor == 1 else f"{_digits(value / factor)} {name}"


def _digits(value: float) -> str:
    return f"{value:,.{min(_decimals(value), 2)}f}"


def _decimals(value: float) -> int:
    """Return the decimals of four significant digits."""
    magnitude = abs(value)
    return 3 if magnitude < 9.9995 else 2 if magnitude < 99.995 else 1 if magnitude < 999.95 else 0
