"""Reads exports of Nsight Systems, schema 2 and later: the session, the GPUs, the tables."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
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
from traceana.ingest.nsys import EXPORT_TABLES, activities, host
from traceana.ingest.nsys.activities import GRAPH, KERNEL, MEMCPY, MEMSET
from traceana.ingest.nsys.host import CALL_TABLES
from traceana.ingest.source import Progress
from traceana.ingest.table_source import Query, TableSource, Texts, as_int, has_texts, texts_query
from traceana.trace import Ledger, Tables, Trace, TraceMeta
from traceana.trace.schema import ACTIVITIES, empty


def read_tables(database: TableSource, progress: Progress) -> Trace:
    """Return the Trace of the tables of an nsys export.

    All tables and columns are optional: missing columns are null, and the ledger counts missing
    tables that the calls require. Raises ``CorruptError``.
    """
    ledger = Ledger()
    frames = _frames(database, progress)
    events = sum(frame.height for table, frame in frames.items() if table != STRINGS)
    texts = Texts(frames.pop(STRINGS, None))
    tables: dict[str, pl.DataFrame] = {}
    tables["calls"] = _calls(database, frames, texts, ledger)
    tables["activities"], names = _activities(database, frames, texts, ledger)
    tables["ranges"] = _ranges(database, frames, texts, tables, ledger)
    tables["activities"] = with_process(tables["activities"], tables["calls"])
    events += count_unread(database, _tables_read(database), ledger)
    count_missing(database, tables["calls"], tables["activities"], ledger)
    count_lost(database, ledger)
    database.count_damage(ledger)
    tables, first_ns = rebase(tables, ledger)
    tables["activities"] = activities.with_capture_since(tables["activities"], first_ns)
    tables["names"] = names.frame()
    tables["devices"] = devices(database, tables["activities"]["device"])
    tables["ledger"] = ledger.frame()
    facts = export_facts(database)
    processes = {
        p for t in ("activities", "calls", "ranges") for p in tables[t]["process"].unique()
    }
    meta = TraceMeta(
        source=str(database.path),
        format="nsys",
        format_version=facts.get("EXPORT_SCHEMA_VERSION"),
        producer=producer(facts),
        epoch_ns=epoch_ns(database, facts, first_ns),
        bytes_read=database.size_bytes,
        bytes_total=database.size_bytes,
        events=events,
        properties=properties(database, processes - {None}),
    )
    return Trace(meta, Tables(tables))


def _tables_read(database: TableSource) -> list[str]:
    candidates = [
        *activities.KINDS,
        activities.EVENT,
        activities.GRAPH_NODE,
        *host.CALL_TABLES,
        host.NVTX,
        *host.API_TABLES,
    ]
    tables = [table for table in candidates if table in database.tables]
    return [*tables, STRINGS] if has_strings(database) else tables


def _frames(database: TableSource, progress: Progress) -> dict[str, pl.DataFrame]:
    """Return the tables that are read, by their name in the file."""
    tables = _tables_read(database)
    queries = [_query(table) for table in tables]
    return dict(zip(tables, database.read(queries, progress), strict=True))


def _query(table: str) -> Query:
    if table in activities.KINDS:
        return activities.query(table)
    if table == activities.EVENT:
        return activities.event_query()
    if table == activities.GRAPH_NODE:
        return activities.node_query()
    if table in host.CALL_TABLES:
        return host.call_query(table)
    if table == host.NVTX:
        return host.nvtx_query()
    if table in host.API_TABLES:
        return host.api_query(table)
    return texts_query(STRINGS, *STRING_COLUMNS)


def _calls(
    database: TableSource, frames: dict[str, pl.DataFrame], texts: Texts, ledger: Ledger
) -> pl.DataFrame:
    parts = [
        host.calls(database, table, frames.pop(table), texts, ledger)
        for table in host.CALL_TABLES
        if table in frames
    ]
    return screen(pl.concat(parts), "calls", ledger) if parts else empty("calls")


def _activities(
    database: TableSource, frames: dict[str, pl.DataFrame], texts: Texts, ledger: Ledger
) -> tuple[pl.DataFrame, NameTable]:
    names = NameTable(ledger)
    parts: list[pl.DataFrame] = []
    recorded = frames.pop(activities.EVENT, activities.event_query().nothing())
    ledger.add("event_record", recorded.height, table="-", detail=activities.EVENT)
    nodes = frames.pop(activities.GRAPH_NODE, activities.node_query().nothing())
    ledger.add("graph_node", nodes.height, table="-", detail=activities.GRAPH_NODE)
    for table in activities.KINDS:
        if table not in frames:
            continue
        frame = screen(frames.pop(table), "activities", ledger)
        if table == activities.SYNC:
            frame = activities.with_events(frame, recorded)
            frame = with_devices(frame, devices_of_contexts(database, parts))
        shaped, texts_of = activities.named(database, table, frame, texts)
        ledger.add("unnamed", texts_of.null_count(), table="activities", kept=True, detail=table)
        parts.append(shaped.with_columns(names.ids(texts_of).alias("name_id")))
    if not parts:
        return empty("activities"), names
    found = pl.concat(parts, how="diagonal")
    if nodes.height:
        found = activities.with_captures(found, nodes)
    return on_physical_devices(database, found), names


def _ranges(
    database: TableSource,
    frames: dict[str, pl.DataFrame],
    texts: Texts,
    others: dict[str, pl.DataFrame],
    ledger: Ledger,
) -> pl.DataFrame:
    parts = []
    if host.NVTX in frames:
        parts.append(host.nvtx(database, frames.pop(host.NVTX), texts, ledger))
    parts += [
        host.api(database, table, frames.pop(table), texts, ledger)
        for table in host.API_TABLES
        if table in frames
    ]
    if not parts:
        return empty("ranges")
    found = end_open_ranges(pl.concat(parts), others.values(), ledger)
    return screen(found, "ranges", ledger)


STRINGS: Final = "StringIds"
STRING_COLUMNS: Final = ("id", "value")
DIAGNOSTICS: Final = "DIAGNOSTIC_EVENT"

_ENVIRONMENT: Final = {
    "NvDriverVersion": "driver_version",
    "CudaDriverVersion": "cuda_driver_version",
    "Hostname": "host",
    "OsDescription": "operating_system",
    "CpuDescription": "cpu",
    "CpuCores": "cpu_cores",
}

_OPTIONS: Final = {
    "CUDA_GRAPH_TRACE_OPTIONS:MODE": "cuda_graph_trace",
    "CUDA_SKIP_SOME_API_CALLS": "skips_some_api_calls",
    "PROCESS_0:COLLECT_CUDA_TRACE": "cuda_traced",
}

_COMMAND: Final = re.compile(r"PROCESS_0:(?:COMMAND|ARGUMENT_\d+)")
_LOSS: Final = re.compile(r"\b(?:lost|dropped|might be missing|not all\b.*\bcollected)\b", re.I)

_LOST_COUNT: Final = re.compile(
    r"dropped:?\s+(\d{1,15})\b|\blost\s+(\d{1,15})\b|\(\s*(\d{1,15})\s*\)\s+were lost", re.I
)

_WARNING: Final = 2
_LONGEST_MESSAGE: Final = 300
_MOST_MESSAGES: Final = 50
_NO_EVENTS: Final = ("ENUM_", "TARGET_INFO_", "META_DATA_", "ANALYSIS_")
_TIMES: Final = frozenset({"start", "timestamp", "rawTimestamp"})
_CUPTI: Final = "CUPTI_ACTIVITY_KIND_"
_EXPECTED: Final = {KERNEL: "kernel", MEMCPY: "memcpy", MEMSET: "memset"}


def has_strings(database: TableSource) -> bool:
    """Return whether the export has its table of strings, with both columns."""
    return has_texts(database, STRINGS, *STRING_COLUMNS)


def export_facts(database: TableSource) -> dict[str, str]:
    """Return nsys's description of the export, by key (``EXPORT_SCHEMA_VERSION`` …)."""
    return {
        str(row.get("name")): str(row.get("value"))
        for table in EXPORT_TABLES
        for row in database.records(table)
    }


