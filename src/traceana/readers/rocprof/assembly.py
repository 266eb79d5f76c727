"""Makes the canonical tables of rocprof's rows, whichever input has them.

The table of counters has a row for each dispatch of a kernel. rocprofv3 prints a row for each
counter of a dispatch, rocprof and rocprofv2 a column for each counter.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl
from msgspec.structs import replace

from traceana.readers.cupti import copy_name, devices_of_work, fact, nonzero, with_process
from traceana.readers.integrity import LONGEST_TRACE_NS, rebase, screen
from traceana.readers.kernel_names import UNNAMED, NameTable, demangle, plain_names
from traceana.readers.rocprof.columns import AXES, COUNTER, SIZES, Kind, Rows
from traceana.readers.table_source import as_int
from traceana.trace import Ledger, Tables, Trace, TraceMeta
from traceana.trace.schema import ACTIVITIES, COUNTERS, ActivityKind, CopyKind, RangeKind, empty

COPY: Final = r"(?i)(host|device)_?to_?(host|device)$"
"""The name of a copy, with its two sides."""
_MARKERS: Final = r"^(?:MARKER|ROCTX)"
_MARKER_CALL: Final = r"^roctx[A-Z]\w*$"
"""Functions of the library of markers; a range has its message instead."""


def kernels(cells: pl.DataFrame, names: NameTable) -> pl.DataFrame:
    """Return ``activities`` of the rows of kernels, with ``guid`` and number of the dispatch."""
    frame = cells.select(
        "guid",
        "dispatch",
        pl.lit("kernel", ActivityKind).alias("kind"),
        "start",
        (pl.col("end") - pl.col("start")).alias("duration"),
        "process",
        "device",
        "stream",
        nonzero("correlation").alias("correlation"),
        *sizes(),
        "registers",
        "shared_memory",
    )
    return frame.with_columns(names.ids(plain_names(cells["name"])).alias("name_id"))


def sizes() -> list[pl.Expr]:
    """Return the grid and block of a row of kernels or counters.

    rocprof's grid is in work-items, as in HSA; that of ``activities`` is in blocks.
    """
    sizes = [pl.col(name) for name in SIZES]
    for number, axis in enumerate(AXES):
        block = pl.col(f"block_{axis}")
        sizes[number] = (pl.col(f"grid_{axis}") + block - 1) // pl.when(block > 0).then(block)
    return sizes


def copies(cells: pl.DataFrame, names: NameTable) -> pl.DataFrame:
    """Return ``activities`` of the rows of copies; the device is the destination of HtoD copies,
    else the source."""
    direction = pl.col("direction").str.extract_groups(COPY)
    begin, end = (direction.struct[n].str.slice(0, 1).str.to_uppercase() for n in ("1", "2"))
    kind = pl.concat_str(begin, pl.lit("to"), end)
    source, target = pl.col("source"), pl.col("destination")
    across = (kind == "DtoD") & (source != target)
    frame = cells.select(
        pl.lit("memcpy", ActivityKind).alias("kind"),
        "start",
        (pl.col("end") - pl.col("start")).alias("duration"),
        "process",
        pl.coalesce(
            "device", pl.when(kind == "HtoD").then(target).when(kind != "HtoH").then(source)
        ).alias("device"),
        "stream",
        nonzero("correlation").alias("correlation"),
        pl.when(across)
        .then(pl.lit("PtoP"))
        .otherwise(kind.fill_null("unknown"))
        .cast(CopyKind)
        .alias("copy_kind"),
        "bytes",
    )
    return named_copies(frame, names)


def named_copies(frame: pl.DataFrame, names: NameTable) -> pl.DataFrame:
    """Return copies of known ``copy_kind`` with their name, and the memory that it implies."""
    kind = pl.col("copy_kind").cast(pl.String)
    memories = [
        pl.when(kind.str.contains(pattern))
        .then(pl.lit("device"))
        .cast(ACTIVITIES[side])
        .alias(side)
        for side, pattern in (("source_memory", "^[DP]to"), ("destination_memory", "to[DP]$"))
    ]
    typed = frame.with_columns(memories)
    texts = typed.select(copy_name()).to_series()
    return typed.with_columns(names.ids(texts).alias("name_id"))


def calls_and_ranges(cells: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return ``calls`` and ``ranges`` of the rows of functions; ranges are those of ROCTx.

    rocprofv3 prints a range of ``roctxRangeStart``, which is of no thread, with thread 0.
    """
    if cells.is_empty():
        return empty("calls"), empty("ranges")
    function = pl.col("function")
    marker = (
        pl.col("domain").str.contains(_MARKERS) & ~function.str.contains(_MARKER_CALL)
    ).fill_null(False)
    times = ("start", (pl.col("end") - pl.col("start")).alias("duration"))
    calls = cells.filter(~marker).select(
        function.cast(pl.Categorical()).alias("name"),
        "process",
        "thread",
        *times,
        nonzero("correlation").alias("correlation"),
    )
    return calls, ranges(cells.filter(marker).rename({"function": "text"}))


