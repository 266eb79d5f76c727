"""Numbers as profilers print them, with their units and the worth of the last digit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec
import polars as pl

TIME: Final = {
    "ns": 1,
    "nsec": 1,
    "nanoseconds": 1,
    "us": 10**3,
    "\u00b5s": 10**3,
    "\u03bcs": 10**3,
    "usec": 10**3,
    "ms": 10**6,
    "msec": 10**6,
    "s": 10**9,
    "sec": 10**9,
    "seconds": 10**9,
}
"""Units of time in nanoseconds."""
SIZE: Final = {
    "B": 1,
    "bytes": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
"""Units of Nsight Systems' sizes in bytes."""
_LARGEST: Final = Decimal(1 << 62)
_DIGITS: Final = r"\d(?:[\d.,'\u2019\u00a0\u202f ]*\d)?"
_QUANTITY: Final = re.compile(
    rf"(-?{_DIGITS}\.?)(e[+-]?\d{{1,3}})? ?([A-Za-z\u00b5\u03bc]{{1,12}}|%)?", re.IGNORECASE
)
_MARKS: Final = re.compile(r"[.,'\u2019\u00a0\u202f ]")
_FINEST: Final = 12
_GROUP: Final = "['\u2019\u00a0\u202f ]"
_SHOWS: Final = {
    # One or two decimals, decimals of none, decimals behind groups, and several groups.
    mark: rf"-?(?:\d+\{mark}\d\d?|0\{mark}\d+"
    rf"|\d{{1,3}}(?:(?:{_GROUP}|\{separator})\d{{3,4}})+\{mark}\d+"
    rf"|\d{{1,3}}(?:\{separator}\d{{3,4}}){{2,}}) ?%?"
    for mark, separator in (".,", ",.")
}
"""Numbers that show what the decimal mark of their locale is."""


def quantities(cell: str, factors: Mapping[str, float], unit: str | None) -> list[pl.Expr]:
    """Return the column ``cell`` in base units as integers, and ``*_step``, how far the last digit
    counts. The unit of ``factors`` stands in the cells, or else is ``unit``.

    Numbers have a decimal point and no groups of digits.
    """
    text = pl.col(cell)
    if unit is None:
        factor: pl.Expr = text.str.extract("([a-zA-Z]+)$", 1).replace_strict(
            factors, default=None, return_dtype=pl.Float64
        )
        number = text.str.strip_chars_end("".join(filter(str.isalpha, "".join(factors))))
    else:
        factor, number = pl.lit(factors[unit]), text
    decimals = number.str.extract(r"\.(\d*)(?:e|$)", 1).str.len_bytes().fill_null(0)
    exponent = number.str.extract(r"e([+-]?\d{1,2})$", 1).cast(pl.Float64).fill_null(0.0)
    value = number.cast(pl.Float64, strict=False) * factor
    return [
        value.round().cast(pl.Int64, strict=False).alias(cell),
        (factor * pl.lit(10.0).pow(exponent - decimals)).alias(f"{cell}_step"),
    ]


class Quantity(msgspec.Struct, frozen=True):
    """A printed number in base units; ``step`` is what its last digit is worth, at least 1."""

    value: int
    step: int


def decimal_mark(texts: pl.Series) -> str | None:
    """Return the decimal mark of numbers of one locale, None if it is ambiguous.

    ``12,846`` is ambiguous.
    """
    shown = [mark for mark, shows in _SHOWS.items() if texts.str.contains(f"^(?:{shows})$").any()]
    return shown[0] if len(shown) == 1 else None


def numbers(text: pl.Expr, mark: str) -> pl.Expr:
    """Return the values of ``text`` as float64, null for ``n/a`` and the like.

    ``mark`` is the decimal mark; the other one stands between groups of digits.
    """
    plain = text.str.replace_all("." if mark == "," else ",", "", literal=True)
    value = plain.str.replace(mark, ".", literal=True).cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def number(
    text: str, *, grouped: bool, whole: bool = False, mark: str | None = None
) -> tuple[Decimal, Decimal] | None:
    """Return the number that begins ``text``, in decimal digits, and the worth of its last digit.

    ``grouped`` numbers may have separators between groups of digits, as locales demand; ``whole``
    ones have no decimals. ``mark`` is their decimal mark, where it is known.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    plain = not match[2]  # a number with an exponent has no groups
    digits = _plain(
        match[1].rstrip("."), grouped=grouped and plain, whole=whole and plain, mark=mark
    )
    try:
        value = Decimal(digits + (match[2] or ""))
    except InvalidOperation:
        return None
    _, _, exponent = value.as_tuple()
    step = Decimal(1).scaleb(max(int(exponent), -_FINEST))
    # A zero may have an exponent, too: ``0e99``.
    return None if max(abs(value), step) > _LARGEST else (value, step)


def unit_of(text: str) -> str | None:
    """Return the unit behind the number in ``text``, None without one."""
    match = _QUANTITY.fullmatch(text)
    return match[3] if match else None


def quantity(
    text: str,
    factors: dict[str, int],
    unit: str | None,
    *,
    whole: bool = False,
    mark: str | None = None,
) -> Quantity | None:
    """Return the quantity in ``text``; ``unit`` is the unit of a number without one.

    None where it cannot be read, or has no unit of ``factors``. ``mark`` as of :func:`number`.
    """
    printed_unit = unit_of(text)
    factor = factors.get(printed_unit or unit or "")
    parsed = number(text, grouped=printed_unit is None, whole=whole and factor == 1, mark=mark)
    if parsed is None or factor is None:
        return None
    value, step = (part * factor for part in parsed)
    if max(abs(value), step) > _LARGEST:
        return None
    return Quantity(round(value), max(round(step), 1))


def count(text: str, mark: str | None = None) -> Quantity | None:
    """Return the number of calls in ``text``: ``4.27e+08``, ``7067,3236``, ``5,061``."""
    if unit_of(text) is not None:
        return None
    parsed = number(text, grouped=True, whole=True, mark=mark)
    if parsed is None or parsed[0] < 0 or parsed[0] != parsed[0].to_integral_value():
        return None
    return Quantity(int(parsed[0]), max(round(parsed[1]), 1))


def percent(text: str) -> tuple[float, float] | None:
    """Return the percentage in ``text``, and the worth of its last digit."""
    if unit_of(text) not in (None, "%"):
        return None
    parsed = number(text, grouped=False)
    return None if parsed is None else (float(parsed[0]), float(parsed[1]))


def _plain(digits: str, *, grouped: bool, whole: bool, mark: str | None) -> str:
    """Return ``digits`` with a decimal point and without separators of groups.

    nvprof prints five digits and never groups them: a comma is a decimal one there.
    """
    marks = _MARKS.findall(digits)
    if not marks:
        return digits
    if grouped and mark is not None and marks.count(mark) <= 1:
        head, point, tail = digits.partition(mark)
        return _MARKS.sub("", head) + ("." + _MARKS.sub("", tail) if point else "")
    last = marks[-1]
    decimals = len(digits) - digits.rindex(last) - 1
    is_point = marks.count(last) == 1 and last in ".,"
    if grouped and is_point:
        alone = len(marks) == 1
        groups = decimals >= 3 and last == "," and alone and digits.strip("-")[0] != "0"
        is_point = not (groups or (whole and decimals == 3))
    if not is_point:
        return _MARKS.sub("", digits)
    head, tail = digits[: -decimals - 1], digits[len(digits) - decimals :]
    return f"{_MARKS.sub('', head)}.{tail}"
