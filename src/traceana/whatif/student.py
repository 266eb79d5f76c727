"""Quantiles of Student's t distribution, without the 0.2 s in which scipy is imported."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

_MOST_TERMS: Final = 200
"""Degrees of freedom above which the expansion around the normal distribution is exact enough."""


def student_quantile(level: float, degrees: int) -> float:
    """Return the value below which t with ``degrees`` of freedom is with probability ``level``.

    ``level`` is above 0.5. The error is below 1e-8 of the result.
    """
    if degrees > _MOST_TERMS:
        z = NormalDist().inv_cdf(level)
        first = (z**3 + z) / 4
        second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
        third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        return z + first / degrees + second / degrees**2 + third / degrees**3
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if (1 + _within(middle, degrees)) / 2 < level:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(low)


def _within(angle: float, degrees: int) -> float:
    """Return the probability that t is between plus and minus sqrt(degrees) tan(``angle``).

    Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(odd + 2, degrees + 1, 2):
        total += term
        term *= cosine**2 * (power - 1) / power
    return (angle + sine * total) * 2 / math.pi if odd else sine * total
