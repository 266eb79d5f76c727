"""Reads tables of CUPTI's activity records, as nsys and nvprof export them.

:func:`read_export` has the steps, from the queries to the Trace. An :class:`ExportFormat` describes
a format: its tables and columns, its enumerations, and functions for what only that profiler
records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import polars as pl

from traceana.readers.cupti import copy_name, devices_of_work, nonzero, set_name, with_process
from traceana.readers.integrity import rebase, screen
from traceana.readers.kernel_names import NameTable
from traceana.readers.source import Progress
from traceana.readers.table_source import (
    Bytes,
    Integer,
    Query,
    TableSource,
    Texts,
    as_int,
    has_texts,
    texts_query,
)
from traceana.trace import Ledger, Tables, Trace, TraceMeta
from traceana.trace.schema import ACTIVITIES, ActivityKind, empty

CUPTI: Final = "CUPTI_ACTIVITY_KIND_"
NO_STREAM: Final = 0xFFFFFFFF
"""CUPTI_SYNCHRONIZATION_INVALID_VALUE: the synchronization is of a context, not of a stream."""

Columns = Mapping[str, Integer | Bytes]
"""The columns to read, by the name of their result."""

_TIMES: Final = {"start": Integer("start"), "end": Integer("end")}

_ACTIVITY_COLUMNS: Final = {
    **_TIMES,
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

SET_COLUMNS: Final = {"bytes": Integer("bytes"), "graph_node": Integer("graphNodeId")}

COPY_COLUMNS: Final = {
    **SET_COLUMNS,
    "code": Integer("copyKind"),
    "source_code": Integer("srcKind"),
    "destination_code": Integer("dstKind"),
}

_POINTS: Final = frozenset({"start", "timestamp", "rawTimestamp"})
"""Columns that tables of events have."""
_CALLS_OF: Final = {
    # kind of activity: pattern of the calls that start one
    "kernel": r"^(?:cudaLaunch(?:Cooperative)?Kernel|cuLaunch(?:Cooperative)?Kernel)",
    "memcpy": r"^(?:cudaMemcpy|cuMemcpy)",
    "memset": r"^(?:cudaMemset|cuMemset)",
}


def file_names(source: TableSource, table: str) -> dict[int, str]:
    """Return the names by number in the file's own table of an enumeration, if it has one."""
    return {
        row["id"]: row["name"]
        for row in source.records(table)
        if isinstance(row.get("id"), int) and isinstance(row.get("name"), str)
    }


class Enumeration(msgspec.Struct, frozen=True):
    """The words for the numbers of an enumeration; ``default`` for null and unknown numbers.

    A file can number the enumeration itself, in ``table``: ``names`` has the names there of the
    numbers in ``words``, ``other`` is the word for other names.
    """

    words: Mapping[int, str]
    default: str | None = None
    table: str | None = None
    names: Mapping[int, str] = {}
    other: str | None = None

    def translated(self, column: str, source: TableSource) -> pl.Expr:
        """Return the numbers in ``column`` as words."""
        named = file_names(source, self.table) if self.table else {}
        words = {self.names[number]: word for number, word in self.words.items() if self.names}
        own = {number: words.get(name, self.other) for number, name in named.items()}
        return pl.col(column).replace_strict(
            {**self.words, **own}, default=self.default, return_dtype=pl.String
        )


class Export(msgspec.Struct):
    """One file while it is read; ``frames`` are its tables that are not converted yet."""

    source: TableSource
    texts: Texts
    ledger: Ledger
    frames: dict[str, pl.DataFrame]


class ActivityTable(msgspec.Struct, frozen=True):
    """A table of activities of one kind, and its columns besides those that all kinds have.

    ``code`` is the number of a kernel's name, a copy's direction, a synchronization's type or a
    graph. A file without the column ``required`` has other records in that table. ``prepare``
    completes the rows, and leaves out those that are not device work.
    """

    kind: str
    columns: Columns
    required: str | None = None
    prepare: Callable[[Export, pl.DataFrame], pl.DataFrame] | None = None


class SampleTable(msgspec.Struct, frozen=True):
    """A table of samples of counters: whether a file has it, and the samples of its rows."""

    query: Query
    is_in: Callable[[TableSource], bool]
    samples: Callable[[Export, pl.DataFrame], pl.DataFrame]


class ExportFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How a profiler stores CUPTI's records. All tables and columns are optional in a file."""

    name: str
    strings: tuple[str, str, str]
    """The table of the texts, and its columns of ids and texts."""
    no_text: int | None = None
    """The id in the table of the texts that stands for no text."""
    writes_empty_tables: bool
    """Whether a file has the tables of records that did not occur."""

    process: Integer
    """The process of an activity."""
    activities: Mapping[str, ActivityTable]
    calls: Sequence[str]
    """The tables of CUDA calls."""
    call_columns: Columns
    """Their columns besides start and end."""
    nvtx: Query
    """The table of NVTX events."""
    spans: Mapping[str, tuple[str, str | None]]
    """The tables of library calls and profiler overhead: kind and domain of their ranges."""
    span_columns: Columns
    """Their columns besides start and end."""
    contexts: Sequence[str]
    """The tables of CUDA contexts."""
    references: Mapping[str, Query] = {}
    """Tables that complete activities, by the ledger's reason for their rows."""
    samples: SampleTable | None = None

    copy_kinds: Enumeration
    unified_copies: Enumeration | None = None
    """The memory kind, by the direction, of copies without memory kinds of their own."""
    memory_kinds: Enumeration
    sync_types: Enumeration
    overhead_kinds: Enumeration

    split_owner: Callable[[pl.DataFrame], pl.DataFrame]
    """Returns a page with the ids of process and thread in the columns of those names."""
    name_calls: Callable[[Export, str, pl.DataFrame], pl.DataFrame]
    """Returns the rows of a table of calls that are calls, with their name."""
    nvtx_ranges: Callable[[Export, pl.DataFrame], pl.DataFrame]
    """Returns the ranges of the NVTX events; the duration of a range without an end is null."""
    complete_activities: Callable[[Export, pl.DataFrame], pl.DataFrame] | None = None
    """Returns the activities of all tables with what other tables say of them."""
    unread_reason: Callable[[str], str | None]
    """Returns the ledger's reason for the rows of a table that is not read; None if they are not
    events."""
    count_lost: Callable[[Export], None] | None = None
    """Counts the events that the profiler says are not in the file."""
    describe_devices: Callable[[Export], Iterable[dict[str, Any]]]
    """Returns rows of ``devices``."""
    describe_recording: Callable[[Export, int, Sequence[int]], dict[str, Any]]
    """Returns format_version, producer, epoch_ns and properties of the ``TraceMeta``, by the first
    event's time on the file's clock and the processes with events."""


def read_export(source: TableSource, form: ExportFormat, progress: Progress) -> Trace:
    """Return the Trace of an export in the format ``form``. Raises ``CorruptError``.

    Missing columns are null, and the ledger counts missing tables that the calls require.
    """
    queries = _queries(source, form)
    frames = dict(zip(queries, source.read([*queries.values()], progress), strict=True))
    strings = frames.pop(form.strings[0], None)
    if strings is not None and form.no_text is not None:
        strings = strings.filter(pl.col("id") != form.no_text)
    events = sum(frame.height for frame in frames.values())
    ledger = Ledger()
    export = Export(source, Texts(strings), ledger, frames)

    parts = [form.name_calls(export, t, frames.pop(t)) for t in form.calls if t in frames]
    calls = screen(pl.concat(parts), "calls", ledger) if parts else empty("calls")
    names = NameTable(ledger)
    activities = with_process(_activities(form, export, names), calls)
    tables = {"calls": calls, "activities": activities}
    tables["ranges"] = _ranges(form, export, tables)
    if form.samples is not None and form.samples.query.table in frames:
        rows = frames.pop(form.samples.query.table)
        tables["samples"] = form.samples.samples(export, rows)

    for table, columns in sorted(source.tables.items()):
        if table in queries or not (table.startswith(CUPTI) or _POINTS.intersection(columns)):
            continue
        if (reason := form.unread_reason(table)) is not None:
            count = source.count(table)
            ledger.add(reason, count, table="-", detail=table)
            events += count
    for table in _missing_tables(form, source, calls, activities):
        ledger.add("missing_table", 1, table="-", kept=True, detail=table)
    if form.count_lost is not None:
        form.count_lost(export)
    source.count_damage(ledger)

    tables, first_ns = rebase(tables, ledger)
    processes = pl.concat(
        table["process"].unique() for name, table in tables.items() if name != "samples"
    )
    activities = tables["activities"]
    if "capture_time" in activities.columns:
        tables["activities"] = activities.with_columns(pl.col("capture_time") - first_ns)
    tables["names"] = names.frame()
    tables["devices"] = devices_of_work(form.describe_devices(export), activities["device"])
    tables["ledger"] = ledger.frame()
    meta = TraceMeta(
        source=str(source.path),
        format=form.name,
        bytes_read=source.size_bytes,
        bytes_total=source.size_bytes,
        events=events,
        **form.describe_recording(export, first_ns, sorted(processes.drop_nulls().unique())),
    )
    return Trace(meta, Tables(tables))


