"""Reads the SQLite databases of rocprofv3 (rocpd) and of rocprof into the canonical tables.

Reads rocpd, the SQLite database of rocprofv3 (``rocprofv3 --output-format rocpd``). Its tables are
named by the process that wrote them (``rocpd_kernel_dispatch_0000…``), so a merged file has several
sets of them. Schemas differ: times are columns of an activity, or rows of ``rocpd_timestamp``;
thread, agent and stream are columns, or those of a row of ``rocpd_track``.
"""

from __future__ import annotations

import json
from typing import Any, Final

import polars as pl

from traceana.readers.rocprof import DISPATCHES
from traceana.readers.rocprof.assembly import (
    COPY,
    Rows,
    assembled,
    device,
    numbered,
    of_work,
    properties,
)
from traceana.readers.rocprof.csv_tables import Kind, named_cells
from traceana.readers.source import Progress
from traceana.readers.table_source import Bytes, Integer, Query, TableSource, as_int, decoded
from traceana.trace import Ledger, Tables, Trace, TraceMeta


def read_rocpd(source: TableSource, progress: Progress) -> Trace:
    """Return the Trace of the tables of a database of rocprofv3.

    All columns are optional. Raises ``CorruptError``.
    """
    ledger = Ledger()
    rows, described = rocpd_rows(source, ledger, progress)
    return _trace(source, rows, described, ledger, "AMD rocpd", rocpd_version(source))


def read_rocprof(source: TableSource, progress: Progress) -> Trace:
    """As :func:`read_rocpd`, of the tables of a database of rocprof."""
    return _trace(source, legacy_rows(source, progress), [], Ledger(), "AMD rocprof", None)


def _trace(
    source: TableSource,
    rows: Rows,
    described: list[dict[str, Any]],
    ledger: Ledger,
    producer: str,
    version: str | None,
) -> Trace:
    source.count_damage(ledger)
    tables, events = assembled(rows, ledger)
    used = pl.concat([tables[name]["device"] for name in ("activities", "counters")])
    tables["devices"] = of_work(described, used)
    meta = TraceMeta(
        source=str(source.path),
        format="rocprof",
        format_version=version,
        producer=producer,
        bytes_read=source.size_bytes,
        bytes_total=source.size_bytes,
        events=events,
        properties=properties(rows),
    )
    return Trace(meta, Tables(tables))


_AXES: Final = "xyz"
_PLACE: Final = ("pid", "tid", "agent_id", "queue_id", "stream_id")
_OF_ACTIVITY: Final = (*_PLACE, "track_id", "start", "end", "start_id", "end_id", "event_id")
_COLUMNS: Final = {
    "rocpd_kernel_dispatch": (
        *_OF_ACTIVITY,
        *("kernel_id", "dispatch_id", "group_segment_size"),
        *(f"{what}_size_{axis}" for what in ("grid", "workgroup") for axis in _AXES),
    ),
    "rocpd_memory_copy": (*_OF_ACTIVITY, "name_id", "src_agent_id", "dst_agent_id", "size"),
    "rocpd_region": (*_OF_ACTIVITY, "name_id"),
    "rocpd_sample": (*_PLACE, "track_id", "timestamp", "timestamp_id", "event_id", "name_id"),
    "rocpd_timestamp": ("id", "value"),
    "rocpd_track": ("id", *_PLACE, "name_id"),
}
_REFERRED: Final = ("rocpd_string", "rocpd_event", "rocpd_info_kernel_symbol")
"""Tables with what every activity refers to."""
_MESSAGE: Final = r'"message"\s*:\s*"((?:[^"\\]|\\.)*)"'
_MARKERS: Final = "MARKER"


