"""The standard error of a median, by the median absolute deviation."""

from __future__ import annotations

from typing import Final

MEDIAN_ERROR: Final = 1.4826 * 1.2533
"""Standard error of the median of normal values, over their median absolute deviation divided by
the square root of their number: standard deviation over that deviation, times the standard error of
a median over that of a mean, sqrt(pi / 2)."""
