"""Decimal microseconds, as Kineto prints them, to integer nanoseconds; no float on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import polars as pl

_MICROSECONDS: Final = pl.Decimal(38, 3)
"""A decimal whose unscaled integer is the time in nanoseconds."""


def to_nanoseconds(texts: Sequence[msgspec.Raw]) -> pl.Series:
    """Convert JSON numbers in microseconds to int64 nanoseconds; see :func:`parse`."""
    if not texts:
        return pl.Series(dtype=pl.Int64)
    joined = b"\n".join(texts).decode("ascii", "replace")
    return parse(pl.Series([joined]).str.split("\n").explode())


def parse(text: pl.Series) -> pl.Series:
    """Convert a series of decimal texts in microseconds to int64 nanoseconds.

    Up to three decimals are converted exactly; a longer fraction is rounded to the nearest
    nanosecond. Whatever is no finite number within int64 (``NaN``, ``"N/A"``, ``null``, an absent
    value) becomes null.
    """
    numbers = text.cast(_MICROSECONDS, strict=False)
    if numbers.null_count():
        # Quoted numbers and stray blanks are rare, and looking for them costs as much as the rest.
        numbers = text.str.strip_chars(" \"'").cast(_MICROSECONDS, strict=False)
    return numbers.to_physical().cast(pl.Int64, strict=False)
