"""CUPTI's numbers and their words.

Copies, sets and synchronizations have no name in those files; they get the one that Kineto gives
them, so that traces of all can be compared. Source of the numbers: the enumerations in CUPTI's
``cupti_activity.h`` (CUDA 12.9).
"""

from __future__ import annotations

from typing import Final

import polars as pl

COPY_KINDS: Final = {
    # CUpti_ActivityMemcpyKind: direction in the canonical tables
    0: "unknown",
    1: "h2d",
    2: "d2h",
    3: "h2a",
    4: "a2h",
    5: "a2a",
    6: "a2d",
    7: "d2a",
    8: "d2d",
    9: "h2h",
    10: "p2p",
}
SYNCS: Final = {
    # CUpti_ActivitySynchronizationType: words
    0: "Unknown Sync",
    1: "Event Sync",
    2: "Stream Wait Event",
    3: "Stream Sync",
    4: "Context Sync",
}
MEMORY_KINDS: Final = {
    # CUpti_ActivityMemoryKind: memory kind in the canonical tables
    0: "unknown",
    1: "pageable",
    2: "pinned",
    3: "device",
    4: "array",
    5: "managed",
    6: "device_static",
    7: "managed_static",
}
OVERHEADS: Final = {
    # CUpti_ActivityOverheadKind: words
    1: "JIT compilation by the driver",
    1 << 16: "CUPTI buffer flush",
    2 << 16: "CUPTI instrumentation",
    3 << 16: "CUPTI resource creation or destruction",
    4 << 16: "module loading by the runtime",
    5 << 16: "lazy function loading",
    6 << 16: "command buffer full",
}
CALLS_OF: Final = {
    # kind of activity: the calls that leave one
    "kernel": r"^(?:cudaLaunch(?:Cooperative)?Kernel|cuLaunch(?:Cooperative)?Kernel)",
    "memcpy": r"^(?:cudaMemcpy|cuMemcpy)",
    "memset": r"^(?:cudaMemset|cuMemset)",
}
_MEMORY_WORDS: Final = {
    "pageable": "Pageable",
    "pinned": "Pinned",
    "device": "Device",
    "array": "Array",
    "managed": "Managed",
    "device_static": "Device Static",
    "managed_static": "Managed Static",
}
_UNKNOWN: Final = "Unknown"
_SYMBOL_VERSION: Final = r"^(cuda.*)_v\d{4,5}$"
"""The runtime's symbol version, e.g. ``_v3020``. A driver's ``_v2`` is part of the API's name."""


def translated(column: str, words: dict[int, str], default: str | None) -> pl.Expr:
    """Return ``column`` (numbers) as ``words``; null and numbers without one are ``default``."""
    return pl.col(column).replace_strict(words, default=default, return_dtype=pl.String)


def copy_name() -> pl.Expr:
    """Return e.g. ``Memcpy HtoD (Pageable -> Device)``.

    Needs the columns copy_kind, source_memory and destination_memory.
    """
    shown = pl.col("copy_kind").cast(pl.String).str.to_uppercase().str.replace("2", "to")
    direction = pl.when(pl.col("copy_kind").cast(pl.String) != "unknown").then(shown)
    return pl.format(
        "Memcpy {} ({} -> {})",
        direction.fill_null(_UNKNOWN),
        _memory_word("source_memory"),
        _memory_word("destination_memory"),
    )


def set_name() -> pl.Expr:
    """Return e.g. ``Memset (Device)``; needs the column destination_memory."""
    return pl.format("Memset ({})", _memory_word("destination_memory"))


def _memory_word(column: str) -> pl.Expr:
    return pl.col(column).replace_strict(_MEMORY_WORDS, default=_UNKNOWN, return_dtype=pl.String)


def without_symbol_version(names: pl.Series) -> pl.Series:
    """Return runtime calls' names (text) as other profilers print them.

    ``cudaLaunchKernel_v7000`` is ``cudaLaunchKernel``.
    """
    return names.str.replace(_SYMBOL_VERSION, "$1")
