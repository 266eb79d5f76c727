"""The records of an nvprof database: activities, CUDA calls, NVTX markers, profiler overhead."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import Final

import polars as pl

from traceana.ingest.cupti import (
    ACTIVITY_COLUMNS,
    COPY_COLUMNS,
    COPY_KINDS,
    KERNEL_COLUMNS,
    MEMORY_KINDS,
    OVERHEADS,
    SYNCS,
    activity_page,
    copy_name,
    nonzero,
    set_name,
    translated,
    without_symbol_version,
)
from traceana.ingest.table_source import Bytes, Integer, Query, TableSource, Texts, as_int
from traceana.trace import Ledger
from traceana.trace.schema import ACTIVITIES, ActivityKind

SYNC: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
UNIFIED: Final = "CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER"
_MEMSET: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
KINDS: Final = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "kernel",  # kernels recorded one after the other
    "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL": "kernel",
    "CUPTI_ACTIVITY_KIND_CDP_KERNEL": "kernel",  # launched by a kernel
    "CUPTI_ACTIVITY_KIND_MEMCPY": "memcpy",
    "CUPTI_ACTIVITY_KIND_MEMCPY2": "memcpy",  # from one device to another
    UNIFIED: "memcpy",
    _MEMSET: "memset",
    SYNC: "sync",
}

_CONTEXTS: Final = "CUPTI_ACTIVITY_KIND_CONTEXT"
_MIGRATIONS: Final = {
    # CUpti_ActivityUnifiedMemoryCounterKind: direction; the other kinds are faults and hints
    1: "HtoD",
    2: "DtoH",
    8: "DtoD",
}


def tables(source: TableSource) -> list[str]:
    """Return those of :data:`KINDS` that ``source`` has.

    Early records of unified memory have no end: they are sums, not copies.
    """
    present = [table for table in KINDS if table in source.tables]
    if UNIFIED in present and "end" not in source.tables[UNIFIED]:
        present.remove(UNIFIED)
    return present


def query(table: str) -> Query:
    """Return the query for one of :data:`KINDS`; see :func:`activity_page` for its result."""
    columns = dict(ACTIVITY_COLUMNS)
    if table == UNIFIED:
        columns |= {
            "process": Integer("processId"),
            "code": Integer("counterKind"),
            "bytes": Integer("value"),
            "from": Integer("srcId"),
            "to": Integer("dstId"),
        }
    elif table == SYNC:
        columns["code"] = Integer("type")
    elif table == _MEMSET:
        columns |= {
            "destination_code": Integer("memoryKind"),
            "bytes": Integer("bytes"),
            "graph_node": Integer("graphNodeId"),
        }
    elif KINDS[table] == "memcpy":
        columns |= COPY_COLUMNS
    else:
        columns |= {**KERNEL_COLUMNS, "code": Integer("name")}
    return Query(table, columns, activity_page)


def migrations(frame: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    """Return the copies among the records of unified memory; count the others in ``ledger``."""
    copies = frame.filter(pl.col("code").is_in(list(_MIGRATIONS)))
    ledger.add(
        "counter", frame.height - copies.height, table="-", detail=f"{UNIFIED}: faults and hints"
    )
    # The record has two processors: that of the GPU is the device.
    device = pl.when(pl.col("code") == 1).then("to").otherwise("from")
    return copies.with_columns(device.cast(pl.Int32, strict=False).alias("device"))


def named(table: str, frame: pl.DataFrame, texts: Texts) -> tuple[pl.DataFrame, pl.Series]:
    """Return columns of ``activities`` for a result of :func:`query`, and the rows' names."""
    kind = KINDS[table]
    if table == UNIFIED:
        managed = pl.lit("managed")
        frame = frame.with_columns(
            translated("code", _MIGRATIONS, "unknown").alias("copy_kind"),
            managed.alias("source_memory"),
            managed.alias("destination_memory"),
        )
        names = frame.select(copy_name()).to_series()
    elif kind == "kernel":
        names = texts.of(frame["code"])
    elif kind == "memcpy":
        frame = frame.with_columns(
            translated("code", COPY_KINDS, "unknown").alias("copy_kind"),
            _memory("source"),
            _memory("destination"),
        )
        names = frame.select(copy_name()).to_series()
    elif kind == "memset":
        frame = frame.with_columns(_memory("destination"))
        names = frame.select(set_name()).to_series()
    else:
        names = frame.select(translated("code", SYNCS, SYNCS[0])).to_series()
    known = [pl.col(name).cast(ACTIVITIES[name]) for name in frame.columns if name in ACTIVITIES]
    return frame.select(*known, pl.lit(kind, ActivityKind).alias("kind")), names


