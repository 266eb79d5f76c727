"""The format of nvprof's databases: CUPTI's tables, NVTX markers in two rows, numbered calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

import polars as pl

from traceana.readers.cupti import (
    COPY_KINDS,
    MEMORY_KINDS,
    OVERHEADS,
    SYNCS,
    cuda_device,
    fact,
    without_symbol_version,
)
from traceana.readers.cupti_tables import (
    COPY_COLUMNS,
    CUPTI,
    KERNEL_COLUMNS,
    SET_COLUMNS,
    ActivityTable,
    Columns,
    Enumeration,
    Export,
    ExportFormat,
    read_export,
)
from traceana.readers.source import Progress
from traceana.readers.table_source import Bytes, Integer, Query, TableSource, as_int
from traceana.trace import Trace

_MARKER: Final = f"{CUPTI}MARKER"
_UNIFIED: Final = f"{CUPTI}UNIFIED_MEMORY_COUNTER"

_DESCRIPTIONS: Final = frozenset(
    CUPTI + kind
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

_LOW_WORD: Final = 0xFFFFFFFF
_INSTANT: Final = 1 << 0
_START: Final = 1 << 1
_END: Final = 1 << 2
"""CUPTI_ACTIVITY_FLAG_MARKER_*."""
_PROCESS: Final = 1
_THREAD: Final = 2
"""CUpti_ActivityObjectKind; the other kinds are the device's."""
_TO_DEVICE: Final = 1
_TRANSFERS: Final = (_TO_DEVICE, 2, 8)
"""CUpti_ActivityUnifiedMemoryCounterKind of copies HtoD, DtoH and DtoD, whose numbers are those of
:data:`COPY_KINDS`; the other kinds are faults and hints."""
_MANAGED: Final = next(number for number, kind in MEMORY_KINDS.items() if kind == "managed")


def read_database(source: TableSource, progress: Progress) -> Trace:
    """Return the Trace of an nvprof database; schema versions 12 and 16 are tested.

    Raises ``CorruptError``.
    """
    return read_export(source, NVPROF, progress)


def _split_owner(page: pl.DataFrame) -> pl.DataFrame:
    """Return a page with process and thread in place of CUPTI's object ids."""
    if "object" in page.columns:

        def word(number: int) -> pl.Expr:
            piece = pl.col("object").bin.slice(4 * number, 4)
            whole = pl.when(piece.bin.size() == 4).then(piece)
            return whole.bin.reinterpret(dtype=pl.UInt32, endianness="little").cast(pl.Int64)

        # The id begins with two little-endian 32-bit words: process and thread.
        kind = pl.col("object_kind")
        return page.with_columns(
            pl.when(kind.is_in([_PROCESS, _THREAD])).then(word(0)).alias("process"),
            pl.when(kind == _THREAD).then(word(1)).alias("thread"),
        ).drop("object", "object_kind")
    if "thread" in page.columns:
        # An unsigned 32-bit number that SQLite stores with a sign.
        return page.with_columns(pl.col("thread") & _LOW_WORD)
    return page


