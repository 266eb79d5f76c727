"""Reads databases of nvprof and the Visual Profiler into the canonical tables."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import polars as pl

from traceana.ingest.cupti import (
    CALLS_OF,
    capability,
    devices_of_work,
    end_open_ranges,
    fact,
    with_process,
)
from traceana.ingest.integrity import rebase, screen
from traceana.ingest.kernel_names import NameTable
from traceana.ingest.nvprof import records
from traceana.ingest.source import Progress
from traceana.ingest.table_source import Query, TableSource, Texts, as_int, has_texts, texts_query
from traceana.trace import Ledger, Tables, Trace, TraceMeta
from traceana.trace.schema import empty

STRINGS: Final = "StringTable"
_STRING_COLUMNS: Final = ("_id_", "value")
NO_TEXT: Final = 0
"""The id of ``-- null --`` in the table of strings."""
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
"""CUDA 1.0 appeared in 2007: an earlier time is not Unix time."""

Frames = dict[str, pl.DataFrame]


def read_database(source: TableSource, progress: Progress) -> Trace:
    """Return the Trace of the tables of an nvprof database.

    All tables and columns are optional; schema versions 12 and 16 are tested. Raises
    ``CorruptError``.
    """
    ledger = Ledger()
    wanted = [*records.tables(source), *records.CALL_TABLES, *records.RANGE_TABLES]
    tables_read = [table for table in wanted if table in source.tables]
    if _has_strings(source):
        tables_read.append(STRINGS)
    queries = [_query(table) for table in tables_read]
    frames = dict(zip(tables_read, source.read(queries, progress), strict=True))
    events = sum(frame.height for table, frame in frames.items() if table != STRINGS)
    texts = _texts(frames.pop(STRINGS, None))
    tables: Frames = {}
    tables["calls"] = _calls(frames, ledger)
    work, names = _activities(source, frames, texts, ledger)
    tables["activities"] = with_process(work, tables["calls"])
    tables["ranges"] = _ranges(frames, texts, tables, ledger)
    events += count_unread(source, tables_read, ledger)
    count_missing(source, tables["calls"], tables["activities"], ledger)
    source.count_damage(ledger)
    tables, first_ns = rebase(tables, ledger)
    tables["names"] = names.frame()
    tables["devices"] = devices(source, texts, tables["activities"]["device"])
    tables["ledger"] = ledger.frame()
    processes = {
        p for t in ("activities", "calls", "ranges") for p in tables[t]["process"].unique()
    }
    meta = TraceMeta(
        source=str(source.path),
        format="nvprof",
        format_version=version(source),
        producer="NVIDIA nvprof",
        epoch_ns=epoch_ns(first_ns),
        bytes_read=source.size_bytes,
        bytes_total=source.size_bytes,
        events=events,
        properties=properties(source, texts, processes - {None}),
    )
    return Trace(meta, Tables(tables))


def _query(table: str) -> Query:
    if table in records.KINDS:
        return records.query(table)
    if table in records.CALL_TABLES:
        return records.call_query(table)
    if table == records.MARKER:
        return records.marker_query()
    if table == records.OVERHEAD:
        return records.overhead_query()
    return texts_query(STRINGS, *_STRING_COLUMNS)


def _has_strings(source: TableSource) -> bool:
    return has_texts(source, STRINGS, *_STRING_COLUMNS)


def _texts(table: pl.DataFrame | None) -> Texts:
    if table is None:
        return Texts(None)
    return Texts(table.filter(pl.col("id") != NO_TEXT))


def _calls(frames: Frames, ledger: Ledger) -> pl.DataFrame:
    parts = [
        records.calls(table, frames.pop(table)) for table in records.CALL_TABLES if table in frames
    ]
    return screen(pl.concat(parts), "calls", ledger) if parts else empty("calls")


def _activities(
    source: TableSource, frames: Frames, texts: Texts, ledger: Ledger
) -> tuple[pl.DataFrame, NameTable]:
    names = NameTable(ledger)
    parts: list[pl.DataFrame] = []
    for table in records.KINDS:
        if table not in frames:
            continue
        frame = frames.pop(table)
        if table == records.UNIFIED:
            frame = records.migrations(frame, ledger)
        frame = screen(frame, "activities", ledger)
        if table == records.SYNC:
            frame = records.on_devices(source, frame)
        shaped, texts_of = records.named(table, frame, texts)
        ledger.add("unnamed", texts_of.null_count(), table="activities", kept=True, detail=table)
        parts.append(shaped.with_columns(names.ids(texts_of).alias("name_id")))
    if not parts:
        return empty("activities"), names
    work = pl.concat(parts, how="diagonal")
    missing = [pl.lit(None, pl.Int64).alias("process")] if "process" not in work.columns else []
    return work.with_columns(missing), names


def _ranges(frames: Frames, texts: Texts, others: Frames, ledger: Ledger) -> pl.DataFrame:
    parts = []
    if records.MARKER in frames:
        parts.append(records.markers(frames.pop(records.MARKER), texts, ledger))
    if records.OVERHEAD in frames:
        parts.append(records.overhead(frames.pop(records.OVERHEAD)))
    if not parts:
        return empty("ranges")
    found = pl.concat(parts, how="diagonal")
    return screen(end_open_ranges(found, others.values(), ledger), "ranges", ledger)


def version(source: TableSource) -> str | None:
    """Return the schema version, None where not recorded."""
    rows = source.records("Version")
    number = as_int(rows[0].get("version")) if rows else None
    return None if number is None else str(number)


def epoch_ns(first_ns: int) -> int | None:
    """Return ``first_ns``, a time on the file's clock, if it is Unix time."""
    return first_ns if first_ns > _FIRST_CUDA_NS else None


def devices(source: TableSource, texts: Texts, used: pl.Series) -> pl.DataFrame:
    """Return the devices with activities, or every device in the file where there are none."""
    records = source.records(_DEVICES)
    names = texts.of(pl.Series([as_int(gpu.get("name")) for gpu in records], dtype=pl.Int64))
    return devices_of_work(
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
    """Return further facts: the processes with events, and their names."""
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
    """Count in ``ledger`` the tables that are empty although calls started such activities.

    A database has all tables, also empty ones. ``nvprof --profile-api-trace`` alone records calls
    without activities. The entries count tables, not events.
    """
    missing = [] if _has_strings(source) else [STRINGS]
    called = calls["name"].cast(pl.Categorical).unique().drop_nulls().cast(pl.String)
    done = set(activities["kind"].unique())
    missing += [
        f"{_CUPTI}{kind.upper()}"
        for kind, pattern in CALLS_OF.items()
        if kind not in done and called.str.contains(pattern).any()
    ]
    for table in missing:
        ledger.add("missing_table", 1, table="-", kept=True, detail=table)