def _memory(side: str) -> pl.Expr:
    return translated(f"{side}_code", MEMORY_KINDS, None).alias(f"{side}_memory")


def on_devices(source: TableSource, syncs: pl.DataFrame) -> pl.DataFrame:
    """Return synchronizations with the device of their context."""
    listed = [
        (as_int(row.get("contextId")), as_int(row.get("deviceId")))
        for row in source.records(_CONTEXTS)
    ]
    contexts = (
        pl.DataFrame(listed, schema={"context": pl.Int64, "_device": pl.Int64}, orient="row")
        .drop_nulls()
        .unique("context", keep="first", maintain_order=True)
    )
    return (
        syncs.join(contexts, on="context", how="left", maintain_order="left")
        .with_columns(pl.col("_device").cast(pl.Int32, strict=False).alias("device"))
        .drop("_device")
    )


CALL_TABLES: Final = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": "runtime",
    "CUPTI_ACTIVITY_KIND_DRIVER": "driver",
}

MARKER: Final = "CUPTI_ACTIVITY_KIND_MARKER"
OVERHEAD: Final = "CUPTI_ACTIVITY_KIND_OVERHEAD"
RANGE_TABLES: Final = (MARKER, OVERHEAD)
_LOW_WORD: Final = 0xFFFFFFFF
_INSTANT: Final = 1 << 0
_START: Final = 1 << 1
_END: Final = 1 << 2
"""CUPTI_ACTIVITY_FLAG_MARKER_*."""
_PROCESS: Final = 1
_THREAD: Final = 2
"""CUpti_ActivityObjectKind; the other kinds are the device's."""


def call_query(table: str) -> Query:
    """Return the query for one of :data:`CALL_TABLES`."""
    columns = {
        "code": "cbid",
        "start": "start",
        "end": "end",
        "process": "processId",
        "thread": "threadId",
        "correlation": "correlationId",
    }
    return Query(table, {name: Integer(column) for name, column in columns.items()}, _call_shape)


def _call_shape(page: pl.DataFrame) -> pl.DataFrame:
    return page.select(
        "code",
        "start",
        (pl.col("end") - pl.col("start")).alias("duration"),
        "process",
        thread("thread").alias("thread"),
        nonzero("correlation").alias("correlation"),
    )


def thread(column: str) -> pl.Expr:
    """Return a thread's id, an unsigned 32-bit number that SQLite stores with a sign."""
    return pl.col(column) & _LOW_WORD


@cache
def _call_names(api: str) -> pl.DataFrame:
    """Return the names of the calls by number; ``tools/cupti_call_names.py`` writes the file."""
    text = (files("traceana.ingest.nvprof") / "calls.tsv").read_text("utf-8")
    rows = [row for row in csv.DictReader(text.splitlines(), delimiter="\t") if row["api"] == api]
    names = without_symbol_version(pl.Series([row["name"] for row in rows], dtype=pl.String))
    return pl.DataFrame(
        {"code": [int(row["cbid"]) for row in rows], "name": names},
        schema_overrides={"code": pl.Int64},
    ).with_columns(pl.col("name").cast(pl.Categorical))