def ranges(cells: pl.DataFrame) -> pl.DataFrame:
    """Return ``ranges`` of rows with text, process, thread, start and end of ROCTx's ranges."""
    duration = pl.col("end") - pl.col("start")
    return cells.select(
        pl.col("text").cast(pl.Categorical()),
        pl.when(duration == 0)
        .then(pl.lit("mark"))
        .when(pl.col("thread") == 0)
        .then(pl.lit("nvtx_start"))
        .otherwise(pl.lit("nvtx"))
        .cast(RangeKind)
        .alias("kind"),
        "process",
        pl.when(pl.col("thread") != 0).then("thread").alias("thread"),
        "start",
        duration.alias("duration"),
    )


_KIB: Final = 1024
_OPERATIONS: Final = 512
"""What an SQ_INSTS_VALU_MFMA_MOPS counter counts one for."""
_TENSOR_OPS: Final = "tensor_ops"
COLUMNS: Final = {
    # counter or derived metric: column of `counters`, what its unit is worth there
    "FETCH_SIZE": ("dram_read_bytes", _KIB),
    "FetchSize": ("dram_read_bytes", _KIB),
    "WRITE_SIZE": ("dram_write_bytes", _KIB),
    "WriteSize": ("dram_write_bytes", _KIB),
    "OccupancyPercent": ("achieved_occupancy_percent", 1),
    "SQ_INSTS_MFMA": ("tensor_instructions", 1),
    "SQ_INSTS_VALU_MFMA": ("tensor_instructions", 1),
    **{
        f"SQ_INSTS_VALU_MFMA_MOPS_{kind}": (_TENSOR_OPS, _OPERATIONS)
        for kind in ("F16", "BF16", "F32", "F64", "I8", "F8", "XF32", "F6F4")
    },
}
"""Wave instructions of the VALU are left out: how many lanes were active is not counted."""
_LARGEST: Final = float(1 << 44)
"""Larger values are damaged; sums of those below fit int64."""
_DISPATCH: Final = ("guid", "process", "dispatch")
_FACTS: Final = ("name", "device", "start", "end")


def dispatches(rows: pl.DataFrame, ledger: Ledger) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the dispatches and the values of ``rows``, one for each counter of a dispatch.

    Both have the number of the dispatch in ``row``. Rows whose name or times are not those of
    their dispatch are counted in ``ledger``.
    """
    values = rows.filter(pl.col("dispatch").is_not_null() & pl.col("counter").is_not_null())
    lost = rows.height - values.height
    ledger.add("malformed", lost, table="counters", kept=True, detail="rows without a dispatch")
    number = pl.struct(_DISPATCH).rank("dense") - 1
    values = values.with_columns(number.cast(pl.UInt32).alias("row"))
    first = values.unique("row", keep="first", maintain_order=True)
    pairs = values.select("row", *_FACTS).join(first, on="row", how="left", maintain_order="left")
    differs = pl.any_horizontal(pl.col(fact).ne_missing(pl.col(f"{fact}_right")) for fact in _FACTS)
    count = int(pairs.select(differs.sum()).item())
    detail = "rows with another name or time than their dispatch"
    ledger.add("damaged", count, table="counters", kept=True, detail=detail)
    return first, values.select("row", "counter", "value")


def wide_values(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the values of ``kernels``, which have a column for each counter, by ``row``."""
    columns = [name for name in kernels.columns if name.startswith(COUNTER)]
    if not columns:
        return pl.DataFrame(schema={"row": pl.UInt32, "counter": pl.String, "value": pl.String})
    values = kernels.select("row", *columns).unpivot(
        index="row", variable_name="counter", value_name="value"
    )
    return values.with_columns(pl.col("counter").str.strip_prefix(COUNTER)).filter(
        pl.col("value").is_not_null()
    )


