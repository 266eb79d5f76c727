"""CUPTI's vocabulary: its enumerations, the names of its activities, its devices and processes.

Copies, memsets, synchronizations and overheads have no name in the files of nsys and nvprof; they
get Kineto's, so that traces of all profilers can be compared. The enumerations are those of
``cupti_activity.h`` (CUDA 12.9).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import polars as pl

from traceana.readers.kernel_names import distinct_values
from traceana.readers.table_source import as_int
from traceana.trace.schema import DEVICES

COPY_KINDS: Final = {
    # CUpti_ActivityMemcpyKind: direction in the canonical tables
    0: "unknown",
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}

SYNCS: Final = {
    # CUpti_ActivitySynchronizationType: name
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
    # CUpti_ActivityOverheadKind: name
    1: "Driver Compiler",
    1 << 16: "Buffer Flush",
    2 << 16: "Instrumentation",
    3 << 16: "Resource",
    4 << 16: "Runtime Triggered Module Loading",
    5 << 16: "Lazy Function Loading",
    6 << 16: "Command Buffer Full",
}

_MEMORY_WORDS: Final = {k: k.replace("_", " ").title() for k in MEMORY_KINDS.values()}
_UNKNOWN: Final = "Unknown"
_SYMBOL_VERSION: Final = r"^(cuda.*)_v\d{4,5}$"
"""The runtime's symbol version, e.g. ``_v3020``. A driver's ``_v2`` is part of the API's name."""
_LARGEST: Final = {pl.Int32: 2**31 - 1, pl.Int64: 2**63 - 1}


def nonzero(column: str) -> pl.Expr:
    """Return ``column`` with null for 0, which CUPTI writes for a missing id."""
    return pl.when(pl.col(column) != 0).then(pl.col(column))


def copy_name() -> pl.Expr:
    """Return e.g. ``Memcpy HtoD (Pageable -> Device)``.

    Needs the columns copy_kind, source_memory and destination_memory.
    """
    kind = pl.col("copy_kind").cast(pl.String)
    direction = pl.when(kind != "unknown").then(kind)
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
    """Return the names of runtime calls without their symbol version.

    ``cudaLaunchKernel_v7000`` becomes ``cudaLaunchKernel``.
    """
    return names.str.replace(_SYMBOL_VERSION, "$1")


def fact(record: dict[str, Any], column: str, *keys: str) -> int | None:
    """Return the first of ``keys`` in ``record`` that is positive and fits ``devices.column``."""
    limit = _LARGEST[DEVICES[column]]  # type: ignore[index]
    values = (as_int(record.get(key)) for key in keys)
    return next((v for v in values if v is not None and 0 < v <= limit), None)


def cuda_device(
    record: dict[str, Any], number: int | None, name: str | None, bandwidth: int | None
) -> dict[str, Any]:
    """Return the row of ``devices`` for a file's description of a GPU.

    Beside CUPTI's names for the columns are those of nsys' ``TARGET_INFO_GPU``.
    """
    hertz = fact(record, "clock_khz", "clockRate")
    khz = fact(record, "clock_khz", "coreClockRate") if hertz is None else hertz // 1000
    return {
        "device": number,
        "name": name,
        "vendor": "NVIDIA",
        "compute_capability": _capability(record, "computeMajor", "computeMinor")
        or _capability(record, "computeCapabilityMajor", "computeCapabilityMinor"),
        "multiprocessors": fact(record, "multiprocessors", "smCount", "numMultiprocessors"),
        "clock_khz": khz,
        "memory_bytes": fact(record, "memory_bytes", "totalMemory", "globalMemorySize"),
        "bandwidth_bytes_per_s": bandwidth,
        "warp_size": fact(record, "warp_size", "threadsPerWarp", "numThreadsPerWarp"),
    }


def _capability(record: dict[str, Any], major: str, minor: str) -> str | None:
    first, second = fact(record, "multiprocessors", major), as_int(record.get(minor))
    return None if first is None or second is None else f"{first}.{second}"


def devices_of_work(described: Iterable[dict[str, Any]], used: pl.Series) -> pl.DataFrame:
    """Return the devices with activities, or every device in the file where there are none.

    ``described`` are rows of ``devices``. ``used`` holds the device numbers of the activities; a
    device that is not described gets a row without properties.
    """
    known: dict[int, dict[str, Any]] = {}
    for row in described:
        number = row["device"]
        if number is not None and 0 <= number <= _LARGEST[pl.Int32]:
            known.setdefault(number, row)
    wanted = sorted(distinct_values(used))
    rows = [known.get(number, {"device": number}) for number in wanted or sorted(known)]
    return pl.DataFrame(rows, schema=DEVICES, strict=False)


def with_process(work: pl.DataFrame, made: pl.DataFrame) -> pl.DataFrame:
    """Return ``work`` with missing processes filled in where a single process made all calls."""
    first, last = made["process"].min(), made["process"].max()
    if first is None or first != last or not work["process"].null_count():
        return work
    return work.with_columns(pl.col("process").fill_null(first))
