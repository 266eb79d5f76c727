"""Activities of an nsys export: kernels, copies, memsets, synchronizations, graphs; its ids.

And the records of CUDA events: the stream and the call that a wait depends on.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.ingest.cupti import (
    ACTIVITY_COLUMNS,
    COPY_COLUMNS,
    KERNEL_COLUMNS,
    NO_STREAM,
    SYNCS,
    activity_page,
    copy_name,
    nonzero,
    set_name,
    translated,
)
from traceana.ingest.table_source import Integer, Query, TableSource, Texts
from traceana.trace.schema import ACTIVITIES, ActivityKind

_PID_SHIFT: Final = 24
_MASK: Final = (1 << 24) - 1


def process_of(column: str) -> pl.Expr:
    """Return the process id in a ``globalPid`` or ``globalTid``.

    A global id has, from its highest bits, 8 bits for hardware, 8 for the virtual machine, 24 for
    the process, 24 for the thread (Nsight Systems, "SQLite Schema Reference"). An export is from
    one machine: its process ids are unique.
    """
    return (pl.col(column) // (1 << _PID_SHIFT)).cast(pl.Int64) & _MASK


def thread_of(column: str) -> pl.Expr:
    """Return the thread id in a ``globalTid``."""
    return pl.col(column) & _MASK


def enumeration(database: TableSource, table: str, known: dict[int, str]) -> dict[int, str]:
    """Return the names of an enumeration by number: the file's own, else ``known``.

    Schema 3 has an ``ENUM_`` table for each, schema 2 has none.
    """
    own = {
        row["id"]: row["name"]
        for row in database.records(table)
        if isinstance(row.get("id"), int) and isinstance(row.get("name"), str)
    }
    return {**known, **own}


KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
SYNC: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
GRAPH: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
GRAPH_NODE: Final = "CUDA_GRAPH_NODE_EVENTS"
_DEEPEST_COPY: Final = 8
"""Copies of copies of a graph that are followed."""
KINDS: Final = {KERNEL: "kernel", MEMCPY: "memcpy", MEMSET: "memset", SYNC: "sync", GRAPH: "graph"}
EVENT: Final = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
_SYNC_EVENT: Final = {"event": Integer("eventId"), "event_sync": Integer("eventSyncId")}
"""Columns of a synchronization that identify the event."""
_KEYS: Final = ("process", "event_sync")

_COPIES: Final = {
    # CUpti_ActivityMemcpyKind, and nsys's three kinds of unified-memory migration after it:
    # number, name in ENUM_CUDA_MEMCPY_OPER, direction
    0: ("CUDA_MEMCPY_KIND_UNKNOWN", "unknown"),
    1: ("CUDA_MEMCPY_KIND_HTOD", "HtoD"),
    2: ("CUDA_MEMCPY_KIND_DTOH", "DtoH"),
    3: ("CUDA_MEMCPY_KIND_HTOA", "HtoA"),
    4: ("CUDA_MEMCPY_KIND_ATOH", "AtoH"),
    5: ("CUDA_MEMCPY_KIND_ATOA", "AtoA"),
    6: ("CUDA_MEMCPY_KIND_ATOD", "AtoD"),
    7: ("CUDA_MEMCPY_KIND_DTOA", "DtoA"),
    8: ("CUDA_MEMCPY_KIND_DTOD", "DtoD"),
    9: ("CUDA_MEMCPY_KIND_HTOH", "HtoH"),
    10: ("CUDA_MEMCPY_KIND_PTOP", "PtoP"),
    11: ("CUDA_MEMCPY_KIND_UVM_HTOD", "HtoD"),
    12: ("CUDA_MEMCPY_KIND_UVM_DTOH", "DtoH"),
    13: ("CUDA_MEMCPY_KIND_UVM_DTOD", "DtoD"),
}

_UNIFIED: Final = "_UVM_"

_MEMORIES: Final = {
    # number, name in ENUM_CUDA_MEM_KIND, memory kind; nsys's numbers differ from CUPTI's
    0: ("CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", "pageable"),
    1: ("CUDA_MEMOPR_MEMORY_KIND_PINNED", "pinned"),
    2: ("CUDA_MEMOPR_MEMORY_KIND_DEVICE", "device"),
    3: ("CUDA_MEMOPR_MEMORY_KIND_ARRAY", "array"),
    4: ("CUDA_MEMOPR_MEMORY_KIND_MANAGED", "managed"),
    5: ("CUDA_MEMOPR_MEMORY_KIND_DEVICE_STATIC", "device_static"),
    6: ("CUDA_MEMOPR_MEMORY_KIND_MANAGED_STATIC", "managed_static"),
    7: ("CUDA_MEMOPR_MEMORY_KIND_UNKNOWN", "unknown"),
}

_SYNCS: Final = {
    # CUpti_ActivitySynchronizationType: name in ENUM_CUPTI_SYNC_TYPE
    0: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_UNKNOWN",
    1: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE",
    2: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT",
    3: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE",
    4: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE",
}


def query(table: str) -> Query:
    """Return the query for one of :data:`KINDS`.

    Its result has the columns of ``activities``, with times on the file's own clock. Columns
    ``code`` and ``…_code`` hold the numbers of the name and of enumerated values.
    """

    columns = {**ACTIVITY_COLUMNS, "process": Integer("globalPid")}
    match table:
        case _ if table == KERNEL:
            name = Integer("demangledName", "shortName", "mangledName")
            columns |= {**KERNEL_COLUMNS, "code": name}
        case _ if table == MEMCPY:
            columns |= COPY_COLUMNS
        case _ if table == MEMSET:
            columns |= {
                "destination_code": Integer("memKind"),
                "bytes": Integer("bytes"),
                "graph_node": Integer("graphNodeId"),
            }
        case _ if table == SYNC:
            columns["code"] = Integer("syncType", "deprecatedSyncType")
            columns |= _SYNC_EVENT
        case _:
            columns["code"] = Integer("graphId", "graphExecId")
    return Query(table, columns, _shape)


def _shape(page: pl.DataFrame) -> pl.DataFrame:
    return activity_page(page.with_columns(process_of("process").alias("process")))


def named(
    database: TableSource, table: str, frame: pl.DataFrame, strings: Texts
) -> tuple[pl.DataFrame, pl.Series]:
    """Return columns of ``activities`` for a result of :func:`query`, and the rows' names."""
    match table:
        case _ if table == KERNEL:
            names = strings.of(frame["code"])
        case _ if table == MEMCPY:
            frame = _copies(database, frame)
            names = frame.select(copy_name()).to_series()
        case _ if table == MEMSET:
            frame = _memory(database, frame, "destination")
            names = frame.select(set_name()).to_series()
        case _ if table == SYNC:
            names = _syncs(database, frame)
        case _:
            names = frame.select(pl.format("CUDA graph {}", "code")).to_series()
    known = [pl.col(name).cast(ACTIVITIES[name]) for name in frame.columns if name in ACTIVITIES]
    return frame.select(*known, pl.lit(KINDS[table], ActivityKind).alias("kind")), names


