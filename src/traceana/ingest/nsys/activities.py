"""Device work of an nsys export: kernels, copies, sets, synchronizations and whole CUDA graphs."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.ingest.nsys.bulk import Column, Query, integer
from traceana.ingest.nsys.database import Database
from traceana.ingest.nsys.ids import enumeration, nonzero, process_of
from traceana.ingest.nsys.strings import Strings
from traceana.trace.schema import ACTIVITIES, ActivityKind

KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
SYNC: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
GRAPH: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
KINDS: Final = {KERNEL: "kernel", MEMCPY: "memcpy", MEMSET: "memset", SYNC: "sync", GRAPH: "graph"}

_COPIES: Final = {
    # CUpti_ActivityMemcpyKind, and nsys's three kinds of unified-memory migration after it:
    # number, name in ENUM_CUDA_MEMCPY_OPER, direction, words
    0: ("CUDA_MEMCPY_KIND_UNKNOWN", "unknown", "Unknown"),
    1: ("CUDA_MEMCPY_KIND_HTOD", "h2d", "HtoD"),
    2: ("CUDA_MEMCPY_KIND_DTOH", "d2h", "DtoH"),
    3: ("CUDA_MEMCPY_KIND_HTOA", "h2a", "HtoA"),
    4: ("CUDA_MEMCPY_KIND_ATOH", "a2h", "AtoH"),
    5: ("CUDA_MEMCPY_KIND_ATOA", "a2a", "AtoA"),
    6: ("CUDA_MEMCPY_KIND_ATOD", "a2d", "AtoD"),
    7: ("CUDA_MEMCPY_KIND_DTOA", "d2a", "DtoA"),
    8: ("CUDA_MEMCPY_KIND_DTOD", "d2d", "DtoD"),
    9: ("CUDA_MEMCPY_KIND_HTOH", "h2h", "HtoH"),
    10: ("CUDA_MEMCPY_KIND_PTOP", "p2p", "PtoP"),
    11: ("CUDA_MEMCPY_KIND_UVM_HTOD", "h2d", "HtoD"),
    12: ("CUDA_MEMCPY_KIND_UVM_DTOH", "d2h", "DtoH"),
    13: ("CUDA_MEMCPY_KIND_UVM_DTOD", "d2d", "DtoD"),
}
_UNIFIED: Final = "_UVM_"
_MEMORIES: Final = {
    # number, name in ENUM_CUDA_MEM_KIND, memory kind, words
    0: ("CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", "pageable", "Pageable"),
    1: ("CUDA_MEMOPR_MEMORY_KIND_PINNED", "pinned", "Pinned"),
    2: ("CUDA_MEMOPR_MEMORY_KIND_DEVICE", "device", "Device"),
    3: ("CUDA_MEMOPR_MEMORY_KIND_ARRAY", "array", "Array"),
    4: ("CUDA_MEMOPR_MEMORY_KIND_MANAGED", "managed", "Managed"),
    5: ("CUDA_MEMOPR_MEMORY_KIND_DEVICE_STATIC", "device_static", "Device Static"),
    6: ("CUDA_MEMOPR_MEMORY_KIND_MANAGED_STATIC", "managed_static", "Managed Static"),
    7: ("CUDA_MEMOPR_MEMORY_KIND_UNKNOWN", "unknown", "Unknown"),
}
_SYNCS: Final = {
    # CUpti_ActivitySynchronizationType: number, name in ENUM_CUPTI_SYNC_TYPE, words
    0: ("CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_UNKNOWN", "Unknown Sync"),
    1: ("CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE", "Event Sync"),
    2: ("CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT", "Stream Wait Event"),
    3: ("CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE", "Stream Sync"),
    4: ("CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE", "Context Sync"),
}
_NO_STREAM: Final = 0xFFFFFFFF
"""CUPTI_SYNCHRONIZATION_INVALID_VALUE: the synchronization is of a context, not of a stream."""

_SIZES: Final = {
    f"{what}_{axis}": f"{what}{axis.upper()}" for what in ("grid", "block") for axis in "xyz"
}


def query(database: Database, table: str) -> Query:
    """Return the query for one of :data:`KINDS`, a table that ``database`` has.

    Its result has columns of ``activities``, the times on the file's own clock, and ``code`` (and
    more ``…_code``) in place of the name and of enumerated values.
    """

    def number(*columns: str) -> Column:
        return integer(database, table, *columns)

    columns = {
        "start": number("start"),
        "end": number("end"),
        "device": number("deviceId"),
        "context": number("contextId"),
        "stream": number("streamId"),
        "correlation": number("correlationId"),
        "process": number("globalPid"),
    }
    match table:
        case _ if table == KERNEL:
            columns |= {
                "code": number("demangledName", "shortName", "mangledName"),
                "registers": number("registersPerThread"),
                "static_memory": number("staticSharedMemory"),
                "dynamic_memory": number("dynamicSharedMemory"),
                "graph_node": number("graphNodeId"),
                **{name: number(column) for name, column in _SIZES.items()},
            }
        case _ if table == MEMCPY:
            columns |= {
                "code": number("copyKind"),
                "source_code": number("srcKind"),
                "destination_code": number("dstKind"),
                "bytes": number("bytes"),
                "graph_node": number("graphNodeId"),
            }
        case _ if table == MEMSET:
            columns |= {
                "destination_code": number("memKind"),
                "bytes": number("bytes"),
                "graph_node": number("graphNodeId"),
            }
        case _ if table == SYNC:
            columns["code"] = number("syncType", "deprecatedSyncType")
        case _:
            columns["code"] = number("graphId", "graphExecId")
    return Query(table, columns, _shape)


def _shape(page: pl.DataFrame) -> pl.DataFrame:
    stream = pl.col("stream")
    frame = page.with_columns(
        (pl.col("end") - pl.col("start")).alias("duration"),
        process_of("process").alias("process"),
        nonzero("correlation").alias("correlation"),
        pl.when((stream != _NO_STREAM) & (stream >= 0)).then(stream).alias("stream"),
    ).drop("end")
    if "static_memory" in frame.columns:
        static, dynamic = pl.col("static_memory"), pl.col("dynamic_memory")
        both = pl.coalesce(static + dynamic, static, dynamic)
        frame = frame.with_columns(both.alias("shared_memory")).drop(
            "static_memory", "dynamic_memory"
        )
    if "graph_node" in frame.columns:
        frame = frame.with_columns(nonzero("graph_node").alias("graph_node"))
    # What does not fit its column is no size or device that ever was: null, rather than a crash.
    narrow = [
        pl.col(name).cast(pl.Int32, strict=False)
        for name in frame.columns
        if ACTIVITIES.get(name) == pl.Int32
    ]
    codes = [pl.col(c).cast(pl.Int32, strict=False) for c in ("source_code", "destination_code")]
    return frame.with_columns(
        *narrow, *(code for code in codes if code.meta.output_name() in frame.columns)
    )


def named(
    database: Database, table: str, frame: pl.DataFrame, strings: Strings
) -> tuple[pl.DataFrame, pl.Series]:
    """Return columns of ``activities`` for a result of :func:`query`, and the rows' names.

    Copies, sets and synchronizations have no name in the file; they get the one that Kineto
    gives them, so that traces of both can be compared.
    """
    match table:
        case _ if table == KERNEL:
            names = strings.of(frame["code"])
        case _ if table == MEMCPY:
            frame, names = _copies(database, frame)
        case _ if table == MEMSET:
            frame = _memory(database, frame, "destination")
            names = frame.select(pl.format("Memset ({})", _word("destination"))).to_series()
        case _ if table == SYNC:
            names = _syncs(database, frame["code"])
        case _:
            names = frame.select(pl.format("CUDA graph {}", "code")).to_series()
    known = [pl.col(name).cast(ACTIVITIES[name]) for name in frame.columns if name in ACTIVITIES]
    return frame.select(*known, pl.lit(KINDS[table], ActivityKind).alias("kind")), names


def _copies(database: Database, frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    by_name = {name: (direction, words) for name, direction, words in _COPIES.values()}
    kinds = enumeration(database, "ENUM_CUDA_MEMCPY_OPER", {k: v[0] for k, v in _COPIES.items()})
    unknown = by_name["CUDA_MEMCPY_KIND_UNKNOWN"]
    direction = {code: by_name.get(name, unknown)[0] for code, name in kinds.items()}
    words = {code: by_name.get(name, unknown)[1] for code, name in kinds.items()}
    unified = pl.col("code").is_in([code for code, name in kinds.items() if _UNIFIED in name])
    for side in ("source", "destination"):
        frame = _memory(database, frame, side)
        kind = pl.col(f"{side}_memory")
        managed = pl.when(unified & kind.is_null()).then(pl.lit("managed")).otherwise(kind)
        frame = frame.with_columns(managed.alias(f"{side}_memory"))
    frame = frame.with_columns(_translated("code", direction, "unknown").alias("copy_kind"))
    name = pl.format(
        "Memcpy {} ({} -> {})",
        _translated("code", words, unknown[1]),
        _word("source"),
        _word("destination"),
    )
    return frame, frame.select(name).to_series()


def _memory(database: Database, frame: pl.DataFrame, side: str) -> pl.DataFrame:
    by_name = {name: kind for name, kind, _ in _MEMORIES.values()}
    codes = enumeration(database, "ENUM_CUDA_MEM_KIND", {k: v[0] for k, v in _MEMORIES.items()})
    kinds = {code: by_name.get(name, "unknown") for code, name in codes.items()}
    return frame.with_columns(_translated(f"{side}_code", kinds, None).alias(f"{side}_memory"))


def _word(side: str) -> pl.Expr:
    words = {kind: word for _, kind, word in _MEMORIES.values()}
    return pl.col(f"{side}_memory").replace_strict(words, default="Unknown", return_dtype=pl.String)


def _syncs(database: Database, codes: pl.Series) -> pl.Series:
    by_name = dict(_SYNCS.values())
    names = enumeration(database, "ENUM_CUPTI_SYNC_TYPE", {k: v[0] for k, v in _SYNCS.items()})
    words = {code: by_name.get(name, _SYNCS[0][1]) for code, name in names.items()}
    return codes.to_frame("code").select(_translated("code", words, _SYNCS[0][1])).to_series()


def _translated(column: str, words: dict[int, str], default: str | None) -> pl.Expr:
    return pl.col(column).replace_strict(words, default=default, return_dtype=pl.String)