def _select_copies(export: Export, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the copies among the records of unified memory; the ledger counts the others."""
    copies = frame.filter(pl.col("code").is_in(list(_TRANSFERS)))
    faults_and_hints = frame.height - copies.height
    export.ledger.add(
        "counter", faults_and_hints, table="-", detail=f"{_UNIFIED}: faults and hints"
    )
    # The record has two processors: that of the GPU is the device.
    device = pl.when(pl.col("code") == _TO_DEVICE).then("to").otherwise("from")
    managed = pl.lit(_MANAGED, pl.Int32)
    return copies.with_columns(
        device.cast(pl.Int32, strict=False).alias("device"),
        managed.alias("source_code"),
        managed.alias("destination_code"),
    )


@cache
def _call_names(api: str) -> pl.DataFrame:
    """Return the names of the calls of ``api`` by number, as ``tools/cupti_call_names.py`` writes
    them."""
    text = (files("traceana.readers.nvprof") / "calls.tsv").read_bytes()
    calls = pl.read_csv(text, separator="\t").filter(pl.col("api") == api)
    names = without_symbol_version(calls["name"]).cast(pl.Categorical)
    return calls.select(pl.col("cbid").alias("code"), names)


def _name_calls(_export: Export, table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the calls with the names of their numbers; one that is not in CUDA 12.9 becomes
    ``runtime call 9999``."""
    api = table.removeprefix(CUPTI).lower()
    named = frame.join(_call_names(api), on="code", how="left", maintain_order="left")
    unknown = pl.format(f"{api} call {{}}", pl.col("code")).cast(pl.Categorical)
    return named.with_columns(pl.coalesce("name", unknown).alias("name")).drop("code")


def _nvtx_ranges(export: Export, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges and marks of NVTX markers; two markers with one id are a range.

    nvprof does not store whether a range was pushed or started. A range that began and ended on one
    thread becomes a pushed one (``nvtx``), any other a started one. The duration of a range that
    was never closed is null. The ledger counts the ends of ranges, and ends without a start.
    """

    def has(flag: int) -> pl.Expr:
        return (pl.col("flags") & flag).fill_null(0) != 0

    # Ids may be reused: the first start belongs to the first end.
    nth = pl.int_range(pl.len()).over("id").alias("nth")
    starts = frame.filter(has(_START)).with_columns(nth)
    ends = frame.filter(has(_END) & ~has(_START)).with_columns(nth)
    marks = frame.filter(has(_INSTANT) & ~has(_START) & ~has(_END))
    paired = starts.join(
        ends.select("id", "nth", end="start", end_thread="thread"),
        on=["id", "nth"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    paired_ends = ends.join(starts, on=["id", "nth"], how="semi", nulls_equal=True).height
    ledger = export.ledger
    ledger.add("range_end", paired_ends, table="ranges", detail=_MARKER)
    ledger.add(
        "missing_time",
        ends.height - paired_ends,
        table="ranges",
        detail=f"{_MARKER}: ends without a start",
    )
    ledger.add(
        "unknown_category",
        frame.height - starts.height - ends.height - marks.height,
        table="ranges",
        detail=f"{_MARKER}: synchronization markers",
    )
    same_thread = (pl.col("thread") == pl.col("end_thread")).fill_null(
        pl.col("end").is_null() & pl.col("thread").is_not_null()
    )
    # 0 where the time was lost; the range then ends with the last event.
    end = pl.when(pl.col("end") != 0).then("end")
    spans = paired.with_columns(
        kind=pl.when(same_thread).then(pl.lit("nvtx")).otherwise(pl.lit("nvtx_start")),
        thread=pl.when(same_thread).then("thread"),
        duration=end - pl.col("start"),
    )
    instants = marks.with_columns(kind=pl.lit("mark"), duration=pl.lit(0, pl.Int64))
    ranges = pl.concat([spans, instants], how="diagonal")
    text, domain = (export.texts.of(ranges[column]) for column in ("name", "domain"))
    ledger.add("unnamed", text.null_count(), table="ranges", kept=True, detail=_MARKER)
    ranges = ranges.with_columns(text.alias("text"), domain.alias("domain"))
    return ranges.select("text", "kind", "domain", "process", "thread", "start", "duration")


def _unread_reason(table: str) -> str | None:
    """Return the ledger's reason for the rows of a table that is not read, None for no events."""
    if table in _DESCRIPTIONS or not table.startswith(CUPTI):
        return None
    kind = table.removeprefix(CUPTI)
    if kind.startswith(_SAMPLES):
        return "counter"
    return "metadata" if kind == "MARKER_DATA" else "unknown_category"


def _describe_devices(export: Export) -> Iterator[dict[str, Any]]:
    for gpu in export.source.records(f"{CUPTI}DEVICE"):
        kilobytes = fact(gpu, "bandwidth_bytes_per_s", "globalMemoryBandwidth")
        bandwidth = None if kilobytes is None else as_int(kilobytes * 1000)
        yield cuda_device(gpu, as_int(gpu.get("id")), _text(export, gpu.get("name")), bandwidth)


def _text(export: Export, number: Any) -> str | None:
    text: str | None = export.texts.of(pl.Series([as_int(number)], dtype=pl.Int64))[0]
    return text


def _describe_recording(export: Export, first_ns: int, processes: Sequence[int]) -> dict[str, Any]:
    versions = export.source.records("Version")
    version = as_int(versions[0].get("version")) if versions else None
    named: dict[int, str] = {}
    for row in export.source.records(f"{CUPTI}NAME"):
        owner = row.get("objectId")
        if as_int(row.get("objectKind")) == _PROCESS and isinstance(owner, bytes):
            text = _text(export, row.get("name"))
            if text is not None:
                named.setdefault(int.from_bytes(owner[:4], "little"), text)
    return {
        "format_version": None if version is None else str(version),
        "producer": "NVIDIA nvprof",
        "epoch_ns": first_ns if first_ns > _FIRST_CUDA_NS else None,
        "properties": {"processes": {str(pid): named.get(pid) for pid in processes}},
    }


_KERNELS: Final = ActivityTable("kernel", {**KERNEL_COLUMNS, "code": Integer("name")})
_OBJECT: Final[Columns] = {"object_kind": Integer("objectKind"), "object": Bytes("objectId")}

NVPROF: Final = ExportFormat(
    name="nvprof",
    strings=("StringTable", "_id_", "value"),
    no_text=0,  # "-- null --"
    writes_empty_tables=True,
    process=Integer("processId"),
    activities={
        f"{CUPTI}KERNEL": _KERNELS,  # recorded one after the other
        f"{CUPTI}CONCURRENT_KERNEL": _KERNELS,
        f"{CUPTI}CDP_KERNEL": _KERNELS,  # launched by a kernel
        f"{CUPTI}MEMCPY": ActivityTable("memcpy", COPY_COLUMNS),
        f"{CUPTI}MEMCPY2": ActivityTable("memcpy", COPY_COLUMNS),  # from one device to another
        _UNIFIED: ActivityTable(
            "memcpy",
            {
                "code": Integer("counterKind"),
                "bytes": Integer("value"),
                "from": Integer("srcId"),
                "to": Integer("dstId"),
            },
            required="end",  # early records are sums, not copies
            prepare=_select_copies,
        ),
        f"{CUPTI}MEMSET": ActivityTable(
            "memset", {**SET_COLUMNS, "destination_code": Integer("memoryKind")}
        ),
        f"{CUPTI}SYNCHRONIZATION": ActivityTable("sync", {"code": Integer("type")}),
    },
    calls=(f"{CUPTI}RUNTIME", f"{CUPTI}DRIVER"),
    call_columns={
        "code": Integer("cbid"),
        "process": Integer("processId"),
        "thread": Integer("threadId"),
        "correlation": Integer("correlationId"),
    },
    nvtx=Query(
        _MARKER,
        {
            "flags": Integer("flags"),
            "start": Integer("timestamp"),
            "id": Integer("id"),
            "name": Integer("name"),
            "domain": Integer("domain"),
            **_OBJECT,
        },
        _split_owner,
    ),
    contexts=(f"{CUPTI}CONTEXT",),
    spans={f"{CUPTI}OVERHEAD": ("overhead", None)},
    span_columns={
        "name": Integer(),  # overhead has none
        "type": Integer("overheadKind"),
        **_OBJECT,
    },
    copy_kinds=Enumeration(COPY_KINDS, default="unknown"),
    memory_kinds=Enumeration(MEMORY_KINDS),
    sync_types=Enumeration(SYNCS, default=SYNCS[0]),
    overhead_kinds=Enumeration(OVERHEADS, default="Unknown"),
    split_owner=_split_owner,
    name_calls=_name_calls,
    nvtx_ranges=_nvtx_ranges,
    unread_reason=_unread_reason,
    describe_devices=_describe_devices,
    describe_recording=_describe_recording,
)