def _copies(database: TableSource, frame: pl.DataFrame) -> pl.DataFrame:
    by_name = dict(_COPIES.values())
    kinds = enumeration(database, "ENUM_CUDA_MEMCPY_OPER", {k: v[0] for k, v in _COPIES.items()})
    direction = {code: by_name.get(name, "unknown") for code, name in kinds.items()}
    unified = pl.col("code").is_in([code for code, name in kinds.items() if _UNIFIED in name])
    for side in ("source", "destination"):
        frame = _memory(database, frame, side)
        kind = pl.col(f"{side}_memory")
        managed = pl.when(unified & kind.is_null()).then(pl.lit("managed")).otherwise(kind)
        frame = frame.with_columns(managed.alias(f"{side}_memory"))
    return frame.with_columns(translated("code", direction, "unknown").alias("copy_kind"))


def _memory(database: TableSource, frame: pl.DataFrame, side: str) -> pl.DataFrame:
    by_name = dict(_MEMORIES.values())
    codes = enumeration(database, "ENUM_CUDA_MEM_KIND", {k: v[0] for k, v in _MEMORIES.items()})
    kinds = {code: by_name.get(name, "unknown") for code, name in codes.items()}
    return frame.with_columns(translated(f"{side}_code", kinds, None).alias(f"{side}_memory"))


def _syncs(database: TableSource, frame: pl.DataFrame) -> pl.Series:
    by_name = {name: SYNCS[code] for code, name in _SYNCS.items()}
    names = enumeration(database, "ENUM_CUPTI_SYNC_TYPE", _SYNCS)
    words = {code: by_name.get(name, SYNCS[0]) for code, name in names.items()}
    return frame.select(translated("code", words, SYNCS[0])).to_series()


