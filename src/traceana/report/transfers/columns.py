"""Which columns of transfers are for people, and which of them a narrow terminal goes without."""

from __future__ import annotations

from typing import Final

COLUMNS: Final = (
    "direction",
    "host_memory",
    "count",
    "bytes",
    "mean_bytes",
    "time_ns",
    "exposed_ns",
    "bytes_per_s",
    "median_bytes_per_s",
    "peak_share",
    "waits",
    "step_count",
    "step_bytes",
    "step_share",
)
OPTIONAL: Final = ("step_count", "median_bytes_per_s", "step_bytes", "step_share", "bytes", "waits")
SIZES: Final = (
    "direction",
    "host_memory",
    "size",
    "count",
    "time_ns",
    "exposed_ns",
    "bytes_per_s",
)
OPTIONAL_SIZES: Final = ("bar", "exposed_ns", "host_memory")
COLLECTIVES: Final = (
    "collective",
    "message_bytes",
    "ranks",
    "count",
    "time_ns",
    "mean_ns",
    "share",
    "exposed_ns",
    "algbw_bytes_per_s",
    "busbw_bytes_per_s",
)
OPTIONAL_COLLECTIVES: Final = ("share", "mean_ns", "ranks")
