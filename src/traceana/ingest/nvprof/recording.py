"""What an nvprof database says of its recording: version, GPUs, processes; what is left unread."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import polars as pl

from traceana.ingest.cupti.devices import capability, fact, of_work
from traceana.ingest.cupti.words import CALLS_OF
from traceana.ingest.tables import TableSource, as_int
from traceana.ingest.texts import Texts
from traceana.trace import Ledger

STRINGS: Final = "StringTable"
NO_TEXT: Final = 0
"""The number of ``-- null --`` in the table of texts."""

_CUPTI: Final = "CUPTI_ACTIVITY_KIND_"
_DEVICES: Final = f"{_CUPTI}DEVICE"
_NAMES: Final = f"{_CUPTI}NAME"
_DESCRIPTIONS: Final = frozenset(
    _CUPTI + kind
    for kind in (
        "CONTEXT",
        "DEVICE",
        "DEVICE_ATTRIBUTE",
        "FUNCTION",
        "INSTRUCTION_CORRELATION",
        "MODULE",
        "NAME",
        "NVLINK",
        "PCIE",
        "SOURCE_LOCATOR",
        "STREAM",
    )
)
_SAMPLES: Final = ("EVENT", "METRIC", "ENVIRONMENT", "INSTANTANEOUS_", "UNIFIED_MEMORY_COUNTER")
_FIRST_CUDA_NS: Final = 1_180_000_000 * 10**9
"""CUDA 1.0 came in 2007: a time before is no Unix time."""


def version(source: TableSource) -> str | None:
    """Return the number of the schema, None where the file does not tell."""
    rows = source.records("Version")
    number = as_int(rows[0].get("version")) if rows else None
    return None if number is None else str(number)


def epoch_ns(first_ns: int) -> int | None:
    """Return the Unix time of the moment ``first_ns`` on the file's clock: it is Unix time."""
    return first_ns if first_ns > _FIRST_CUDA_NS else None


def devices(source: TableSource, texts: Texts, used: pl.Series) -> pl.DataFrame:
    """Return the devices that did work, or all that the file lists when none did."""
    records = source.records(_DEVICES)
    names = texts.of(pl.Series([as_int(gpu.get("name")) for gpu in records], dtype=pl.Int64))
    return of_work(
        [_device(gpu, name) for gpu, name in zip(records, names, strict=True)],
        used,
    )


def _device(gpu: dict[str, Any], name: str | None) -> dict[str, Any]:
    kilobytes = fact(gpu, "bandwidth_bytes_per_s", "globalMemoryBandwidth")
    return {
        "device": as_int(gpu.get("id")),
        "name": name,
        "vendor": "NVIDIA",
        "compute_capability": capability(gpu, "computeCapabilityMajor", "computeCapabilityMinor"),
        "multiprocessors": fact(gpu, "multiprocessors", "numMultiprocessors"),
        "clock_khz": fact(gpu, "clock_khz", "coreClockRate"),
        "memory_bytes": fact(gpu, "memory_bytes", "globalMemorySize"),
        "bandwidth_bytes_per_s": as_int(None if kilobytes is None else kilobytes * 1000),
        "warp_size": fact(gpu, "warp_size", "numThreadsPerWarp"),
    }


def properties(source: TableSource, texts: Texts, processes: set[int]) -> dict[str, Any]:
    """Return further facts: the processes with events, and what was run in them."""
    named: dict[int, str] = {}
    for row in source.records(_NAMES):
        owner, name = row.get("objectId"), as_int(row.get("name"))
        if as_int(row.get("objectKind")) == 1 and isinstance(owner, bytes) and name is not None:
            text = texts.of(pl.Series([name], dtype=pl.Int64))[0]
            if text is not None:
                named.setdefault(int.from_bytes(owner[:4], "little"), text)
    return {"processes": {str(pid): named.get(pid) for pid in sorted(processes)}}


def count_unread(source: TableSource, read: Collection[str], ledger: Ledger) -> int:
    """Count in ``ledger`` the rows of all tables of events but ``read``; return their sum."""
    total = 0
    for table in sorted(source.tables):
        if table in read or table in _DESCRIPTIONS or not table.startswith(_CUPTI):
            continue
        count = source.count(table)
        total += count
        ledger.add(_reason(table.removeprefix(_CUPTI)), count, table="-", detail=table)
    return total


def _reason(kind: str) -> str:
    if kind.startswith(_SAMPLES):
        return "counter"
    return "metadata" if kind == "MARKER_DATA" else "unknown_category"


def count_missing(
    source: TableSource, calls: pl.DataFrame, activities: pl.DataFrame, ledger: Ledger
) -> None:
    """Count in ``ledger`` what the database lacks; the entries count tables, not events.

    Its tables are all there, if empty: device work is missed where calls asked for it and there is
    none of its kind, as with ``nvprof --profile-api-trace`` and no more.
    """
    missing = [] if STRINGS in source.tables else [STRINGS]
    called = calls["name"].cast(pl.Categorical).unique().drop_nulls().cast(pl.String)
    done = set(activities["kind"].unique())
    missing += [
        f"{_CUPTI}{kind.upper()}"
        for kind, pattern in CALLS_OF.items()
        if kind not in done and called.str.contains(pattern).any()
    ]
    for table in missing:
        ledger.add("missing_table", 1, table="-", kept=True, detail=table)
