"""CUPTI's activity records, as nsys and nvprof store them: columns, enumerations, devices, ranges.

Copies, memsets, synchronizations and overheads have no name in those files; they get Kineto's, so
that traces of all profilers can be compared. The enumerations are those of ``cupti_activity.h``
(CUDA 12.9).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import polars as pl

from traceana.ingest.kernel_names import distinct_values
from traceana.ingest.table_source import Integer, as_int
from traceana.trace import Ledger
from traceana.trace.schema import ACTIVITIES, DEVICES

ACTIVITY_COLUMNS: Final = {
    "start": Integer("start"),
    "end": Integer("end"),
    "device": Integer("deviceId"),
    "context": Integer("contextId"),
    "stream": Integer("streamId"),
    "correlation": Integer("correlationId"),
}

KERNEL_COLUMNS: Final = {
    "registers": Integer("registersPerThread"),
    "static_memory": Integer("staticSharedMemory"),
    "dynamic_memory": Integer("dynamicSharedMemory"),
    "graph_node": Integer("graphNodeId"),
    **{
        f"{what}_{axis}": Integer(f"{what}{axis.upper()}")
        for what in ("grid", "block")
        for axis in "xyz"
    },
}

COPY_COLUMNS: Final = {
    "code": Integer("copyKind"),
    "source_code": Integer("srcKind"),
    "destination_code": Integer("dstKind"),
    "bytes": Integer("bytes"),
    "graph_node": Integer("graphNodeId"),
}

NO_STREAM: Final = 0xFFFFFFFF
"""CUPTI_SYNCHRONIZATION_INVALID_VALUE: the synchronization is of a context, not of a stream."""
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

CALLS_OF: Final = {
    # kind of activity: pattern of the calls that start one
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
_LARGEST: Final = {pl.Int32: 2**31 - 1, pl.Int64: 2**63 - 1}


def nonzero(column: str) -> pl.Expr:
    """Return ``column`` with null for 0, which CUPTI writes for a missing id."""
    return pl.when(pl.col(column) != 0).then(pl.col(column))


def activity_page(page: pl.DataFrame) -> pl.DataFrame:
    """Return a page of :data:`ACTIVITY_COLUMNS` and others as columns of ``activities``.

    Enumerated values stay numbers, in ``code``, ``source_code`` and ``destination_code``.
    """
    stream = pl.col("stream")
    frame = page.with_columns(
        (pl.col("end") - pl.col("start")).alias("duration"),
        nonzero("correlation").alias("correlation"),
        pl.when((stream != NO_STREAM) & (stream >= 0)).then(stream).alias("stream"),
        pl.when(pl.col("device") >= 0).then("device").alias("device"),
    ).drop("end")
    if "static_memory" in frame.columns:
        static, dynamic = pl.col("static_memory"), pl.col("dynamic_memory")
        both = pl.coalesce(static + dynamic, static, dynamic)
        frame = frame.with_columns(both.alias("shared_memory")).drop(
            "static_memory", "dynamic_memory"
        )
    if "graph_node" in frame.columns:
        frame = frame.with_columns(nonzero("graph_node").alias("graph_node"))
    # A value that does not fit its column is invalid: null.
    narrow = [
        pl.col(name).cast(pl.Int32, strict=False)
        for name in frame.columns
        if ACTIVITIES.get(name) == pl.Int32
    ]
    codes = [pl.col(c).cast(pl.Int32, strict=False) for c in ("source_code", "destination_code")]
    return frame.with_columns(
        *narrow, *(code for code in codes if code.meta.output_name() in frame.columns)
    )


def translated(column: str, names: dict[int, str], default: str | None) -> pl.Expr:
    """Return ``column`` (numbers) as ``names``; null and unknown numbers are ``default``."""
    return pl.col(column).replace_strict(names, default=default, return_dtype=pl.String)


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


def capability(record: dict[str, Any], major: str, minor: str) -> str | None:
    """Return e.g. ``8.0``, None where either number is missing."""
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


def end_open_ranges(
    ranges: pl.DataFrame, others: Iterable[pl.DataFrame], ledger: Ledger
) -> pl.DataFrame:
    """Return ``ranges``; those without a duration end with the last event of the trace.

    ``others`` are the tables besides ``ranges``. ``ledger`` counts the ranges without an end.
    """
    ends = [
        frame.select((pl.col("start") + pl.col("duration")).max()).item()
        for frame in [ranges, *others]
    ]
    last_ns = max((end for end in ends if end is not None), default=0)
    is_open = pl.col("duration").is_null() & pl.col("start").is_not_null()
    ledger.add(
        "missing_time",
        ranges.select(is_open.sum()).item(),
        table="ranges",
        kept=True,
        detail="never closed: end set to the last event",
    )
    until_then = pl.max_horizontal(pl.lit(last_ns) - pl.col("start"), pl.lit(0, pl.Int64))
    return ranges.with_columns(
        pl.when(is_open).then(until_then).otherwise("duration").alias("duration")
    )