def _queries(source: TableSource, form: ExportFormat) -> dict[str, Query]:
    """Return the queries for the tables that the file has."""
    page = partial(_page, form)
    common = {**_ACTIVITY_COLUMNS, "process": form.process}
    activities = [
        Query(table, {**common, **described.columns}, page)
        for table, described in form.activities.items()
        if described.required is None or described.required in source.tables.get(table, ())
    ]
    calls = [Query(table, {**_TIMES, **form.call_columns}, page) for table in form.calls]
    spans = [Query(table, {**_TIMES, **form.span_columns}, page) for table in form.spans]
    queries = [*activities, *form.references.values(), *calls, form.nvtx, *spans]
    if form.samples is not None and form.samples.is_in(source):
        queries.append(form.samples.query)
    found = {query.table: query for query in queries if query.table in source.tables}
    if has_texts(source, *form.strings):
        found[form.strings[0]] = texts_query(*form.strings)
    return found


def _page(form: ExportFormat, page: pl.DataFrame) -> pl.DataFrame:
    """Return a page of activities, calls or spans with canonical values, but numbers for names.

    These are in ``name``, ``type``, ``code``, ``source_code`` and ``destination_code``.
    """
    frame = form.split_owner(page).with_columns((pl.col("end") - pl.col("start")).alias("duration"))
    if "stream" in frame.columns:
        stream, device = pl.col("stream"), pl.col("device")
        frame = frame.with_columns(
            pl.when((stream != NO_STREAM) & (stream >= 0)).then(stream).alias("stream"),
            pl.when(device >= 0).then(device).alias("device"),
        )
    if "static_memory" in frame.columns:
        static, dynamic = pl.col("static_memory"), pl.col("dynamic_memory")
        frame = frame.with_columns(shared_memory=pl.coalesce(static + dynamic, static, dynamic))
        frame = frame.drop("static_memory", "dynamic_memory")
    # A value that does not fit its column is invalid: null.
    narrow = [
        name
        for name in frame.columns
        if ACTIVITIES.get(name) == pl.Int32 or name in ("source_code", "destination_code")
    ]
    return frame.with_columns(
        pl.col(narrow).cast(pl.Int32, strict=False),
        *(nonzero(name) for name in ("correlation", "graph_node") if name in frame.columns),
    ).drop("end")


def _activities(form: ExportFormat, export: Export, names: NameTable) -> pl.DataFrame:
    """Return the activities of all tables; ``names`` numbers their names."""
    source, ledger, frames = export.source, export.ledger, export.frames
    for reason, query in form.references.items():
        if query.table in frames:
            ledger.add(reason, frames[query.table].height, table="-", detail=query.table)

    def memory(side: str) -> pl.Expr:
        return form.memory_kinds.translated(f"{side}_code", source).alias(f"{side}_memory")

    parts: list[pl.DataFrame] = []
    for table, described in form.activities.items():
        if table not in frames:
            continue
        frame = frames.pop(table)
        if described.prepare is not None:
            frame = described.prepare(export, frame)
        frame = screen(frame, "activities", ledger)
        match described.kind:
            case "kernel":
                labels = export.texts.of(frame["code"])
            case "memcpy":
                direction = form.copy_kinds.translated("code", source)
                frame = frame.with_columns(
                    direction.alias("copy_kind"), memory("source"), memory("destination")
                )
                if form.unified_copies is not None:
                    unified = form.unified_copies.translated("code", source)
                    frame = frame.with_columns(
                        pl.col("source_memory", "destination_memory").fill_null(unified)
                    )
                labels = frame.select(copy_name()).to_series()
            case "memset":
                frame = frame.with_columns(memory("destination"))
                labels = frame.select(set_name()).to_series()
            case "sync":
                frame = _on_devices_of_contexts(form, source, frame, parts)
                labels = frame.select(form.sync_types.translated("code", source)).to_series()
            case _:
                labels = frame.select(pl.format("CUDA graph {}", "code")).to_series()
        ledger.add("unnamed", labels.null_count(), table="activities", kept=True, detail=table)
        known = [
            pl.col(name).cast(ACTIVITIES[name]) for name in frame.columns if name in ACTIVITIES
        ]
        kind = pl.lit(described.kind, ActivityKind).alias("kind")
        parts.append(frame.select(*known, kind, names.ids(labels).alias("name_id")))
    if not parts:
        return empty("activities")
    found = pl.concat(parts, how="diagonal")
    return found if form.complete_activities is None else form.complete_activities(export, found)