def producer(facts: dict[str, str]) -> str:
    """Return the exporting program, with its version where recorded."""
    name = facts.get("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems")
    return f"{name} {facts.get('EXPORT_PRODUCT_VERSION', '')}".strip()


def epoch_ns(database: TableSource, facts: dict[str, str], first_ns: int) -> int | None:
    """Return the Unix time of ``first_ns``, a time on the file's clock; None where not recorded.

    That clock starts with the session, or is Unix time where the export was normalized
    (``nsys export --ts-normalize``). ``--ts-shift`` is subtracted.
    """
    shift = as_int(facts.get("EXPORT_PARAM_TIME_SHIFT", 0)) or 0
    starts = [row.get("utcEpochNs") for row in database.records("TARGET_INFO_SESSION_START_TIME")]
    start = as_int(starts[0]) if starts else None
    if facts.get("EXPORT_PARAM_TIME_NORMALIZE") == "true":
        start = 0
    # Beyond int64, the recorded times are damaged.
    return None if start is None else as_int(start + first_ns - shift)


def properties(database: TableSource, processes: set[int]) -> dict[str, Any]:
    """Return further facts: versions, machine, command, processes with events, warnings.

    Environment variables are not read, because they can hold secrets.
    """
    found: dict[str, Any] = {}
    for row in database.records("TARGET_INFO_SYSTEM_ENV"):
        key, value = _ENVIRONMENT.get(str(row.get("name"))), row.get("value")
        if key and value:
            found.setdefault(key, str(value))
    command = []
    for row in database.records("META_DATA_CAPTURE"):
        name, value = str(row.get("name")), str(row.get("value"))
        if name in _OPTIONS:
            found.setdefault(_OPTIONS[name], value)
        elif _COMMAND.fullmatch(name):
            command.append(value)
    if command:
        found["command"] = command
    named = {
        as_int(row.get("pid")): row["name"]
        for row in database.records("PROCESSES")
        if isinstance(row.get("name"), str)
    }
    found["processes"] = {str(pid): named.get(pid) for pid in sorted(processes)}
    # The most serious first, each once: nsys repeats that a process has no events.
    ordered = sorted(_messages(database), key=lambda message: -message[0])
    warnings = dict.fromkeys(text for severity, text in ordered if severity >= _WARNING)
    if warnings:
        found["warnings"] = list(warnings)[:_MOST_MESSAGES]
    return found


