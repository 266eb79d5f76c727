"""Speed-up by number of devices (Kim et al. 2017, Figure 10)."""

from __future__ import annotations

from traceana.study.scaling.communication import Communication, communicated
from traceana.study.scaling.fit import FEWEST_COUNTS, GATHERINGS, Fit, fits
from traceana.study.scaling.table import scaling_study

__all__ = [
    "FEWEST_COUNTS",
    "GATHERINGS",
    "Communication",
    "Fit",
    "communicated",
    "fits",
    "scaling_study",
]