def rocpd_rows(
    source: TableSource, ledger: Ledger, progress: Progress
) -> tuple[Rows, list[dict[str, Any]]]:
    """Return the rows of a rocpd database, and its devices; raises ``CorruptError``.

    A correlation id is what rocprofv3 calls the internal one and stores as ``stack_id``: a kernel
    has that of the call which launched it.
    """
    suffixes = [
        name.removeprefix(DISPATCHES) for name in source.tables if name.startswith(DISPATCHES)
    ]
    for suffix in suffixes:
        # Of the two layouts, that of tracks is known by the column.
        columns = source.tables[f"{DISPATCHES}{suffix}"]
        for name in (*_REFERRED, *(["rocpd_timestamp"] if "start_id" in columns else [])):
            lost = f"{name}{suffix}" not in source.tables
            ledger.add("missing_table", int(lost), table="-", kept=True, detail=name)
    sets = [_Set(source, suffix, progress) for suffix in suffixes]
    parts: dict[Kind, list[pl.DataFrame]] = {kind: [] for kind in Kind}
    for one in sets:
        for kind, frame in one.rows().items():
            parts[kind].append(frame.with_columns(pl.lit(one.suffix).alias("guid")))
    rows = {kind: numbered(frames) for kind, frames in parts.items()}
    return rows, [gpu for one in sets for gpu in one.devices(ledger)]


def rocpd_version(source: TableSource) -> str | None:
    """Return the version of the schema, None where it is not recorded."""
    for name in source.tables:
        if name.startswith("rocpd_metadata"):
            for row in source.records(name):
                if row.get("tag") == "schema_version":
                    return str(row.get("value"))
    return None


