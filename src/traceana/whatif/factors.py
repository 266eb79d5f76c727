"""How many times as long activities take."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing import Self

    from traceana.enrich.nesting import Flags, Ints
    from traceana.trace import Trace

Floats = npt.NDArray[np.float64]


class Factors(NamedTuple):
    """Which activities of a trace take another time, and the least and the most of how many times
    as long; by row of ``activities``, 1 for others."""

    chosen: Flags
    least: Floats
    most: Floats

    @classmethod
    def of_rows(cls, trace: Trace, rows: Ints, least: Floats, most: Floats) -> Self:
        """Return the factors of ``rows``."""
        chosen = np.zeros(trace.activities.height, dtype=np.bool_)
        chosen[rows] = True
        both = []
        for values in (least, most):
            factors = np.ones(len(chosen))
            factors[rows] = values
            both.append(factors)
        return cls(chosen, *both)