def count_lost(database: TableSource, ledger: Ledger) -> None:
    """Count in ``ledger`` the events that nsys lost, 1 for a message without a number.

    The conservation law does not cover events that are not in the file: ``kept`` is true.
    """
    for _, text in _messages(database):
        if _LOSS.search(text):
            found = _LOST_COUNT.search(text)
            count = int(next(g for g in found.groups() if g)) if found else 1
            ledger.add("dropped_by_profiler", count, table="-", kept=True, detail=text)


def _messages(database: TableSource) -> list[tuple[int, str]]:
    return [
        (
            as_int(row.get("severity")) or 0,
            " ".join(str(row.get("text")).split())[:_LONGEST_MESSAGE],
        )
        for row in database.records(DIAGNOSTICS)
    ]


def count_unread(database: TableSource, read: Collection[str], ledger: Ledger) -> int:
    """Count in ``ledger`` the rows of all event tables but ``read``; return their sum.

    A table holds events if it has a time or is one of CUPTI's activity kinds.
    """
    total = 0
    for table, columns in sorted(database.tables.items()):
        if table in read or table.startswith(_NO_EVENTS):
            continue
        if not _TIMES.intersection(columns) and not table.startswith(_CUPTI):
            continue
        count = database.count(table)
        total += count
        ledger.add(_reason(table), count, table="-", detail=table)
    return total


def _reason(table: str) -> str:
    if table == DIAGNOSTICS:
        return "instant"
    if table.endswith("_METRICS") or "_COUNTER" in table:
        return "counter"
    return "unknown_category"


def count_missing(
    database: TableSource, calls: pl.DataFrame, activities: pl.DataFrame, ledger: Ledger
) -> None:
    """Count in ``ledger`` the tables that are missing from the export.

    nsys leaves out empty tables. A table of activities counts as missing where calls started such
    activities, the table of calls where there are activities. The entries count tables, not events:
    ``kept`` is true. Where the description of the GPUs is missing, the devices have no name.
    """
    missing = [] if has_strings(database) else [STRINGS]
    called = calls["name"].cast(pl.Categorical).unique().drop_nulls().cast(pl.String)
    for table, kind in _EXPECTED.items():
        as_graphs = table == KERNEL and GRAPH in database.tables
        if table not in database.tables and not as_graphs:
            missing += [table] * int(called.str.contains(CALLS_OF[kind]).any())
    if activities.height and not any(table in database.tables for table in CALL_TABLES):
        missing.append(CALL_TABLES[0])
    for table in missing:
        ledger.add("missing_table", 1, table="-", kept=True, detail=table)


_GPUS: Final = ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU")
"""Since 2021.2, and before."""
_CUDA: Final = "TARGET_INFO_CUDA_DEVICE"
_CONTEXTS: Final = ("TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_NULL_STREAM")
_LARGEST_NUMBER: Final = 2**31 - 1


def devices(database: TableSource, used: pl.Series) -> pl.DataFrame:
    """Return the devices with activities, or every device in the file where there are none.

    ``used`` holds the device numbers of the activities; a device that the file does not describe
    gets a row without properties.
    """
    gpus = [row for table in _GPUS for row in database.records(table)]
    numbers = _numbered(database, gpus)
    return devices_of_work([_device(number, gpu) for number, gpu in numbers], used)


