"""Bars of block characters, to an eighth of one."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.report.columns import Shown
from traceana.report.kinds import Kind

WIDTH: Final = 20
PATTERN: Final = "[▏▎▍▌▋▊▉█]+"
"""What a bar is found by, to colour it."""
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def bar(share: float, width: int = WIDTH) -> str:
    """Return a bar of ``share`` of ``width`` characters."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def bars(values: pl.Series, width: int = WIDTH) -> Shown:
    """Return a column of bars, the longest for the largest value; no value has none."""
    largest = values.max()
    scale = float(largest) if isinstance(largest, int | float) and largest > 0 else 1.0
    return Shown("", Kind.TEXT, [bar((value or 0) / scale, width) for value in values])
