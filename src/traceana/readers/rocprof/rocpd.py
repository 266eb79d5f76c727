"""Reads rocpd, the SQLite database of rocprofv3 (``rocprofv3 --output-format rocpd``).

Its tables are named by the process that wrote them (``rocpd_kernel_dispatch_0000…``), so a merged
file has several sets of them. Schemas differ: times are columns of an activity, or rows of
``rocpd_timestamp``; thread, agent and stream are columns, or those of a row of ``rocpd_track``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import polars as pl

from traceana.readers.rocprof import DISPATCHES
from traceana.readers.rocprof.assembly import assembled, device
from traceana.readers.rocprof.columns import ROCPD, Kind, typed_rows
from traceana.readers.source import Progress
from traceana.readers.table_source import (
    Bytes,
    Integer,
    Query,
    TableSource,
    Texts,
    as_int,
    decoded,
    texts_query,
)
from traceana.trace import Ledger, Trace, TraceMeta

_KERNELS, _COPIES = "rocpd_kernel_dispatch", "rocpd_memory_copy"
_PLACE: Final = ("pid", "tid", "agent_id", "queue_id", "stream_id")
_OF_ACTIVITY: Final = (*_PLACE, "track_id", "start", "end", "start_id", "end_id", "event_id")
_COLUMNS: Final = {
    _KERNELS: (*_OF_ACTIVITY, "kernel_id", *ROCPD[Kind.KERNELS].values()),
    _COPIES: (
        *_OF_ACTIVITY,
        "name_id",
        "src_agent_id",
        "dst_agent_id",
        *ROCPD[Kind.COPIES].values(),
    ),
    "rocpd_region": (*_OF_ACTIVITY, "name_id"),
    "rocpd_sample": (*_PLACE, "track_id", "timestamp", "timestamp_id", "event_id", "name_id"),
    "rocpd_timestamp": ("id", "value"),
    "rocpd_track": ("id", *_PLACE, "name_id"),
}
"""The columns of numbers that are read from each table."""
_REFERRED: Final = ("rocpd_string", "rocpd_event", "rocpd_info_kernel_symbol")
"""Tables with what every activity refers to."""
_EVENT: Final = {
    "event_id": pl.Int64,
    "category_id": pl.Int64,
    "correlation": pl.Int64,
    "message": pl.String,
}
_MESSAGE: Final = r'"message"\s*:\s*"((?:[^"\\]|\\.)*)"'
_MARKERS: Final = "MARKER"


def read(source: TableSource, progress: Progress) -> Trace:
    """Return the Trace of a database of rocprofv3, all of whose columns are optional.

    Raises ``CorruptError``. A correlation id is what rocprofv3 calls the internal one and stores as
    ``stack_id``: a kernel has that of the call which launched it.
    """
    ledger = Ledger()
    suffixes = [
        table.removeprefix(DISPATCHES) for table in source.tables if table.startswith(DISPATCHES)
    ]
    for suffix in suffixes:
        # Only the layout with tracks has a table of times.
        has_tracks = "start_id" in source.tables[f"{DISPATCHES}{suffix}"]
        for name in (*_REFERRED, *(["rocpd_timestamp"] if has_tracks else [])):
            lost = f"{name}{suffix}" not in source.tables
            ledger.add("missing_table", int(lost), table="-", kept=True, detail=name)
    processes = [_Process(source, suffix, progress) for suffix in suffixes]
    rows = typed_rows(part for process in processes for part in process.rows())
    gpus = [gpu for process in processes for gpu in process.gpus(ledger)]
    source.count_damage(ledger)
    versions = (
        str(row.get("value"))
        for table in source.tables
        if table.startswith("rocpd_metadata")
        for row in source.records(table)
        if row.get("tag") == "schema_version"
    )
    meta = TraceMeta(
        source=str(source.path),
        format="rocprof",
        format_version=next(versions, None),
        producer="AMD rocpd",
        bytes_read=source.size_bytes,
        bytes_total=source.size_bytes,
    )
    return assembled(meta, rows, ledger, gpus)


class _Process:
    """The tables of one process, whose names end in its suffix."""

    def __init__(self, source: TableSource, suffix: str, progress: Progress) -> None:
        self._source = source
        self._suffix = suffix
        self._agents = self._records("rocpd_info_agent")
        queries = {
            name: Query(
                f"{name}{suffix}",
                {column: Integer(column) for column in columns},
                lambda page: page,
            )
            for name, columns in _COLUMNS.items()
        }
        queries["rocpd_event"] = Query(
            f"rocpd_event{suffix}",
            {
                "event_id": Integer("id"),
                "category_id": Integer("category_id"),
                "correlation": Integer("stack_id"),
                "extdata": Bytes("extdata"),
            },
            _with_message,
        )
        queries["rocpd_string"] = texts_query(f"rocpd_string{suffix}", "id", "string")
        queries["rocpd_pmc_event"] = Query(
            f"rocpd_pmc_event{suffix}",
            {"event_id": Integer("event_id"), "pmc_id": Integer("pmc_id"), "value": Bytes("value")},
            lambda page: page.with_columns(decoded(page["value"]).alias("value")),
        )
        stored = {name: query for name, query in queries.items() if query.table in source.tables}
        frames = source.read(list(stored.values()), progress)
        self._frames = dict(zip(stored, frames, strict=True))
        self._texts = Texts(self._frames.get("rocpd_string"))

    def rows(self) -> Iterator[tuple[Kind, pl.DataFrame]]:
        """Yield the rows of each kind, with the names of cells."""
        kernels = self._kernels()
        allocations = self._source.count(f"rocpd_memory_allocate{self._suffix}")
        parts = {
            Kind.KERNELS: kernels.drop("event_id"),
            Kind.COPIES: self._copies(),
            Kind.CALLS: self._functions(),
            Kind.COUNTERS: self._counters(kernels),
            Kind.AGENTS: pl.DataFrame({"agent": [str(agent.get("id")) for agent in self._agents]}),
            Kind.OTHER: pl.DataFrame({"operation": ["allocation"] * allocations}),
        }
        guid = pl.lit(self._suffix).alias("guid")
        yield from ((kind, cells.with_columns(guid)) for kind, cells in parts.items())

    def gpus(self, ledger: Ledger) -> list[dict[str, Any]]:
        """Return the rows of ``devices`` of the GPUs; ``ledger`` counts lost properties."""
        return [
            device(_agent_number(agent), _described(agent, ledger))
            for agent in self._agents
            if agent.get("type") == "GPU"
        ]

    def _kernels(self) -> pl.DataFrame:
        symbols = []
        for symbol in self._records("rocpd_info_kernel_symbol"):
            name = symbol.get("display_name") or symbol.get("kernel_name")
            registers = as_int(symbol.get("arch_vgpr_count"))
            symbols.append((as_int(symbol.get("id")), str(name) if name else None, registers))
        schema = {"kernel_id": pl.Int64, "name": pl.String, "registers": pl.Int64}
        named = pl.DataFrame(symbols, schema, orient="row").unique("kernel_id", keep="first")
        dispatches = self._activities(_KERNELS).join(
            named, on="kernel_id", how="left", maintain_order="left"
        )
        return dispatches.select(
            *("event_id", "name", "start", "end", "process", "registers", "correlation"),
            pl.col("agent").cast(pl.String),
            **{cell: pl.col(column) for cell, column in ROCPD[Kind.KERNELS].items()},
        )

    def _copies(self) -> pl.DataFrame:
        copies = self._activities(_COPIES)
        return copies.select(
            *("start", "end", "process", "correlation"),
            self._agent("src_agent_id").alias("source"),
            self._agent("dst_agent_id").alias("destination"),
            self._text(copies["name_id"]).alias("direction"),
            **{cell: pl.col(column) for cell, column in ROCPD[Kind.COPIES].items()},
        )

    def _functions(self) -> pl.DataFrame:
        """Return calls, ranges and marks; a range of ROCTx has its message for a name."""
        regions, samples = self._activities("rocpd_region"), self._activities("rocpd_sample")
        marks = samples.with_columns(pl.lit(_MARKERS).alias("category"))
        is_marker = pl.col("category").str.starts_with(_MARKERS)
        parts = [
            functions.with_columns(self._text(functions["name_id"]).alias("function")).select(
                pl.when(is_marker)
                .then(pl.coalesce("message", "function"))
                .otherwise("function")
                .alias("function"),
                pl.col("category").alias("domain"),
                *("process", "thread", "start", "end", "correlation"),
            )
            for functions in (regions, marks)
        ]
        return pl.concat(parts, how="diagonal")

    def _counters(self, kernels: pl.DataFrame) -> pl.DataFrame:
        """Return a row for each counter of a dispatch: its instances are added, as in the CSV."""
        if "rocpd_pmc_event" not in self._frames:
            return pl.DataFrame(schema={"counter": pl.String})
        described = self._records("rocpd_info_pmc")
        names = pl.DataFrame(
            {
                "pmc_id": [as_int(counter.get("id")) for counter in described],
                "counter": [str(counter.get("name")) for counter in described],
            },
            schema={"pmc_id": pl.Int64, "counter": pl.String},
        ).unique("pmc_id", keep="first")
        value = pl.col("value").cast(pl.Float64, strict=False)
        summed = (
            self._frames["rocpd_pmc_event"]
            .join(names, on="pmc_id", how="inner", maintain_order="left")
            .group_by("event_id", "counter", maintain_order=True)
            .agg(pl.when(value.is_not_null().all()).then(value.sum()).first().cast(pl.String))
        )
        return summed.join(kernels, on="event_id", how="inner", maintain_order="left").drop(
            "event_id"
        )

    def _activities(self, name: str) -> pl.DataFrame:
        """Return the rows of a table with their times, process, thread, agent and event."""
        frame = self._frame(name)
        if "timestamp" in frame.columns:
            frame = frame.with_columns(
                pl.col("timestamp").alias("start"),
                pl.col("timestamp").alias("end"),
                pl.col("timestamp_id").alias("start_id"),
                pl.col("timestamp_id").alias("end_id"),
            )
        times = self._frame("rocpd_timestamp").unique("id", keep="first")
        for side in ("start", "end"):
            named = times.rename({"id": f"{side}_id", "value": "_time"})
            frame = frame.join(named, on=f"{side}_id", how="left", maintain_order="left")
            frame = frame.with_columns(pl.coalesce(side, "_time").alias(side)).drop("_time")
        tracks = self._frame("rocpd_track").unique("id", keep="first").rename({"id": "track_id"})
        frame = frame.join(
            tracks, on="track_id", how="left", maintain_order="left", suffix="_track"
        )
        of_track = [column for column in (*_PLACE, "name_id") if f"{column}_track" in frame.columns]
        frame = frame.with_columns(pl.coalesce(column, f"{column}_track") for column in of_track)
        events = self._frames.get("rocpd_event", pl.DataFrame(schema=_EVENT)).unique("event_id")
        frame = frame.join(events, on="event_id", how="left", maintain_order="left")
        processes = self._records("rocpd_info_process")
        threads = self._records("rocpd_info_thread")
        return frame.with_columns(
            _renumbered("pid", processes, lambda row: as_int(row.get("pid"))).alias("process"),
            _renumbered("tid", threads, lambda row: as_int(row.get("tid"))).alias("thread"),
            self._agent("agent_id").alias("agent"),
            self._text(frame["category_id"]).alias("category"),
        )

    def _frame(self, name: str) -> pl.DataFrame:
        schema = dict.fromkeys(_COLUMNS[name], pl.Int64)
        return self._frames.get(name, pl.DataFrame(schema=schema))

    def _records(self, name: str) -> list[dict[str, Any]]:
        return self._source.records(f"{name}{self._suffix}")

    def _agent(self, column: str) -> pl.Expr:
        """Return the number of the agent in ``column``, as rocprofv3's CSV numbers it."""
        return _renumbered(column, self._agents, _agent_number)

    def _text(self, ids: pl.Series) -> pl.Series:
        return self._texts.of(ids).cast(pl.String)


