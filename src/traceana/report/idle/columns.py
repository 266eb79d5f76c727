"""Which columns of idle time are for people, and which of them a narrow terminal goes without."""

from __future__ import annotations

from typing import Final

COLUMNS: Final = (
    "rank",
    "device",
    "cause",
    "count",
    "time_ns",
    "share",
    "mean_ns",
    "max_ns",
    "step_count",
    "step_ns",
    "step_share",
)
OPTIONAL: Final = ("step_count", "mean_ns", "step_share", "step_ns", "max_ns")
GAPS: Final = (
    "rank",
    "device",
    "cause",
    "start_ns",
    "time_ns",
    "operator",
    "range",
    "before",
    "after",
)
OPTIONAL_GAPS: Final = ("before", "range", "after")