def counter_table(measured: pl.DataFrame, values: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    """Return ``counters`` of the dispatches ``measured``, with ``row``, and their ``values``."""
    used = values.filter(pl.col("counter").is_in(list(COLUMNS)))
    number = pl.col("value").str.strip_chars(" ").cast(pl.Float64, strict=False)
    possible = number.is_between(0, _LARGEST)
    read = used.with_columns(pl.when(possible).then(number).alias("value"))
    ledger.add(
        "lost_field",
        read["value"].null_count(),
        table="counters",
        kept=True,
        detail="values without a possible number",
    )
    once = read.unique(["row", "counter"], keep="first", maintain_order=True)
    ledger.add("repeated", read.height - once.height, table="counters", kept=True, detail="values")
    measured_counters = {*once["counter"].unique()}
    parts: dict[str, list[pl.Expr]] = {}
    for counter, (column, worth) in COLUMNS.items():
        if counter in measured_counters:
            value = pl.col("value").filter(pl.col("counter") == counter).first() * worth
            parts.setdefault(column, []).append(value)
    columns = {
        column: pl.sum_horizontal(terms) if column == _TENSOR_OPS else pl.coalesce(terms)
        for column, terms in parts.items()
    }
    traffic = [columns[name] for name in ("dram_read_bytes", "dram_write_bytes") if name in columns]
    if len(traffic) == 2:
        columns["dram_bytes"] = pl.sum_horizontal(traffic, ignore_nulls=False)
    figures = once.group_by("row").agg(
        (value if COUNTERS[column] == pl.Float64 else value.round().cast(pl.Int64)).alias(column)
        for column, value in columns.items()
    )
    duration = pl.col("end") - pl.col("start")
    names = plain_names(measured["name"])
    ledger.add("unnamed", names.null_count(), table="counters", kept=True)
    names = names.fill_null(UNNAMED)
    plain = demangle(names.unique())
    plain.count_failures(ledger)
    facts = measured.select(
        "row",
        "guid",
        "dispatch",
        pl.col("dispatch").alias("launch"),
        names.replace(plain.names).alias("name"),
        "process",
        "device",
        "stream",
        *(size.cast(pl.Int32, strict=False) for size in sizes()),
        pl.when(duration.is_between(0, LONGEST_TRACE_NS)).then(duration).alias("duration"),
    )
    lost = measured.filter(pl.col("start").is_not_null()).height - facts["duration"].count()
    ledger.add("lost_field", lost, table="counters", kept=True, detail="impossible durations")
    return facts.join(figures, on="row", how="left", maintain_order="left")


_BY_TYPE: Final = r"^GPU"


def _described_gpus(rows: Rows, used: pl.Series) -> list[dict[str, Any]]:
    """Return the rows of ``devices`` of the GPUs among the agents, numbered as in ``used``.

    ``Agent 2`` is the agent's number among those of the process, or in older versions that of its
    node; ``GPU 1`` is its number among GPUs (``--agent-index``).
    """
    agents = [agent for agent in rows[Kind.AGENTS].to_dicts() if agent.get("agent_type") == "GPU"]
    printed = pl.concat(
        rows[kind]["agent"].cast(pl.String) for kind in (Kind.KERNELS, Kind.LAUNCHES, Kind.COUNTERS)
    )
    if printed.str.contains(_BY_TYPE).any():
        return [device(number, agent) for number, agent in enumerate(agents)]
    logical = {as_int(agent.get("logical_node")) for agent in agents}
    key = "logical_node" if {*used.drop_nulls()} <= logical else "node"
    return [device(as_int(agent.get(key)), agent) for agent in agents]


def device(number: int | None, agent: dict[str, Any]) -> dict[str, Any]:
    """Return the row of ``devices`` of ``agent``."""
    version = as_int(agent.get("gfx_version")) or 0
    clock = fact(agent, "clock_khz", "clock_mhz")
    texts = (agent.get(key) for key in ("product", "model", "gfx_name"))
    return {
        "device": number,
        "name": next((text for text in texts if text), None),
        "vendor": "AMD",
        # 90402 is gfx942, whose version traces give as 9.4.
        "compute_capability": f"{version // 10000}.{version // 100 % 100}" if version > 0 else None,
        "multiprocessors": fact(agent, "multiprocessors", "compute_units"),
        "clock_khz": None if clock is None else clock * 1000,
        "memory_bytes": fact(agent, "memory_bytes", "memory_bytes"),
        "warp_size": fact(agent, "warp_size", "warp_size"),
    }


_MISSING: Final = (
    # what a run without this kind of table lacks, and the option of rocprofv3 that records it
    (Kind.KERNELS, "timeline of kernels (--kernel-trace)"),
    (Kind.COPIES, "copies (--memory-copy-trace)"),
    (Kind.CALLS, "HIP calls (--hip-trace)"),
    (Kind.AGENTS, "device properties (agent_info.csv)"),
)
_MOST_UNREAD: Final = 50
_KEY: Final = ("guid", "dispatch")


def assembled(
    meta: TraceMeta, rows: Rows, ledger: Ledger, gpus: list[dict[str, Any]] | None = None
) -> Trace:
    """Return the Trace of ``rows``; counters have the row of their kernel where both are recorded.

    ``meta`` and ``ledger`` have what the way to the rows found, ``meta.events`` the events that are
    not rows. ``gpus`` are rows of ``devices``; without them the rows of agents describe the GPUs.
    """
    names = NameTable(ledger)
    calls, ranges = calls_and_ranges(rows[Kind.CALLS])
    work = [kernels(rows[Kind.KERNELS], names), copies(rows[Kind.COPIES], names)]
    for texts, table in ((rows[Kind.KERNELS]["name"], "activities"), (calls["name"], "calls")):
        ledger.add("unnamed", texts.null_count(), table=table, kept=True)
    activities = with_process(pl.concat(work, how="diagonal"), calls)
    # rocprofv3's CSV has no sizes of copies: they are not missing.
    if activities["bytes"].null_count() == activities.height:
        activities = activities.drop("bytes")
    frames = {
        "activities": activities,
        "calls": calls,
        "ranges": ranges,
    }
    events = sum(frame.height for frame in frames.values())
    screened = {table: screen(frame, table, ledger) for table, frame in frames.items()}
    tables, _ = rebase(screened, ledger)
    # The measured dispatches, and their values by the number of the dispatch, ``row``.
    measured, values = dispatches(rows[Kind.COUNTERS], ledger)
    for kind in (Kind.KERNELS, Kind.LAUNCHES):
        launched = rows[kind].with_columns(
            pl.int_range(measured.height, measured.height + pl.len(), dtype=pl.UInt32).alias("row")
        )
        launched_values = wide_values(launched)
        if kind is Kind.LAUNCHES or launched_values.height:
            measured = pl.concat([measured, launched.select(measured.columns)])
            values = pl.concat([values, launched_values.select(values.columns)])
    counters = counter_table(measured, values, ledger)
    events += counters.height

    activities = tables["activities"]
    keys = [*_KEY, "name"]
    dispatched = (
        activities.with_columns(names.frame()["name"].gather(activities["name_id"]))
        .with_row_index("activity")
        .filter(pl.col("dispatch").is_not_null())
        .select("activity", *keys)
        .unique(keys, keep="none")
    )
    tables["counters"] = counters.join(
        dispatched, on=keys, how="left", maintain_order="left", nulls_equal=True
    ).drop("row", *_KEY)
    tables["activities"] = activities.drop(_KEY)
    other = rows[Kind.OTHER].height
    events += other
    ledger.add("unknown_category", other, table="-", detail="memory allocations, scratch, samples")
    tables["names"] = names.frame()
    if activities.is_empty():
        tables["names"] = counters.select(pl.col("name").unique(maintain_order=True))
    used = pl.concat([activities["device"], counters["device"]])
    described = _described_gpus(rows, used) if gpus is None else gpus
    # A device that is not described is AMD's too.
    tables["devices"] = devices_of_work(described, used).with_columns(vendor=pl.lit("AMD"))
    tables["ledger"] = ledger.frame()
    meta = replace(
        meta,
        events=events + (meta.events or 0),
        properties={**meta.properties, **_properties(rows)},
    )
    return Trace(meta, Tables(tables))


def _properties(rows: Rows) -> dict[str, Any]:
    """Return the tables that were read, what the run does not record, and its counters."""
    wide = [rows[kind] for kind in (Kind.KERNELS, Kind.LAUNCHES)]
    columns = [
        (frame, name) for frame in wide for name in frame.columns if name.startswith(COUNTER)
    ]
    long = rows[Kind.COUNTERS]["counter"].drop_nulls()
    metrics = [
        *long.unique(maintain_order=True),
        *(name.removeprefix(COUNTER) for _, name in columns),
    ]
    only_counters = metrics and rows[Kind.KERNELS].is_empty()
    missing = [what for kind, what in _MISSING if rows[kind].is_empty()]
    properties: dict[str, Any] = {
        "tables": {kind.value: cells.height for kind, cells in rows.items() if cells.height}
    }
    if missing:
        properties["not_recorded"] = missing[:1] if only_counters else missing
    if metrics:
        properties["metric_rows"] = len(long) + sum(frame[name].count() for frame, name in columns)
    if unread := [name for name in dict.fromkeys(metrics) if name not in COLUMNS]:
        properties["metrics_not_read"] = unread[:_MOST_UNREAD]
    return properties