def _with_message(page: pl.DataFrame) -> pl.DataFrame:
    """Return events with the message of a range, which their JSON has."""
    message = decoded(page["extdata"]).str.extract(_MESSAGE, 1).str.replace_all(r'\\(["\\/])', "$1")
    return page.drop("extdata").with_columns(message.alias("message"))


def _renumbered(
    column: str,
    records: list[dict[str, Any]],
    number: Callable[[dict[str, Any]], int | None],
) -> pl.Expr:
    """Return ``column``, which has ids of ``records``, with the number of each record instead."""
    numbers = {
        key: its_number
        for record in records
        if (key := as_int(record.get("id"))) is not None
        and (its_number := number(record)) is not None
    }
    return pl.col(column).replace(numbers) if numbers else pl.col(column)


def _agent_number(agent: dict[str, Any]) -> int | None:
    numbers = (as_int(agent.get(key)) for key in ("logical_index", "absolute_index", "id"))
    return next((number for number in numbers if number is not None), None)


def _described(agent: dict[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Return the properties of ``agent`` by cell; some of them are JSON."""
    try:
        properties = json.loads(agent.get("extdata") or "{}")
    except (ValueError, TypeError, RecursionError):
        properties = None
    is_lost = properties is None
    detail = "properties of an agent"
    ledger.add("lost_field", int(is_lost), table="devices", kept=True, detail=detail)
    if not isinstance(properties, dict):
        properties = {}
    names = {"product": "product_name", "model": "model_name", "gfx_name": "name"}
    texts = {cell: agent.get(column) for cell, column in names.items()}
    return {cell: text if isinstance(text, str) else None for cell, text in texts.items()} | {
        "gfx_version": properties.get("gfx_target_version"),
        "compute_units": properties.get("cu_count"),
        "clock_mhz": properties.get("max_engine_clk_fcompute"),
        "memory_bytes": properties.get("local_mem_size"),
        "warp_size": properties.get("wave_front_size"),
    }
