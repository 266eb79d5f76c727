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
BYTE_RATE: Final[Units] = tuple((size, f"{name}/s") for size, name in BYTES[1:])
"""Without TB/s: the bandwidths of memories stand beside those of links, in GB/s."""
FLOP_RATE: Final[Units] = tuple((size, f"{name}/s") for size, name in FLOPS[1:])
"""Without PFLOP/s: peaks are published in TFLOP/s."""

_FIVE_DIGITS: Final = 9_999.5
"""From here on a number has more than four digits before the point."""
_TWO_DIGITS: Final = 9.95
"""From here on a number has two digits before the point, when it has one behind it."""
MINUS: Final = "\u2212"
_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class Scale(msgspec.Struct, frozen=True):
    """The unit of a column, and the decimals that give its largest value four digits."""

    factor: int
    unit: str
    decimals: int

    def write(self, value: float) -> str:
        """Return ``value`` without the unit; ``<0.1`` if it is too small for the decimals.

        Beside numbers without decimals, one with a single digit has one: 2.56 is not written as 3.
        """
        scaled = value / self.factor
        few = self.factor > 1 and not self.decimals and abs(scaled) < _TWO_DIGITS
        decimals = 1 if few else self.decimals
        text = f"{scaled:,.{decimals}f}"
        if value and not float(text.replace(",", "")):
            return f"{'<' if value > 0 else f'>{MINUS}'}{10**-decimals:.{decimals}f}"
        return text.replace("-", MINUS) if value else "0"

    def write_total(self, value: float) -> str:
        """Return the sum of a column, which may be larger than its values, in four digits."""
        return replace(self, decimals=min(self.decimals, _decimals(value / self.factor))).write(
            value
        )


def scale(values: Iterable[float | None], units: Units, total: float = 0) -> Scale:
    """Return the scale of a column: the unit of its largest value, which is shown in four digits.

    The unit is a larger one where the ``total`` below the column would have more than four digits.
    """
    largest = max((abs(value) for value in values if value is not None), default=0)
    factor, name = _unit(largest or total, units)
    larger = [unit for unit in units if unit[0] > factor]
    while larger and max(largest, abs(total)) >= _FIVE_DIGITS * factor:
        factor, name = larger.pop()
    return _scale_in(largest or total, factor, name)


