"""The format of Nsight Systems' exports, schema 2 and later.

Beyond CUPTI's tables it has global ids of processes and threads, the names of enumerations, CUDA
event records, CUDA graph nodes, NVTX domains and registered strings; :mod:`.session` has the rest.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.readers.cupti import COPY_KINDS, OVERHEADS, SYNCS, nonzero, without_symbol_version
from traceana.readers.cupti_tables import (
    COPY_COLUMNS,
    CUPTI,
    KERNEL_COLUMNS,
    NO_STREAM,
    SET_COLUMNS,
    ActivityTable,
    Enumeration,
    Export,
    ExportFormat,
    SampleTable,
    file_names,
    read_export,
)
from traceana.readers.nsys.samples import SAMPLES, has_samples, samples
from traceana.readers.nsys.session import (
    DIAGNOSTICS,
    count_lost,
    describe_devices,
    describe_recording,
    on_physical_devices,
)
from traceana.readers.source import Progress
from traceana.readers.table_source import Bytes, Integer, Query, TableSource, decoded
from traceana.trace import Trace

_ID_BITS: Final = 24
_MASK: Final = (1 << _ID_BITS) - 1
_DEEPEST_COPY: Final = 8
"""Copies of copies of a graph that are followed."""
_NO_EVENTS: Final = ("ENUM_", "TARGET_INFO_", "META_DATA_", "ANALYSIS_")
_BACKTRACE: Final = "TRACE_PROCESS_EVENT_CUDABACKTRACE"
_NVTX: Final = "NVTX_EVENTS"
_DOMAIN: Final = "NvtxDomainCreate"

_NVTX_TYPES: Final = {
    # number and name in ENUM_NSYS_EVENT_TYPE, which exports of schema 2 lack; kind of the range
    34: ("NvtxMark", "mark"),
    59: ("NvtxPushPopRange", "nvtx"),
    60: ("NvtxStartEndRange", "nvtx_start"),
    65: ("NvtxtMark", "mark"),
    70: ("NvtxtPushPopRange", "nvtx"),
    71: ("NvtxtStartEndRange", "nvtx_start"),
    33: ("NvtxCategory", None),
    39: ("NvtxThread", None),
    64: ("NvtxtCategory", None),
    72: ("NvtxtMetaThread", None),
    73: ("NvtxtMetaProcess", None),
    74: ("NvtxtMetaFileDisplay", None),
    75: (_DOMAIN, None),
    76: ("NvtxDomainDestroy", None),
    97: ("NvtxNameCudaDevice", None),
    98: ("NvtxNameCudaContext", None),
    99: ("NvtxNameCudaStream", None),
}

_MIGRATIONS: Final = {
    # nsys's kinds of unified-memory migration, after CUPTI's kinds of copies
    11: "HtoD",
    12: "DtoH",
    13: "DtoD",
}

_COPY_NAMES: Final = {
    **{number: f"CUDA_MEMCPY_KIND_{word.upper()}" for number, word in COPY_KINDS.items()},
    **{number: f"CUDA_MEMCPY_KIND_UVM_{word.upper()}" for number, word in _MIGRATIONS.items()},
}

_MEMORY_KINDS: Final = {
    # nsys's numbers differ from CUPTI's
    0: "pageable",
    1: "pinned",
    2: "device",
    3: "array",
    4: "managed",
    5: "device_static",
    6: "managed_static",
    7: "unknown",
}

_SYNC_NAMES: Final = {
    0: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_UNKNOWN",
    1: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE",
    2: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT",
    3: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE",
    4: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE",
}

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


def read_tables(source: TableSource, progress: Progress) -> Trace:
    """Return the Trace of the tables of an nsys export. Raises ``CorruptError``."""
    return read_export(source, NSYS, progress)


def _process_of(column: str) -> pl.Expr:
    """Return the process id in a ``globalPid`` or ``globalTid``.

    A global id has, from its highest bits, 8 bits for hardware, 8 for the virtual machine, 24 for
    the process, 24 for the thread (Nsight Systems, "SQLite Schema Reference"). An export is from
    one machine: its process ids are unique.
    """
    return (pl.col(column) // (1 << _ID_BITS)).cast(pl.Int64) & _MASK


def _split_owner(page: pl.DataFrame) -> pl.DataFrame:
    """Return a page with process and thread in place of their global ids."""
    if "thread" not in page.columns:
        return page.with_columns(_process_of("process"))
    return page.with_columns(_process_of("thread").alias("process"), pl.col("thread") & _MASK)


def _name_calls(export: Export, table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return calls with their name, without its symbol version.

    With ``--cudabacktrace`` nsys writes a second row around a call, with the same correlation id;
    the ledger counts those rows.
    """
    classes = {67: _BACKTRACE, **file_names(export.source, "ENUM_NSYS_EVENT_CLASS")}
    is_backtrace = pl.col("type").is_in(
        [number for number, name in classes.items() if name == _BACKTRACE]
    )
    calls = frame.filter(is_backtrace.not_().fill_null(value=True)).drop("type")
    repeated, detail = frame.height - calls.height, f"{table}: CUDA backtrace rows"
    export.ledger.add("unknown_category", repeated, table="calls", detail=detail)
    names = export.texts.of(calls["name"])
    export.ledger.add("unnamed", names.null_count(), table="calls", kept=True, detail=table)
    distinct = names.drop_nulls().unique()
    plain = without_symbol_version(distinct.cast(pl.String)).cast(pl.Categorical)
    return calls.with_columns(
        names.replace_strict(distinct, plain, return_dtype=pl.Categorical).alias("name")
    )