def calls(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return columns of ``calls`` for a result of :func:`call_query`.

    The database stores numbers; a number that is not in CUDA 12.9 becomes ``runtime call 9999``.
    """
    api = CALL_TABLES[table]
    by_number = frame.join(_call_names(api), on="code", how="left", maintain_order="left")
    unknown = pl.format(f"{api} call {{}}", pl.col("code")).cast(pl.Categorical)
    return by_number.with_columns(pl.coalesce("name", unknown).alias("name")).drop("code")


def marker_query() -> Query:
    """Return the query for markers; a range is two of them with one id."""
    return Query(
        MARKER,
        {
            "flags": Integer("flags"),
            "start": Integer("timestamp"),
            "id": Integer("id"),
            "object_kind": Integer("objectKind"),
            "object": Bytes("objectId"),
            "name": Integer("name"),
            "domain": Integer("domain"),
        },
        lambda page: page.with_columns(*_owner()).drop("object", "object_kind"),
    )


def overhead_query() -> Query:
    """Return the query for the profiler's overhead."""
    return Query(
        OVERHEAD,
        {
            "code": Integer("overheadKind"),
            "start": Integer("start"),
            "end": Integer("end"),
            "object_kind": Integer("objectKind"),
            "object": Bytes("objectId"),
        },
        lambda page: page.select(
            "code", "start", (pl.col("end") - pl.col("start")).alias("duration"), *_owner()
        ),
    )


def _owner() -> tuple[pl.Expr, pl.Expr]:
    """Return process and thread: the first two little-endian 32-bit words of ``objectId``."""

    def word(number: int) -> pl.Expr:
        piece = pl.col("object").bin.slice(4 * number, 4)
        whole = pl.when(piece.bin.size() == 4).then(piece)
        return whole.bin.reinterpret(dtype=pl.UInt32, endianness="little").cast(pl.Int64)

    kind = pl.col("object_kind")
    return (
        pl.when(kind.is_in([_PROCESS, _THREAD])).then(word(0)).alias("process"),
        pl.when(kind == _THREAD).then(word(1)).alias("thread"),
    )


def markers(frame: pl.DataFrame, texts: Texts, ledger: Ledger) -> pl.DataFrame:
    """Return columns of ``ranges`` for a result of :func:`marker_query`.

    nvprof does not store whether a range was pushed or started. A range that began and ended on one
    thread becomes a pushed one (``nvtx``), any other a started one. The duration of a range that
    was never closed is null. ``ledger`` counts the ends of ranges, and ends without a start.
    """

    def has(flag: int) -> pl.Expr:
        return (pl.col("flags") & flag).fill_null(0) != 0

    # Ids may be reused: the first start belongs to the first end.
    nth = pl.int_range(pl.len()).over("id").alias("nth")
    starts = frame.filter(has(_START)).with_columns(nth)
    ends = frame.filter(has(_END) & ~has(_START)).with_columns(nth)
    marks = frame.filter(has(_INSTANT) & ~has(_START) & ~has(_END))
    paired = starts.join(
        ends.select(
            "id", "nth", pl.col("start").alias("end"), pl.col("thread").alias("end_thread")
        ),
        on=["id", "nth"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    met = ends.join(starts, on=["id", "nth"], how="semi", nulls_equal=True).height
    ledger.add("range_end", met, table="ranges", detail=MARKER)
    ledger.add(
        "missing_time", ends.height - met, table="ranges", detail=f"{MARKER}: ends without a start"
    )
    ledger.add(
        "unknown_category",
        frame.height - starts.height - ends.height - marks.height,
        table="ranges",
        detail=f"{MARKER}: synchronization markers",
    )
    same_thread = (pl.col("thread") == pl.col("end_thread")).fill_null(
        pl.col("end").is_null() & pl.col("thread").is_not_null()
    )
    # 0 where the time was lost; the range then ends with the last event.
    end = pl.when(pl.col("end") != 0).then("end")
    spans = paired.with_columns(
        pl.when(same_thread).then(pl.lit("nvtx")).otherwise(pl.lit("nvtx_start")).alias("kind"),
        pl.when(same_thread).then("thread").alias("thread"),
        (end - pl.col("start")).alias("duration"),
    )
    instants = marks.with_columns(
        pl.lit("mark").alias("kind"), pl.lit(0, pl.Int64).alias("duration")
    )
    columns = ["name", "domain", "kind", "process", "thread", "start", "duration"]
    found = pl.concat([spans.select(columns), instants.select(columns)])
    ledger.add(
        "unnamed", texts.of(found["name"]).null_count(), table="ranges", kept=True, detail=MARKER
    )
    return found.with_columns(
        texts.of(found["name"]).alias("text"), texts.of(found["domain"]).alias("domain")
    ).drop("name")


def overhead(frame: pl.DataFrame) -> pl.DataFrame:
    """Return columns of ``ranges`` for a result of :func:`overhead_query`."""
    return frame.with_columns(
        translated("code", OVERHEADS, "Unknown").cast(pl.Categorical).alias("text"),
        pl.lit(None, pl.Categorical).alias("domain"),
        pl.lit("overhead").alias("kind"),
    ).drop("code")