def column_scale(cells: Iterable[float | None], units: Units, total: float = 0) -> Scale:
    """Return the scale of a column of amounts, by its largest value or the next smaller unit.

    The smaller unit needs fewer zeros where most ``cells`` are below a tenth of the larger one, or
    are below it while the largest value is just above. It has the same resolution, and is used
    where neither the largest value nor the ``total`` then has more than four digits.
    """
    sizes = sorted(abs(value) for value in cells if value)
    whole = scale(sizes[-1:], units, total)
    smaller = next((unit for unit in units if unit[0] < whole.factor), None)
    if not sizes or smaller is None or max(sizes[-1], abs(total)) >= _FIVE_DIGITS * smaller[0]:
        return whole
    typical = sizes[(len(sizes) - 1) // 2]
    if typical < 0.1 * whole.factor or (typical < whole.factor and sizes[-1] < 2 * whole.factor):
        return _scale_in(sizes[-1], *smaller)
    return whole


def moment_scale(
    values: Iterable[int | None], units: Units, durations: Iterable[int | None] = ()
) -> Scale:
    """Return the scale of moments, with decimals that keep most of different ones different.

    Where the rows have ``durations``, most of these are at least as long as the last decimal. A
    moment is a position, so that it may need more than four digits.
    """
    moments = [value for value in values if value is not None]
    chosen = scale(moments, units)
    if chosen.factor == 1:
        return chosen
    distinct = len(set(moments))
    lengths = sorted(length for length in durations if length)
    finest = lengths[(len(lengths) - 1) // 2] if lengths else chosen.factor
    for decimals in range(chosen.decimals, round(log10(chosen.factor))):
        step = chosen.factor / 10**decimals
        if step <= finest and len({round(value / step) for value in moments}) >= 0.9 * distinct:
            return replace(chosen, decimals=decimals)
    return replace(chosen, decimals=round(log10(chosen.factor)))


def ratio_scale(values: Iterable[float | None]) -> Scale:
    """Return the decimals of a column of ratios, which have no unit, by its largest value."""
    largest = max((abs(value) for value in values if value is not None), default=0)
    return Scale(1, "", min(_decimals(largest), 2))


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
    return f"{100 * value:,.{_tenths(100 * value)}f} %".replace("-", MINUS)


def level(value: float) -> str:
    """Return a confidence level or a limit as percent, as it was given: ``90 %``."""
    return f"{100 * value:g} %"


def ratio(value: float) -> str:
    """Return a ratio in three or four digits: ``0.98``, ``12.35``, ``<0.01``."""
    return "<0.01" if 0 < value < 0.005 else _digits(value)


def value(number: float) -> str:
    """Return a value of any size in at most four digits: ``0.042``, ``312``, ``1,980``, ``4.2e9``.

    Zeros at its end say nothing about its precision, and are left out.
    """
    if number and not 0.001 <= abs(number) < 1e7:
        mantissa, exponent = f"{number:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}".replace("-", MINUS)
    text = f"{number:,.{_decimals(number)}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", MINUS)


def count(value: int) -> str:
    """Return a count with thousands separators: ``9,329``."""
    return f"{value:,}"


def mean(value: float) -> str:
    """Return a mean of counts: ``12``, ``3.5``, ``<0.1``."""
    if 0 < value < 0.05:
        return "<0.1"
    return f"{value:,.{_tenths(value)}f}".removesuffix(".0")


def whole(value: float) -> str:
    """Return a mean of counts as a whole number, as in a sentence: ``12``, ``<1``."""
    return "<1" if 0 < value <= 0.5 else f"{round(value):,}"


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


def interval(low: int, high: int) -> str:
    """Return a range of durations in one unit, with a dash between them."""
    both = scale([low, high], TIME)
    both = replace(both, decimals=min(both.decimals, 2))
    return f"{both.write(low)}\u2013{both.write(high)} {both.unit}"


def signed(value: float) -> str:
    """Return a difference of durations with its sign: ``+1.25 ms``."""
    sign = "+" if value > 0 else MINUS if value < 0 else ""
    return f"{sign}{duration(abs(value))}"


def with_sign(text: str, value: float) -> str:
    """Return ``text``, which is of ``value``, with a plus if that is positive: ``+8.3``."""
    if value <= 0:
        return text
    return f"<+{text[1:]}" if text.startswith("<") else f"+{text}"


def percent(value: float) -> str:
    """Return a relative difference with its sign: ``+2.3 %``."""
    return f"{100 * value:+,.{_tenths(100 * value)}f} %".replace("-", MINUS)


def _unit(value: float, units: Units) -> tuple[int, str]:
    """Return the unit in which ``value`` has one to three digits before the point."""
    for factor, name in units:
        # A value that rounds up to the next unit in four digits has that unit.
        if abs(value) >= 0.99995 * factor:
            return factor, name
    return units[-1]


def _scale_in(largest: float, factor: int, name: str) -> Scale:
    return Scale(factor, name, 0 if factor == 1 else _decimals(largest / factor))


def _with_unit(value: float, units: Units) -> str:
    factor, name = _unit(value, units)
    text = f"{value:.0f}" if factor == 1 else _digits(value / factor)
    return f"{text} {name}".replace("-", MINUS)


def _digits(value: float) -> str:
    return f"{value:,.{min(_decimals(value), 2)}f}"


def _decimals(value: float) -> int:
    """Return the decimals of four significant digits."""
    magnitude = abs(value)
    return 3 if magnitude < 9.9995 else 2 if magnitude < 99.995 else 1 if magnitude < 999.95 else 0


def _tenths(value: float) -> int:
    """Return the decimals of a number with one: none where it has four digits before the point."""
    return 0 if abs(value) >= 999.95 else 1
