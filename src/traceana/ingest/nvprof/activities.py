"""Activities of an nvprof database: kernels, copies, memsets, synchronizations, migrations."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.ingest.cupti import (
    ACTIVITY_COLUMNS,
    COPY_COLUMNS,
    COPY_KINDS,
    KERNEL_COLUMNS,
    MEMORY_KINDS,
    SYNCS,
    activity_page,
    copy_name,
    set_name,
    translated,
)
from traceana.ingest.table_source import Integer, Query, TableSource, Texts, as_int
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