def event_query() -> Query:
    """Return the query for the records of events."""
    columns = {
        "process": Integer("globalPid"),
        "event_context": Integer("contextId"),
        "event_stream": Integer("streamId"),
        "event_correlation": Integer("correlationId"),
        **_SYNC_EVENT,
    }
    return Query(EVENT, columns, lambda page: page.with_columns(process_of("process")))


def node_query() -> Query:
    """Return the query for the records of CUDA graph nodes: their capture, and their copies.

    An instantiated graph's nodes are copies, which name their original; the record of that is of
    its capture, on the thread and at the time of the launch call.
    """
    columns = {
        "start": Integer("start"),
        "thread": Integer("globalTid"),
        "graph_node": Integer("graphNodeId"),
        "original": Integer("originalGraphNodeId"),
    }

    def shape(page: pl.DataFrame) -> pl.DataFrame:
        return page.select(
            process_of("thread").alias("process"),
            thread_of("thread").alias("capture_thread"),
            pl.col("start").alias("capture_time"),
            "graph_node",
            nonzero("original").alias("original"),
        )

    return Query(GRAPH_NODE, columns, shape)


def with_captures(activities: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Return ``activities`` with the thread and the time of their node's capture.

    Both are null for a node with no recorded original, or with several. A copy of a copy, of a
    graph that was cloned, is followed to its original.
    """
    key = ["process", "graph_node"]
    nodes = nodes.drop_nulls("graph_node")
    originals = nodes.filter(pl.col("original").is_null()).unique(key, keep="none").drop("original")
    above = nodes.filter(pl.col("original").is_not_null()).select(*key, "original")
    above = above.unique().unique(key, keep="none")
    wanted = activities.select(*key).unique().drop_nulls().with_columns(at="graph_node")
    for _ in range(_DEEPEST_COPY):
        climbed = wanted.join(
            above, left_on=["process", "at"], right_on=key, how="left", maintain_order="left"
        )
        if climbed["original"].is_null().all():
            break
        wanted = climbed.select(*key, pl.coalesce("original", "at").alias("at"))
    captured = wanted.join(
        originals.rename({"graph_node": "at"}), on=["process", "at"], how="left"
    ).select(*key, "capture_thread", "capture_time")
    return activities.join(captured, on=key, how="left", maintain_order="left")


def with_capture_since(activities: pl.DataFrame, first_ns: int) -> pl.DataFrame:
    """Return ``activities`` with the times of capture from ``first_ns`` on."""
    if "capture_time" not in activities.columns:
        return activities
    return activities.with_columns(pl.col("capture_time") - first_ns)


def with_events(syncs: pl.DataFrame, recorded: pl.DataFrame) -> pl.DataFrame:
    """Return ``syncs`` with ``event_stream`` and ``event_correlation``, null where unknown.

    CUPTI numbers each wait and the record that it waits for (``eventSyncId``). Before CUDA 12.8 the
    record is the last one of the event before the wait: correlation ids count the calls of a
    process. Events of another context are left out, since streams are numbered within a context.
    """
    on_stream = (pl.col("event_stream") >= 0) & (pl.col("event_stream") != NO_STREAM)
    known = recorded.filter(on_stream & (pl.col("event_correlation") > 0))
    known = known.sort("event_correlation")
    numbered = known.filter(pl.col("event_sync") > 0).unique(_KEYS, keep="last")
    found = ("event_context", "event_stream", "event_correlation")
    numbered_waits = syncs.join(
        numbered.select(*_KEYS, *found), on=list(_KEYS), how="left", maintain_order="left"
    )
    last = (
        syncs.with_row_index("row")
        .sort("correlation", nulls_last=True)
        .join_asof(
            known.select("process", "event", *found),
            left_on="correlation",
            right_on="event_correlation",
            by=["process", "event"],
            strategy="backward",
            coalesce=False,
            check_sortedness=False,
        )
        .sort("row")
    )
    counted = pl.col("event_sync").fill_null(0) > 0
    here = pl.col("event_context") == pl.col("context")
    return (
        numbered_waits.with_columns(
            pl.when(counted).then(pl.col(name)).otherwise(last[name]).alias(name) for name in found
        )
        .with_columns(pl.when(here).then(pl.col(name)).alias(name) for name in found[1:])
        .drop("event", "event_sync", "event_context")
    )