def _nvtx_page(page: pl.DataFrame) -> pl.DataFrame:
    """Return a page of NVTX events; a range that ended on another thread has no thread."""
    other_end = (pl.col("end_thread") != pl.col("thread")) & (pl.col("end_thread") != 0)
    # Exports before schema 2 have no nulls: a range that was never closed ends at 0.
    ended = pl.when(pl.col("end") != 0).then("end")
    return page.select(
        decoded(page["text"]).cast(pl.Categorical).alias("text"),
        "text_id",
        pl.col("type").cast(pl.Int32, strict=False),
        "domain_id",
        _process_of("thread").alias("process"),
        pl.when(other_end.not_().fill_null(value=True)).then(pl.col("thread") & _MASK),
        "start",
        (ended - pl.col("start")).alias("duration"),
    )


def _nvtx_ranges(export: Export, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges and marks of NVTX events with their domain.

    The domain is null for the default, a number where it has no name. A missing text is empty, an
    unknown string id null. The ledger counts the names of domains, threads and categories.
    """
    kind_of = dict(_NVTX_TYPES.values())
    types = {number: name for number, (name, _) in _NVTX_TYPES.items()}
    types |= file_names(export.source, "ENUM_NSYS_EVENT_TYPE")
    kinds = {number: kind for number, name in types.items() if (kind := kind_of.get(name))}
    # Inline text comes before a registered string, whose id 0 means no text and need not exist.
    refers = (pl.col("text") == "") & pl.col("text_id").is_not_null()
    without_id = pl.when(pl.col("text_id") == 0).then("text")
    registered = pl.coalesce(export.texts.of(frame["text_id"]), without_id)
    # Minimal exports have no type: an event with an end is a range.
    untyped = pl.when(pl.col("duration").is_null()).then(pl.lit("mark")).otherwise(pl.lit("nvtx"))
    events = frame.with_columns(
        pl.when(refers).then(registered).otherwise("text").alias("text"),
        pl.when(pl.col("type").is_null())
        .then(untyped)
        .otherwise(pl.col("type").replace_strict(kinds, default=None, return_dtype=pl.String))
        .alias("kind"),
    )
    not_ranges = events.filter(pl.col("kind").is_null()).group_by("type").len().sort("type")
    for number, count in not_ranges.iter_rows():
        name = types.get(number, f"type {number}")
        reason = "metadata" if name in kind_of else "unknown_category"
        export.ledger.add(reason, count, table="ranges", detail=f"{_NVTX}: {name}")
    ranges = events.filter(pl.col("kind").is_not_null())
    unnamed = ranges["text"].null_count()
    export.ledger.add("unnamed", unnamed, table="ranges", kept=True, detail=_NVTX)

    keys = ["process", "domain_id"]
    creations = [number for number, name in types.items() if name == _DOMAIN]
    domains = (
        events.filter(pl.col("type").is_in(creations))
        .select(*keys, pl.col("text").alias("domain"))
        .unique(keys, keep="last")
    )
    numbered = pl.when(pl.col("domain_id") != 0).then(pl.format("domain {}", "domain_id"))
    return ranges.join(domains, on=keys, how="left", maintain_order="left").select(
        "text",
        "kind",
        pl.coalesce("domain", numbered.cast(pl.Categorical)).alias("domain"),
        "process",
        "thread",
        "start",
        duration=pl.when(pl.col("kind") == "mark").then(pl.lit(0, pl.Int64)).otherwise("duration"),
    )


def _with_events(export: Export, syncs: pl.DataFrame) -> pl.DataFrame:
    """Return ``syncs`` with ``event_stream`` and ``event_correlation``, null where unknown.

    CUPTI numbers each wait and the record that it waits for (``eventSyncId``). Before CUDA 12.8 the
    record is the last one of the event before the wait: correlation ids count the calls of a
    process. Events of another context are left out, since streams are numbered within a context.
    """
    recorded = export.frames.pop(_EVENTS.table, _EVENTS.nothing())
    keys = ["process", "event_sync"]
    columns = ("event_context", "event_stream", "event_correlation")
    has_stream = (pl.col("event_stream") >= 0) & (pl.col("event_stream") != NO_STREAM)
    records = recorded.filter(has_stream & (pl.col("event_correlation") > 0))
    records = records.sort("event_correlation")
    numbered = records.filter(pl.col("event_sync") > 0).unique(keys, keep="last")
    numbered_waits = syncs.join(
        numbered.select(*keys, *columns), on=keys, how="left", maintain_order="left"
    )
    last = (
        syncs.with_row_index("row")
        .sort("correlation", nulls_last=True)
        .join_asof(
            records.select("process", "event", *columns),
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
    event = {name: pl.when(counted).then(pl.col(name)).otherwise(last[name]) for name in columns}
    same_context = event["event_context"] == pl.col("context")
    return numbered_waits.with_columns(
        pl.when(same_context).then(event[name]).alias(name)
        for name in ("event_stream", "event_correlation")
    )


def _complete_activities(export: Export, activities: pl.DataFrame) -> pl.DataFrame:
    """Return ``activities`` with one device number per GPU, and the captures of graph nodes.

    An instantiated graph's nodes are copies, which name their original. The record of the original
    has thread and time of its capture: those of the call that was captured. Both are null for a
    node with no recorded original, or with several.
    """
    nodes = export.frames.pop(_GRAPH_NODES.table, _GRAPH_NODES.nothing()).drop_nulls("graph_node")
    if nodes.height:
        key = ["process", "graph_node"]
        nodes = nodes.rename({"thread": "capture_thread"}).with_columns(nonzero("original"))
        is_copy = pl.col("original").is_not_null()
        originals = nodes.filter(~is_copy).unique(key, keep="none").drop("original")
        original_of = (
            nodes.filter(is_copy).select(*key, "original").unique().unique(key, keep="none")
        )
        wanted = activities.select(*key).unique().drop_nulls().with_columns(at="graph_node")
        # A graph that was cloned has copies of copies.
        for _ in range(_DEEPEST_COPY):
            climbed = wanted.join(
                original_of,
                left_on=["process", "at"],
                right_on=key,
                how="left",
                maintain_order="left",
            )
            if climbed["original"].is_null().all():
                break
            wanted = climbed.select(*key, pl.coalesce("original", "at").alias("at"))
        captured = wanted.join(
            originals.rename({"graph_node": "at"}), on=["process", "at"], how="left"
        ).select(*key, "capture_thread", "capture_time")
        activities = activities.join(captured, on=key, how="left", maintain_order="left")
    return on_physical_devices(export.source, activities)


def _unread_reason(table: str) -> str | None:
    """Return the ledger's reason for the rows of a table that is not read, None for no events."""
    if table.startswith(_NO_EVENTS):
        return None
    if table == DIAGNOSTICS:
        return "instant"
    is_counter = table.endswith("_METRICS") or "_COUNTER" in table
    return "counter" if is_counter else "unknown_category"


_EVENT_IDS: Final = {"event": Integer("eventId"), "event_sync": Integer("eventSyncId")}

_EVENTS: Final = Query(
    f"{CUPTI}CUDA_EVENT",
    {
        "process": Integer("globalPid"),
        "event_context": Integer("contextId"),
        "event_stream": Integer("streamId"),
        "event_correlation": Integer("correlationId"),
        **_EVENT_IDS,
    },
    _split_owner,
)

_GRAPH_NODES: Final = Query(
    "CUDA_GRAPH_NODE_EVENTS",
    {
        "capture_time": Integer("start"),
        "thread": Integer("globalTid"),
        "graph_node": Integer("graphNodeId"),
        "original": Integer("originalGraphNodeId"),
    },
    _split_owner,
)

NSYS: Final = ExportFormat(
    name="nsys",
    strings=("StringIds", "id", "value"),
    writes_empty_tables=False,
    process=Integer("globalPid"),
    activities={
        f"{CUPTI}KERNEL": ActivityTable(
            "kernel",
            {**KERNEL_COLUMNS, "code": Integer("demangledName", "shortName", "mangledName")},
        ),
        f"{CUPTI}MEMCPY": ActivityTable("memcpy", COPY_COLUMNS),
        f"{CUPTI}MEMSET": ActivityTable(
            "memset", {**SET_COLUMNS, "destination_code": Integer("memKind")}
        ),
        f"{CUPTI}SYNCHRONIZATION": ActivityTable(
            "sync",
            {"code": Integer("syncType", "deprecatedSyncType"), **_EVENT_IDS},
            prepare=_with_events,
        ),
        f"{CUPTI}GRAPH_TRACE": ActivityTable("graph", {"code": Integer("graphId", "graphExecId")}),
    },
    # New exports hold driver calls in the table of runtime calls; early ones in a separate table.
    calls=(f"{CUPTI}RUNTIME", f"{CUPTI}DRIVER"),
    call_columns={
        "name": Integer("nameId"),
        "type": Integer("eventClass"),
        "thread": Integer("globalTid"),
        "correlation": Integer("correlationId"),
    },
    nvtx=Query(
        _NVTX,
        {
            "text": Bytes("text"),
            "text_id": Integer("textId"),
            "type": Integer("eventType"),
            "domain_id": Integer("domainId"),
            "start": Integer("start"),
            "end": Integer("end"),
            "thread": Integer("globalTid"),
            "end_thread": Integer("endGlobalTid"),
        },
        _nvtx_page,
    ),
    spans={
        # cuDNN's and cuBLAS's calls nest on their thread as NVTX ranges do; newer libraries write
        # them as NVTX ranges with a domain of their own.
        "CUDNN_EVENTS": ("nvtx", "cuDNN"),
        "CUBLAS_EVENTS": ("nvtx", "cuBLAS"),
        "OSRT_API": ("osrt", None),
        "PROFILER_OVERHEAD": ("overhead", None),
        f"{CUPTI}OVERHEAD": ("overhead", None),
    },
    span_columns={
        "name": Integer("nameId"),
        "type": Integer("overheadType"),
        "thread": Integer("globalTid"),
    },
    contexts=("TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_NULL_STREAM"),
    references={"event_record": _EVENTS, "graph_node": _GRAPH_NODES},
    samples=SampleTable(SAMPLES, has_samples, samples),
    copy_kinds=Enumeration(
        {**COPY_KINDS, **_MIGRATIONS}, "unknown", "ENUM_CUDA_MEMCPY_OPER", _COPY_NAMES, "unknown"
    ),
    unified_copies=Enumeration(
        dict.fromkeys(_MIGRATIONS, "managed"), None, "ENUM_CUDA_MEMCPY_OPER", _COPY_NAMES
    ),
    memory_kinds=Enumeration(
        _MEMORY_KINDS,
        table="ENUM_CUDA_MEM_KIND",
        names={n: f"CUDA_MEMOPR_MEMORY_KIND_{kind.upper()}" for n, kind in _MEMORY_KINDS.items()},
        other="unknown",
    ),
    sync_types=Enumeration(SYNCS, SYNCS[0], "ENUM_CUPTI_SYNC_TYPE", _SYNC_NAMES, SYNCS[0]),
    overhead_kinds=Enumeration(
        {number: OVERHEADS[cupti] for number, (_, cupti) in _OVERHEADS.items()},
        table="ENUM_CUPTI_OVERHEAD_TYPE",
        names={number: name for number, (name, _) in _OVERHEADS.items()},
    ),
    split_owner=_split_owner,
    name_calls=_name_calls,
    nvtx_ranges=_nvtx_ranges,
    complete_activities=_complete_activities,
    unread_reason=_unread_reason,
    count_lost=count_lost,
    describe_devices=describe_devices,
    describe_recording=describe_recording,
)
