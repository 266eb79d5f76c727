"""Columns of integers from what the trace spells as integers, text or floats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import polars as pl

_TRAILING_DIGITS: Final = re.compile(r"(?:^|\D)(-?\d{1,19})$")


def integers(values: Sequence[object]) -> pl.Series:
    """Return ``values`` as int64.

    ``"stream 7"`` and ``"7"`` become 7, ``"0x1f"`` 31, 7.0 becomes 7; unsigned 64-bit numbers keep
    their bits, so distinct ids stay distinct. Whatever is no integer becomes null.
    """
    try:
        return pl.Series(values, dtype=pl.Int64, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series([_integer(value) for value in values], dtype=pl.Int64)


def _integer(value: object) -> int | None:
    if isinstance(value, str):
        return _from_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float):
        if not value.is_integer():
            return None
        value = int(value)
    if value >= 2**63:
        value -= 2**64
    return value if -(2**63) <= value < 2**63 else None


def _from_text(text: str) -> int | None:
    if text.startswith("0x"):
        try:
            return _integer(int(text, 16))
        except ValueError:
            return None
    match = _TRAILING_DIGITS.search(text)
    return _integer(int(match.group(1))) if match else None