class _Set:
    """The tables of one process."""

    def __init__(self, source: TableSource, suffix: str, progress: Progress) -> None:
        self.suffix = suffix
        self._source = source
        self._agents = self._records("rocpd_info_agent")
        queries = {
            name: _integers(f"{name}{suffix}", columns)
            for name, columns in _COLUMNS.items()
            if f"{name}{suffix}" in source.tables
        }
        for name, query in (
            ("rocpd_event", _events(f"rocpd_event{suffix}")),
            ("rocpd_string", _texts(f"rocpd_string{suffix}", "string")),
            ("rocpd_pmc_event", _values(f"rocpd_pmc_event{suffix}")),
        ):
            if query.table in source.tables:
                queries[name] = query
        frames = source.read(list(queries.values()), progress)
        self._frames = dict(zip(queries, frames, strict=True))

    def _records(self, name: str) -> list[dict[str, Any]]:
        return self._source.records(f"{name}{self.suffix}")

    def rows(self) -> Rows:
        """Return the rows by kind, with the names of cells."""
        regions, samples = self._regions()
        other = self._source.count(f"rocpd_memory_allocate{self.suffix}")
        kernels = self._kernels()
        return {
            Kind.KERNELS: kernels.drop("event_id"),
            Kind.COPIES: self._copies(),
            Kind.CALLS: pl.concat([regions, samples], how="diagonal"),
            Kind.COUNTERS: self._counters(kernels),
            Kind.AGENTS: pl.DataFrame({"agent": [str(one.get("id")) for one in self._agents]}),
            Kind.OTHER: pl.DataFrame({"operation": ["allocation"] * other}),
        }

    def devices(self, ledger: Ledger) -> list[dict[str, Any]]:
        """Return the rows of ``devices`` of the GPUs among the agents; ``ledger`` counts lost
        properties."""
        return [
            device(_number(agent), _described(agent, ledger))
            for agent in self._agents
            if agent.get("type") == "GPU"
        ]

    def _kernels(self) -> pl.DataFrame:
        symbols = self._records("rocpd_info_kernel_symbol")
        ids = [as_int(symbol.get("id")) for symbol in symbols]
        names = [
            next((t for k in ("display_name", "kernel_name") if (t := symbol.get(k))), None)
            for symbol in symbols
        ]
        registers = [as_int(symbol.get("arch_vgpr_count")) for symbol in symbols]
        table = pl.DataFrame(
            {"kernel_id": ids, "name": [None if n is None else str(n) for n in names]}
            | {"registers": registers},
            schema={"kernel_id": pl.Int64, "name": pl.String, "registers": pl.Int64},
        ).unique("kernel_id", keep="first")
        frame = self._placed("rocpd_kernel_dispatch").join(
            table, on="kernel_id", how="left", maintain_order="left"
        )
        sizes = {
            f"{name}_{axis}": pl.col(f"{column}_size_{axis}")
            for name, column in (("grid", "grid"), ("block", "workgroup"))
            for axis in _AXES
        }
        return frame.select(
            "event_id", "name", "start", "end", "process", "registers",
            pl.col("agent").cast(pl.String),
            pl.col("stream_id").alias("stream"),
            pl.col("dispatch_id").alias("dispatch"),
            "correlation",
            pl.col("group_segment_size").alias("shared_memory"),
            **sizes,
        )  # fmt: skip

    def _copies(self) -> pl.DataFrame:
        frame = self._placed("rocpd_memory_copy")
        return frame.select(
            "start", "end", "process", "correlation",
            pl.col("stream_id").alias("stream"),
            self._agent("src_agent_id").alias("source"),
            self._agent("dst_agent_id").alias("destination"),
            pl.col("size").alias("bytes"),
            self._text(frame["name_id"]).alias("direction"),
        )  # fmt: skip

    def _regions(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return calls and ranges, and marks, which have one time."""
        regions, samples = (self._placed(n) for n in ("rocpd_region", "rocpd_sample"))
        return _functions(regions, self._text(regions["name_id"])), _functions(
            samples.with_columns(pl.lit(_MARKERS).alias("category")),
            self._text(samples["name_id"]),
        )

    def _counters(self, kernels: pl.DataFrame) -> pl.DataFrame:
        """Return a row for each counter of a dispatch: its instances are added, as in the CSV."""
        if "rocpd_pmc_event" not in self._frames:
            return pl.DataFrame(schema={"counter": pl.String})
        described = self._records("rocpd_info_pmc")
        known = pl.DataFrame(
            {
                "pmc_id": [as_int(one.get("id")) for one in described],
                "counter": [str(one.get("name")) for one in described],
            },
            schema={"pmc_id": pl.Int64, "counter": pl.String},
        ).unique("pmc_id", keep="first")
        value = pl.col("value").cast(pl.Float64, strict=False)
        summed = (
            self._frames["rocpd_pmc_event"]
            .join(known, on="pmc_id", how="inner", maintain_order="left")
            .group_by("event_id", "counter", maintain_order=True)
            .agg(pl.when(value.is_not_null().all()).then(value.sum()).first().cast(pl.String))
        )
        return summed.join(kernels, on="event_id", how="inner", maintain_order="left").drop(
            "event_id"
        )

    def _placed(self, name: str) -> pl.DataFrame:
        """Return the rows of an activity's table with its times, place and event."""
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
            its = times.rename({"id": f"{side}_id", "value": "_time"})
            frame = frame.join(its, on=f"{side}_id", how="left", maintain_order="left")
            frame = frame.with_columns(pl.coalesce(side, "_time").alias(side)).drop("_time")
        tracks = self._frame("rocpd_track").unique("id", keep="first")
        frame = frame.join(
            tracks.rename({"id": "track_id"}), on="track_id", how="left", maintain_order="left",
            suffix="_track",
        )  # fmt: skip
        both = [*_PLACE, *(["name_id"] if "name_id_track" in frame.columns else [])]
        frame = frame.with_columns(pl.coalesce(one, f"{one}_track") for one in both)
        events = self._frames.get("rocpd_event", pl.DataFrame(schema=_EVENT)).unique("event_id")
        joined = frame.join(events, on="event_id", how="left", maintain_order="left")
        return joined.with_columns(
            self._looked_up("rocpd_info_process", "pid").alias("process"),
            self._looked_up("rocpd_info_thread", "tid").alias("thread"),
            self._agent("agent_id").alias("agent"),
            self._text(joined["category_id"]).alias("category"),
        )

    def _frame(self, name: str) -> pl.DataFrame:
        schema = dict.fromkeys(_COLUMNS[name], pl.Int64)
        return self._frames.get(name, pl.DataFrame(schema=schema))

    def _looked_up(self, name: str, column: str) -> pl.Expr:
        """Return the system's number in ``column``, which has the row of table ``name``."""
        numbers = {
            key: value
            for one in self._records(name)
            if (key := as_int(one.get("id"))) is not None
            and (value := as_int(one.get(column))) is not None
        }
        return pl.col(column).replace(numbers) if numbers else pl.col(column)

    def _agent(self, column: str) -> pl.Expr:
        """Return the number of the agent in ``column``, as rocprofv3's CSV numbers it."""
        numbers = {
            key: value
            for one in self._agents
            if (key := as_int(one.get("id"))) is not None and (value := _number(one)) is not None
        }
        return pl.col(column).replace(numbers) if numbers else pl.col(column)

    def _text(self, ids: pl.Series) -> pl.Series:
        strings = self._frames.get("rocpd_string", pl.DataFrame(schema=_STRING))
        table = strings.unique("id", keep="first")
        return (
            ids.alias("id")
            .to_frame()
            .join(table, on="id", how="left", maintain_order="left")["text"]
        )


_EVENT: Final = {
    "event_id": pl.Int64,
    "category_id": pl.Int64,
    "correlation": pl.Int64,
    "message": pl.String,
}
_STRING: Final = {"id": pl.Int64, "text": pl.String}


def _integers(table: str, columns: tuple[str, ...]) -> Query:
    return Query(table, {name: Integer(name) for name in columns}, lambda page: page)


def _texts(table: str, text: str) -> Query:
    return Query(
        table,
        {"id": Integer("id"), "text": Bytes(text)},
        lambda page: page.with_columns(decoded(page["text"]).alias("text")),
    )


def _events(table: str) -> Query:
    columns: dict[str, Integer | Bytes] = {
        "event_id": Integer("id"),
        "category_id": Integer("category_id"),
        "correlation": Integer("stack_id"),
        "extdata": Bytes("extdata"),
    }
    return Query(table, columns, _event_shape)


def _event_shape(page: pl.DataFrame) -> pl.DataFrame:
    message = decoded(page["extdata"]).str.extract(_MESSAGE, 1).str.replace_all(r'\\(["\\/])', "$1")
    return page.drop("extdata").with_columns(message.alias("message"))


def _values(table: str) -> Query:
    return Query(
        table,
        {"event_id": Integer("event_id"), "pmc_id": Integer("pmc_id"), "value": Bytes("value")},
        lambda page: page.with_columns(decoded(page["value"]).alias("value")),
    )


def _functions(frame: pl.DataFrame, names: pl.Series) -> pl.DataFrame:
    """Return rows of functions; a range of ROCTx has its message for a name."""
    marker = pl.col("category").str.starts_with(_MARKERS)
    return frame.with_columns(names.alias("function")).select(
        pl.when(marker).then(pl.coalesce("message", "function")).otherwise("function").alias(
            "function"
        ),
        pl.col("category").alias("domain"),
        "process", "thread", "start", "end", "correlation",
    )  # fmt: skip


def _number(agent: dict[str, Any]) -> int | None:
    known = (as_int(agent.get(key)) for key in ("logical_index", "absolute_index", "id"))
    return next((number for number in known if number is not None), None)


def _described(agent: dict[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Return ``agent`` with the names of ``agent_info.csv``; its properties are JSON."""
    try:
        more = json.loads(agent.get("extdata") or "{}")
    except (ValueError, TypeError, RecursionError):
        more = None
    facts = more if isinstance(more, dict) else {}
    lost = int(more is None)
    ledger.add("lost_field", lost, table="devices", kept=True, detail="properties of an agent")
    texts = {
        key: text if isinstance(text := agent.get(column), str) else None
        for key, column in (
            ("product", "product_name"), ("model", "model_name"), ("gfx_name", "name"),
        )
    }  # fmt: skip
    return texts | {
        "gfx_version": facts.get("gfx_target_version"),
        "compute_units": facts.get("cu_count"),
        "clock_mhz": facts.get("max_engine_clk_fcompute"),
        "memory_bytes": facts.get("local_mem_size"),
        "warp_size": facts.get("wave_front_size"),
    }


_ACTIVITIES: Final = ("OPS", "COPY")
_CALLS: Final = {"HIP": "HIP_RUNTIME_API", "HSA": "HSA_API", "rocTX": "ROCTX"}
_KERNELS: Final = "KERN"
"""The table of ``results.csv``: kernels with their counters, and times with ``--timestamp on``."""
_INTEGERS: Final = {
    "start": "BeginNs",
    "end": "EndNs",
    "process": "pid",
    "thread": "tid",
    "agent": "dev-id",
    "stream": "stream-id",
    "correlation": "Index",
}
_BARRIER: Final = "<barrier packet>"
_BYTES: Final = r"sizeBytes\((\d+)\)"
_DIMENSIONS: Final = r"\(\{z\((\d+)\) y\((\d+)\) x\((\d+)"
"""Of the arguments numBlocks and dimBlocks, as rocprof prints a ``dim3``."""
_SIZES: Final = tuple(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")


def legacy_rows(source: TableSource, progress: Progress) -> Rows:
    """Return the rows of the database; raises ``CorruptError``.

    An activity has the number of its HIP call in ``Index``. Sizes of copies and launches are among
    the printed arguments of these calls.
    """
    wanted = [name for name in (*_ACTIVITIES, *_CALLS) if name in source.tables]
    queries = [_query(name) for name in wanted]
    if _KERNELS in source.tables:
        titles = source.tables[_KERNELS]
        texts = {title: Bytes(title) for title in titles}
        queries.append(Query(_KERNELS, texts, _texts_of_page))
    frames = dict(zip([*wanted, _KERNELS], source.read(queries, progress), strict=False))
    parts: dict[Kind, list[pl.DataFrame]] = {kind: [] for kind in Kind}
    parts[Kind.CALLS] = [
        _call(frames[name], domain, counted=name == "HIP" or "HIP" not in frames)
        for name, domain in _CALLS.items()
        if name in frames
    ]
    copy = pl.col("name").str.contains(COPY).fill_null(False)
    barrier = pl.col("name").str.contains(_BARRIER, literal=True).fill_null(False)
    for work in (_with_sizes(frames[n], frames.get("HIP")) for n in _ACTIVITIES if n in frames):
        parts[Kind.COPIES].append(work.filter(copy).with_columns(pl.col("name").alias("direction")))
        parts[Kind.KERNELS].append(work.filter(~copy & ~barrier))
        parts[Kind.OTHER].append(work.filter(~copy & barrier).select("name"))
    if (kernels := frames.get(_KERNELS)) is not None and kernels.height:
        kind, cells = named_cells(kernels)
        if kind is not None:
            # The same kernels with their counters: their times are those of the other table.
            again = any(frame.height for frame in parts[Kind.KERNELS])
            parts[Kind.LAUNCHES if again else kind] = [cells]
    return {kind: numbered(frames) for kind, frames in parts.items()}


def _query(name: str) -> Query:
    columns: dict[str, Integer | Bytes] = {
        cell: Integer(column) for cell, column in _INTEGERS.items()
    }
    columns["name"] = Bytes("Name")
    columns["args"] = Bytes("args")
    return Query(name, columns, _shape)


def _shape(page: pl.DataFrame) -> pl.DataFrame:
    args = decoded(page["args"])
    sizes = []
    for what, argument in (("grid", "numBlocks"), ("block", "dimBlocks")):
        groups = args.str.extract_groups(argument + _DIMENSIONS)
        for number, axis in ((3, "x"), (2, "y"), (1, "z")):
            text = groups.struct.field(str(number))
            sizes.append(text.cast(pl.Int64, strict=False).alias(f"{what}_{axis}"))
    return page.drop("args").with_columns(
        decoded(page["name"]).alias("name"),
        args.str.extract(_BYTES, 1).cast(pl.Int64, strict=False).alias("bytes"),
        *sizes,
    )


def _texts_of_page(page: pl.DataFrame) -> pl.DataFrame:
    return page.select(decoded(page[name]).alias(name) for name in page.columns)


def _call(frame: pl.DataFrame, domain: str, *, counted: bool) -> pl.DataFrame:
    """Return rows of functions; only those of one API have the numbers that activities name."""
    number = pl.col("correlation") if counted else pl.lit(None, pl.Int64)
    return frame.select(
        pl.col("name").alias("function"),
        pl.lit(domain).alias("domain"),
        "process", "thread", "start", "end",
        number.alias("correlation"),
    )  # fmt: skip


def _with_sizes(work: pl.DataFrame, calls: pl.DataFrame | None) -> pl.DataFrame:
    """Return ``work`` with the bytes, grid and block of the calls of the same number."""
    keys = ["process", "correlation"]
    plain = work.drop("bytes", *_SIZES)
    if calls is None:
        return plain
    sizes = calls.select(*keys, "bytes", *_SIZES).unique(keys, keep="none")
    # A call of several activities has the sizes of none of them.
    alone = plain.with_columns((pl.len().over(keys) == 1).alias("_alone"))
    found = alone.join(sizes, on=keys, how="left", maintain_order="left").with_columns(
        pl.when("_alone").then(column).alias(column) for column in ("bytes", *_SIZES)
    )
    # Work-items, as rocprof prints them elsewhere.
    return found.drop("_alone").with_columns(
        (pl.col(f"grid_{axis}") * pl.col(f"block_{axis}")).alias(f"grid_{axis}") for axis in "xyz"
    )
