"""The causes of idle time, and the words by which the host's doings are told (docs/idle.md)."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.enrich.layers.roles import ROLE_OF_TEXT

CAUSES: Final = (
    "profiler",
    "driver",
    "allocation",
    "synchronization",
    "copy",
    "collective",
    "data_loader",
    "operator",
    "host",
    "event",
    "launch_latency",
    "queued",
    "same_launch",
    "not_recorded",
    "begin",
    "end",
)
"""Every gap has one of these. The first nine are what the host was in, the more specific first."""

Cause: Final = pl.Enum(CAUSES)

(
    PROFILER, DRIVER, ALLOCATION, SYNCHRONIZATION, COPY, COLLECTIVE, DATA_LOADER, OPERATOR,
    HOST, EVENT, LAUNCH_LATENCY, QUEUED, SAME_LAUNCH, NOT_RECORDED, BEGIN, END,
) = range(len(CAUSES))  # fmt: skip

CALLS: Final[dict[int, str]] = {
    ALLOCATION: (
        r"^(?:cuda|hip)(?:Malloc|Free|Host(?:Alloc|Malloc|Free|Register|Unregister))"
        r"|^cuMem(?:Alloc|Free|Host|Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess)"
    ),
    SYNCHRONIZATION: r"^(?:cuda|cu|hip)\w*Synchronize",
    COPY: r"^(?:cuda|hip)Memcpy|^cuMemcpy",
}
"""Patterns of the names of calls in which the host is kept."""

LOADING: Final = rf"{ROLE_OF_TEXT['data']}|^(?:EagerLocalExecute: )?IteratorGetNext"
"""Ranges and operators in which the next batch is waited for. What TensorFlow's background threads
draw while they make one (``Iterator::Prefetch``) is no waiting."""

BLOCKING_COLLECTIVE: Final = r"^(?:gloo|mpi|ucc):|^MPI_|^c10d::(?:monitored_)?barrier"
"""Ranges and operators of collectives that the host itself carries out or waits for. Those of NCCL
are launched, and wait on the device."""

DRIVER_OVERHEAD: Final = r"(?i)loading|compiler|command buffer"
"""Overhead that CUPTI records and that is not its own: CUDA loads or compiles code, or has no room
for more launches."""