def _on_devices_of_contexts(
    form: ExportFormat, source: TableSource, syncs: pl.DataFrame, others: Sequence[pl.DataFrame]
) -> pl.DataFrame:
    """Return synchronizations with the device of their context, where it is known.

    CUPTI's synchronization records have no device; nsys writes 0 for every context. Where the other
    activities of a context have one device, that is its device; else the file's list of contexts
    determines it.
    """
    key = ["process", "context"]
    columns = pl.Schema({name: ACTIVITIES[name] for name in (*key, "device")})
    met = [frame.select(*columns).drop_nulls().unique() for frame in others]
    seen = pl.concat([pl.DataFrame(schema=columns), *met]).unique().unique(key, keep="none")
    listed = [
        [as_int(row.get(name)) for name in ("processId", "contextId", "deviceId")]
        for table in form.contexts
        for row in source.records(table)
    ]
    in_file = pl.DataFrame(listed, schema=dict.fromkeys(columns, pl.Int64), orient="row")
    in_file = in_file.cast(columns, strict=False)
    # nvprof stores no process with contexts and synchronizations.
    known = pl.concat([seen, in_file]).drop_nulls(["context", "device"])
    known = known.unique(key, keep="first", maintain_order=True)
    found = syncs.join(known, on=key, how="left", nulls_equal=True, maintain_order="left")
    return found.with_columns(device=pl.coalesce("device_right", "device")).drop("device_right")


def _ranges(form: ExportFormat, export: Export, others: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the ranges; one without an end ends with the last event of these and of ``others``."""
    ledger, frames = export.ledger, export.frames
    parts = []
    if form.nvtx.table in frames:
        parts.append(form.nvtx_ranges(export, frames.pop(form.nvtx.table)))
    for table, (kind, domain) in form.spans.items():
        if table not in frames:
            continue
        frame = frames.pop(table)
        overhead = form.overhead_kinds.translated("type", export.source)
        text = pl.coalesce(export.texts.of(frame["name"]), overhead.cast(pl.Categorical))
        ranges = frame.select(
            text.alias("text"),
            pl.lit(kind).alias("kind"),
            pl.lit(domain, pl.Categorical).alias("domain"),
            "process",
            "thread",
            "start",
            "duration",
        )
        ledger.add("unnamed", ranges["text"].null_count(), table="ranges", kept=True, detail=table)
        parts.append(ranges)
    if not parts:
        return empty("ranges")
    found = pl.concat(parts, how="diagonal")
    is_open = pl.col("duration").is_null() & pl.col("start").is_not_null()
    ledger.add(
        "missing_time",
        found.select(is_open.sum()).item(),
        table="ranges",
        kept=True,
        detail="never closed: end set to the last event",
    )
    ends = [
        frame.select((pl.col("start") + pl.col("duration")).max()).item()
        for frame in [found, *others.values()]
    ]
    last_ns = max((end for end in ends if end is not None), default=0)
    until_then = pl.max_horizontal(pl.lit(last_ns) - pl.col("start"), pl.lit(0, pl.Int64))
    closed = pl.when(is_open).then(until_then).otherwise("duration").alias("duration")
    return screen(found.with_columns(closed), "ranges", ledger)


def _missing_tables(
    form: ExportFormat, source: TableSource, calls: pl.DataFrame, activities: pl.DataFrame
) -> list[str]:
    """Return the tables that should have rows: the texts, activities that calls started, calls.

    The launch of a CUDA graph may be recorded in place of its kernels. ``nvprof
    --profile-api-trace`` alone records calls without activities.
    """
    missing = [] if has_texts(source, *form.strings) else [form.strings[0]]
    if form.writes_empty_tables:
        recorded = set(activities["kind"].unique())
    else:
        recorded = {a.kind for table, a in form.activities.items() if table in source.tables}
    called = calls["name"].cast(pl.Categorical).unique().drop_nulls().cast(pl.String)
    for kind, pattern in _CALLS_OF.items():
        as_graph = kind == "kernel" and "graph" in recorded
        if kind not in recorded and not as_graph and called.str.contains(pattern).any():
            missing.append(CUPTI + kind.upper())
    has_calls = form.writes_empty_tables or any(table in source.tables for table in form.calls)
    if activities.height and not has_calls:
        missing.append(form.calls[0])
    return missing
