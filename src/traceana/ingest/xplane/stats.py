"""Names of the stats that the tables are made of; ``trace.json`` has them as arguments."""

from __future__ import annotations

from typing import Final

OF_DEVICE_WORK: Final = (
    "correlation_id",
    "kernel_details",
    "memcpy_details",
    "memset_details",
    "context_id",
    "tf_op",
    "annotation",
    "hlo_op",
    "hlo_module",
    "program_id",
)
OF_HOST: Final = ("correlation_id", "hlo_op", "hlo_module", "program_id", "shape", "step_num")
OF_ALLOCATORS: Final = (
    "allocator_name",
    "allocation_bytes",
    "addr",
    "bytes_allocated",
    "bytes_reserved",
)
"""Of the host's events that are allocations; no ``trace.json`` at hand has them."""
