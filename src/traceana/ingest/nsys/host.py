"""Host rows of an nsys export: CUDA calls, NVTX ranges, library and OS calls, profiler overhead."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.ingest.cupti import OVERHEADS, nonzero, without_symbol_version
from traceana.ingest.nsys.activities import enumeration, process_of, thread_of
from traceana.ingest.table_source import Bytes, Integer, Query, TableSource, Texts, decoded
from traceana.trace import Ledger

CALL_TABLES: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
"""New exports hold driver calls in the table of runtime calls; early ones in a separate table."""
NVTX: Final = "NVTX_EVENTS"

API_TABLES: Final = {
    # table: kind and domain of its ranges. cuDNN's and cuBLAS's calls nest on their thread as
    # NVTX ranges do; newer libraries write them as NVTX ranges with a domain of their own.
    "CUDNN_EVENTS": ("nvtx", "cuDNN"),
    "CUBLAS_EVENTS": ("nvtx", "cuBLAS"),
    "OSRT_API": ("osrt", None),
    "PROFILER_OVERHEAD": ("overhead", None),
    "CUPTI_ACTIVITY_KIND_OVERHEAD": ("overhead", None),
}

_BACKTRACE: Final = {67: "TRACE_PROCESS_EVENT_CUDABACKTRACE"}

_TYPES: Final = {
    34: "NvtxMark",
    59: "NvtxPushPopRange",
    60: "NvtxStartEndRange",
    65: "NvtxtMark",
    70: "NvtxtPushPopRange",
    71: "NvtxtStartEndRange",
    33: "NvtxCategory",
    39: "NvtxThread",
    64: "NvtxtCategory",
    72: "NvtxtMetaThread",
    73: "NvtxtMetaProcess",
    74: "NvtxtMetaFileDisplay",
    75: "NvtxDomainCreate",
    76: "NvtxDomainDestroy",
    97: "NvtxNameCudaDevice",
    98: "NvtxNameCudaContext",
    99: "NvtxNameCudaStream",
}
"""ENUM_NSYS_EVENT_TYPE, which exports of schema 2 lack."""
_KINDS: Final = {
    "NvtxPushPopRange": "nvtx",
    "NvtxtPushPopRange": "nvtx",
    "NvtxStartEndRange": "nvtx_start",
    "NvtxtStartEndRange": "nvtx_start",
    "NvtxMark": "mark",
    "NvtxtMark": "mark",
}

_METADATA: Final = frozenset(_TYPES.values()) - frozenset(_KINDS)
_DOMAIN: Final = "NvtxDomainCreate"

_OVERHEADS: Final = {
    # number, name in ENUM_CUPTI_OVERHEAD_TYPE, number in CUPTI
    2: ("OVERHEAD_DRIVER_COMPILER", 1),
    3: ("OVERHEAD_CUPTI_BUFFER_FLUSH", 1 << 16),
    4: ("OVERHEAD_CUPTI_INSTRUMENTATION", 2 << 16),
    5: ("OVERHEAD_CUPTI_RESOURCE", 3 << 16),
    6: ("OVERHEAD_RUNTIME_TRIGGERED_MODULE_LOADING", 4 << 16),
    7: ("OVERHEAD_LAZY_FUNCTION_LOADING", 5 << 16),
    8: ("OVERHEAD_COMMAND_BUFFER_FULL", 6 << 16),
}


def call_query(table: str) -> Query:
    """Return the query for one of :data:`CALL_TABLES`."""
    columns = {
        "name": ("nameId",),
        "event_class": ("eventClass",),
        "start": ("start",),
        "end": ("end",),
        "thread": ("globalTid",),
        "correlation": ("correlationId",),
    }
    return Query(
        table,
        {name: Integer(*sources) for name, sources in columns.items()},
        _call_shape,
    )


def _call_shape(page: pl.DataFrame) -> pl.DataFrame:
    return page.select(
        "name",
        pl.col("event_class").cast(pl.Int32, strict=False),
        "start",
        (pl.col("end") - pl.col("start")).alias("duration"),
        process_of("thread").alias("process"),
        thread_of("thread").alias("thread"),
        nonzero("correlation").alias("correlation"),
    )


def calls(
    database: TableSource, table: str, frame: pl.DataFrame, strings: Texts, ledger: Ledger
) -> pl.DataFrame:
    """Return columns of ``calls`` for a result of :func:`call_query`.

    Names have no symbol version. With ``--cudabacktrace`` nsys writes a second row around a call,
    with the same correlation id; ``ledger`` counts those rows.
    """
    classes = enumeration(database, "ENUM_NSYS_EVENT_CLASS", _BACKTRACE)
    again = pl.col("event_class").is_in([c for c, n in classes.items() if n in _BACKTRACE.values()])
    calls = frame.filter(again.not_().fill_null(value=True)).drop("event_class")
    ledger.add(
        "unknown_category",
        frame.height - calls.height,
        table="calls",
        detail=f"{table}: CUDA backtrace rows",
    )
    names = strings.of(calls["name"])
    ledger.add("unnamed", names.null_count(), table="calls", kept=True, detail=table)
    distinct = names.drop_nulls().unique()
    plain = without_symbol_version(distinct.cast(pl.String)).cast(pl.Categorical)
    return calls.with_columns(
        names.replace_strict(distinct, plain, return_dtype=pl.Categorical).alias("name")
    )


def nvtx_query() -> Query:
    """Return the query for NVTX events."""
    columns = ("start", "end", "eventType", "globalTid", "endGlobalTid", "domainId", "textId")
    return Query(
        NVTX,
        {
            **{column: Integer(column) for column in columns},
            "text": Bytes("text"),
        },
        _nvtx_shape,
    )


def _nvtx_shape(page: pl.DataFrame) -> pl.DataFrame:
    other_end = (pl.col("endGlobalTid") != pl.col("globalTid")) & (pl.col("endGlobalTid") != 0)
    # Exports before schema 2 have no nulls: a range that was never closed ends at 0.
    ended = pl.when(pl.col("end") != 0).then("end")
    return page.select(
        decoded(page["text"]).cast(pl.Categorical).alias("text"),
        pl.col("textId").alias("text_id"),
        pl.col("eventType").cast(pl.Int32, strict=False).alias("type"),
        pl.col("domainId").alias("domain_id"),
        process_of("globalTid").alias("process"),
        pl.when(other_end.not_().fill_null(value=True))
        .then(thread_of("globalTid"))
        .alias("thread"),
        "start",
        (ended - pl.col("start")).alias("duration"),
    )


def nvtx(
    database: TableSource, frame: pl.DataFrame, strings: Texts, ledger: Ledger
) -> pl.DataFrame:
    """Return columns of ``ranges`` for a result of :func:`nvtx_query`.

    The duration of a range that was never closed is null. A missing text is empty, an unknown
    string id null. ``ledger`` counts the names of domains, threads and categories.
    """
    types = enumeration(database, "ENUM_NSYS_EVENT_TYPE", _TYPES)
    named = _with_text(frame, strings)
    kinds = {code: _KINDS[name] for code, name in types.items() if name in _KINDS}
    # Minimal exports have no type: an event with an end is a range.
    untyped = pl.when(pl.col("duration").is_null()).then(pl.lit("mark")).otherwise(pl.lit("nvtx"))
    events = named.with_columns(
        pl.when(pl.col("type").is_null())
        .then(untyped)
        .otherwise(pl.col("type").replace_strict(kinds, default=None, return_dtype=pl.String))
        .alias("kind")
    )
    others = events.filter(pl.col("kind").is_null()).group_by("type").len().sort("type")
    for code, count in others.iter_rows():
        name = types.get(code, f"type {code}")
        reason = "metadata" if name in _METADATA else "unknown_category"
        ledger.add(reason, count, table="ranges", detail=f"{NVTX}: {name}")
    ranges = events.filter(pl.col("kind").is_not_null())
    ledger.add("unnamed", ranges["text"].null_count(), table="ranges", kept=True, detail=NVTX)
    is_mark = pl.col("kind") == "mark"
    return ranges.select(
        "text",
        "kind",
        _domain(ranges, named.filter(pl.col("type").is_in(_codes(types, _DOMAIN)))),
        "process",
        "thread",
        "start",
        pl.when(is_mark).then(pl.lit(0, pl.Int64)).otherwise("duration").alias("duration"),
    )


def _with_text(frame: pl.DataFrame, strings: Texts) -> pl.DataFrame:
    """Return events with registered strings resolved; inline text comes first."""
    refers = (pl.col("text") == "") & pl.col("text_id").is_not_null()
    registered = strings.of(frame["text_id"])
    # 0 means no text; a string of id 0 need not exist.
    without_id = pl.when(pl.col("text_id") == 0).then("text")
    return frame.with_columns(
        pl.when(refers).then(pl.coalesce(registered, without_id)).otherwise("text").alias("text")
    ).drop("text_id")


def _codes(types: dict[int, str], wanted: str) -> list[int]:
    return [code for code, name in types.items() if name == wanted]


def _domain(ranges: pl.DataFrame, created: pl.DataFrame) -> pl.Series:
    """Return the domain of each range: null for the default, a number where it has no name."""
    keys = ["process", "domain_id"]
    names = created.select(*keys, pl.col("text").alias("domain")).unique(keys, keep="last")
    numbered = (
        pl.when(pl.col("domain_id") != 0)
        .then(pl.format("domain {}", "domain_id"))
        .cast(pl.Categorical)
    )
    return (
        ranges.select(keys)
        .join(names, on=keys, how="left", maintain_order="left")
        .select(pl.coalesce("domain", numbered).alias("domain"))
        .to_series()
    )


def api_query(table: str) -> Query:
    """Return the query for one of :data:`API_TABLES`."""
    columns = {
        "name": "nameId",
        "overhead": "overheadType",
        "start": "start",
        "end": "end",
        "thread": "globalTid",
    }
    return Query(
        table,
        {name: Integer(source) for name, source in columns.items()},
        _api_shape,
    )


def _api_shape(page: pl.DataFrame) -> pl.DataFrame:
    return page.select(
        "name",
        pl.col("overhead").cast(pl.Int32, strict=False),
        "start",
        (pl.col("end") - pl.col("start")).alias("duration"),
        process_of("thread").alias("process"),
        thread_of("thread").alias("thread"),
    )


def api(
    database: TableSource, table: str, frame: pl.DataFrame, strings: Texts, ledger: Ledger
) -> pl.DataFrame:
    """Return columns of ``ranges`` for a result of :func:`api_query`."""
    kind, domain = API_TABLES[table]
    by_name = {name: OVERHEADS[number] for name, number in _OVERHEADS.values()}
    codes = enumeration(
        database, "ENUM_CUPTI_OVERHEAD_TYPE", {code: name for code, (name, _) in _OVERHEADS.items()}
    )
    words = {code: by_name[name] for code, name in codes.items() if name in by_name}
    overhead = frame["overhead"].replace_strict(words, default=None, return_dtype=pl.String)
    ranges = frame.select(
        pl.coalesce(strings.of(frame["name"]), overhead.cast(pl.Categorical)).alias("text"),
        pl.lit(kind).alias("kind"),
        pl.lit(domain, pl.Categorical).alias("domain"),
        "process",
        "thread",
        "start",
        "duration",
    )
    ledger.add("unnamed", ranges["text"].null_count(), table="ranges", kept=True, detail=table)
    return ranges