def _numbered(
    database: TableSource, gpus: list[dict[str, Any]]
) -> list[tuple[int | None, dict[str, Any]]]:
    """Return each GPU with its number in the activities (see :func:`on_physical_devices`)."""
    by_id = {as_int(gpu.get("id")): gpu for gpu in gpus}
    cuda = _cuda_devices(database)
    if _ambiguous(cuda):
        return list(by_id.items())
    pairs = [(number, by_id[gpu]) for _, number, gpu in cuda.rows() if gpu in by_id]
    if pairs:
        return pairs
    # The oldest exports number the GPUs as CUDA does.
    keys = ("cuDevice", "deviceId", "id")
    return [
        (next((as_int(gpu[key]) for key in keys if gpu.get(key) is not None), None), gpu)
        for gpu in gpus
    ]


def _cuda_devices(database: TableSource) -> pl.DataFrame:
    """Return the GPU of each process's device numbers: columns process, device, gpu."""
    keys = {"process": "pid", "device": "cudaId", "gpu": "gpuId"}
    rows = [[as_int(row.get(key)) for key in keys.values()] for row in database.records(_CUDA)]
    return (
        pl.DataFrame(rows, schema=dict.fromkeys(keys, pl.Int64), orient="row")
        .with_columns(pl.col("device", "gpu").cast(ACTIVITIES["device"], strict=False))
        .drop_nulls(["device", "gpu"])
        .unique(["process", "device"], keep="first", maintain_order=True)
    )


def _ambiguous(cuda: pl.DataFrame) -> bool:
    return cuda.select("device", "gpu").unique()["device"].is_duplicated().any()


def on_physical_devices(database: TableSource, work: pl.DataFrame) -> pl.DataFrame:
    """Return activities with one device number per GPU.

    CUDA numbers the visible devices of a process. Where ``CUDA_VISIBLE_DEVICES`` gives each rank
    its own GPU, each numbers it 0: the activities then get the machine's number of the GPU. Where
    all processes use the same numbers, CUDA's numbers stay.
    """
    cuda = _cuda_devices(database)
    if not _ambiguous(cuda):
        return work
    return (
        work.join(cuda, on=["process", "device"], how="left", maintain_order="left")
        .with_columns(pl.coalesce("gpu", "device").alias("device"))
        .drop("gpu")
    )


def _device(number: int | None, gpu: dict[str, Any]) -> dict[str, Any]:
    name = gpu.get("name")
    hertz = fact(gpu, "clock_khz", "clockRate")
    # TARGET_INFO_CUDA_GPU is CUPTI's device record: kHz there, Hz in TARGET_INFO_GPU.
    khz = fact(gpu, "clock_khz", "coreClockRate") if hertz is None else hertz // 1000
    return {
        "device": number if number is not None and 0 <= number <= _LARGEST_NUMBER else None,
        "name": name if isinstance(name, str) and name else None,
        "vendor": "NVIDIA",
        "compute_capability": capability(gpu, "computeMajor", "computeMinor")
        or capability(gpu, "computeCapabilityMajor", "computeCapabilityMinor"),
        "multiprocessors": fact(gpu, "multiprocessors", "smCount", "numMultiprocessors"),
        "clock_khz": khz,
        "memory_bytes": fact(gpu, "memory_bytes", "totalMemory", "globalMemorySize"),
        "bandwidth_bytes_per_s": fact(gpu, "bandwidth_bytes_per_s", "memoryBandwidth"),
        "warp_size": fact(gpu, "warp_size", "threadsPerWarp", "numThreadsPerWarp"),
    }


def devices_of_contexts(database: TableSource, work: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the device of each context: columns process, context, device.

    ``work`` holds activities with a device. Where the activities of a context have one device, that
    is its device; else the file's list of contexts determines it.
    """
    columns = {name: ACTIVITIES[name] for name in ("process", "context", "device")}
    met = [frame.select(*columns).drop_nulls().unique() for frame in work]
    seen = (
        pl.concat([pl.DataFrame(schema=columns), *met])
        .unique()
        .filter(~pl.struct("process", "context").is_duplicated())
    )
    keys = ("processId", "contextId", "deviceId")
    listed = [
        [as_int(row.get(key)) for key in keys]
        for table in _CONTEXTS
        for row in database.records(table)
    ]
    in_file = pl.DataFrame(listed, schema=dict.fromkeys(columns, pl.Int64), orient="row").select(
        pl.col(name).cast(dtype, strict=False) for name, dtype in columns.items()
    )
    return (
        pl.concat([seen, in_file])
        .drop_nulls()
        .unique(["process", "context"], keep="first", maintain_order=True)
    )


def with_devices(syncs: pl.DataFrame, contexts: pl.DataFrame) -> pl.DataFrame:
    """Return synchronizations with the device of their context.

    CUPTI's synchronization records have no device; nsys writes 0 for every context.
    """
    known = contexts.rename({"device": "_device"})
    return (
        syncs.join(known, on=["process", "context"], how="left", maintain_order="left")
        .with_columns(pl.coalesce("_device", "device").alias("device"))
        .drop("_device")
    )
