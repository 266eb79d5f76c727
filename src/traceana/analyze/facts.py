"""The facts of a trace that ``traceana info`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from traceana.result import Result
from traceana.table import LONG, Column, schema_of
from traceana.timeline.idle_gaps import capture_ns, selects_steps
from traceana.timeline.steps import span_of
from traceana.timeline.work import work
from traceana.trace.schema import COUNTERS

if TYPE_CHECKING:
    from traceana.trace import Trace

COLUMNS: Final = (
    Column("fact", meaning="name of the fact"),
    Column("value", LONG, "its value, as text"),
)
"""The columns of :func:`as_table`."""
_MEASURED: Final = tuple(COUNTERS)[tuple(COUNTERS).index("duration") : -1]
"""The columns of counters that hold measurements."""


def facts(trace: Trace) -> dict[str, Any]:
    """Return the facts of ``trace`` as plain Python values for JSON.

    Counts are numbers of rows, times nanoseconds; ``memcpy`` maps a direction to its count,
    ``ledger`` lists the entries of the integrity ledger. See ``docs/json.md`` for each key.
    """
    meta, activities = trace.meta, trace.tables.activities
    by_kind = activities.group_by("kind").agg(
        pl.len(), pl.col("duration").sum(), pl.col("name_id").n_unique().alias("names")
    )
    kinds = {kind: (count, time_ns, names) for kind, count, time_ns, names in by_kind.iter_rows()}
    none = (0, 0, 0)
    copies = (
        activities.filter(pl.col("kind") == "memcpy")
        .group_by(pl.col("copy_kind").cast(pl.String).fill_null("unknown"))
        .len()
        .sort("copy_kind")
    )
    working = (
        work(trace, "rank", "device").group_by("rank", "device").agg(pl.len().alias("activities"))
    )
    described = trace.tables.devices.with_columns(pl.col("device").cast(pl.Int32))
    # Those with work and those that the file describes.
    devices = (
        working.join(described, on=["rank", "device"], how="full", coalesce=True, nulls_equal=True)
        .with_columns(pl.col("activities").fill_null(0))
        .sort("rank", "device", nulls_last=True)
    )
    (kernels, kernel_ns, names), (operators, operator_ns, _) = (
        kinds.get(kind, none) for kind in ("kernel", "op")
    )
    values = {
        "file": meta.source,
        "format": meta.format,
        "format_version": meta.format_version,
        "producer": meta.producer,
        "framework": meta.framework,
        "rank": meta.rank,
        "ranks": _ranks(trace),
        "world_size": meta.world_size,
        "epoch_ns": meta.epoch_ns,
        "span_ns": capture_ns(trace if selects_steps(trace) else trace.whole),
        "kernels": kernels,
        "kernel_ns": kernel_ns,
        "distinct_kernel_names": names,
        "memcpy": dict(copies.iter_rows()),
        "memcpy_ns": kinds.get("memcpy", none)[1],
        "memset": kinds.get("memset", none)[0],
        "memset_ns": kinds.get("memset", none)[1],
        "synchronizations": kinds.get("sync", none)[0],
        "cpu_operators": operators,
        "cpu_operator_ns": operator_ns,
        "devices": devices.to_dicts(),
        "steps": trace.tables.steps["number"].n_unique(),
        "step_marker": ", ".join(trace.tables.steps["source"].drop_nulls().unique().sort()) or None,
        "step_numbers": span_of(trace.tables.steps["number"].unique().to_list()) or None,
        "operators": trace.tables.ops.height,
        "calls": trace.tables.calls.height,
        "ranges": int((trace.tables.ranges["kind"] != "overhead").sum()),
        "layers": trace.tables.layers.filter(pl.col("role") == "layer").height,
        "counters": _counters(trace),
        "summary": _summary(trace),
        "memory": _memory(trace),
        "events": meta.events,
        "truncated": meta.truncated,
        "bytes_read": meta.bytes_read,
        "bytes_total": meta.bytes_total,
        "ledger": trace.tables.ledger.to_dicts(),
        "properties": meta.properties,
    }
    return {**values, **_printed(trace)} if trace.is_summary else values


def _counters(trace: Trace) -> dict[str, Any] | None:
    """Return the facts of the counters of Nsight Compute; null without counters."""
    counters = trace.tables.counters
    if counters.is_empty():
        return None
    measured = [name for name in _MEASURED if counters[name].null_count() < counters.height]
    return {
        "launches": int(counters["launches"].fill_null(1).sum()),
        "joined": counters.height - counters["activity"].null_count(),
        "distinct_kernel_names": counters["name"].n_unique(),
        "measured": measured,
    }


def _summary(trace: Trace) -> dict[str, Any] | None:
    """Return the facts of a printed summary; null without one."""
    summary = trace.tables.summary
    if summary.is_empty():
        return None
    rows, host = summary.filter("counted"), summary.filter(pl.col("kind") == "call")
    steps = rows["precision_ns"].fill_null(1)
    properties = trace.meta.properties
    timed = rows["total_ns"].null_count() < max(rows.height, 1)
    return {
        "rows": summary.height,
        "tables": summary["table"].n_unique(),
        "counted_rows": rows.height,
        "calls": _sum(rows["calls"]),
        "time_ns": int(rows["total_ns"].sum()) if timed else None,
        "plus_minus_ns": -(-int(steps.sum()) // 2) if (steps > 1).any() else 0,
        "printed_total_ns": None if trace.on_cpu else properties.get("printed_total_ns"),
        "host_calls": _sum(host["calls"]),
        "host_ns": int(host["total_ns"].sum()),
    }


def _memory(trace: Trace) -> dict[str, int] | None:
    """Return the facts of a memory snapshot; null without its blocks."""
    blocks = trace.tables.memory_blocks
    if blocks.is_empty():
        return None
    allocated = blocks.filter(pl.col("state") == "active_allocated")
    return {
        "segments": blocks.select("rank", "device", "segment").n_unique(),
        "blocks": blocks.height,
        "reserved_bytes": int(blocks["bytes"].sum()),
        "allocated_bytes": int(allocated["bytes"].sum()),
        "history": trace.tables.memory.height,
        "out_of_memory": trace.tables.memory["failed_bytes"].count(),
    }


def _sum(calls: pl.Series) -> int | None:
    return None if calls.null_count() else int(calls.sum())


def _printed(trace: Trace) -> dict[str, Any]:
    """Return the facts on activities, of the rows of a summary."""
    rows = trace.tables.summary.filter("counted")

    def of(kind: str) -> pl.DataFrame:
        return rows.filter(pl.col("kind") == kind)

    copied = of("memcpy").group_by(pl.col("copy_kind").cast(pl.String).fill_null("unknown"))
    return {
        "kernels": int(of("kernel")["calls"].sum()),
        "kernel_ns": int(of("kernel")["total_ns"].sum()),
        "distinct_kernel_names": of("kernel")["name_id"].n_unique(),
        "memcpy": dict(copied.agg(pl.col("calls").sum()).sort("copy_kind").iter_rows()),
        "memcpy_ns": int(of("memcpy")["total_ns"].sum()),
        "memset": int(of("memset")["calls"].sum()),
        "memset_ns": int(of("memset")["total_ns"].sum()),
        "cpu_operators": int(of("op")["calls"].sum()) if trace.on_cpu else 0,
        "cpu_operator_ns": int(of("op")["total_ns"].sum()) if trace.on_cpu else 0,
        "calls": int(trace.tables.summary.filter(pl.col("kind") == "call")["calls"].sum()),
    }


def _ranks(trace: Trace) -> list[dict[str, Any]]:
    """Return the ranks of a distributed run with their files; empty for a single recording."""
    files = trace.meta.properties.get("ranks", {})
    counted = (
        work(trace, "rank", "duration")
        .group_by("rank")
        .agg(pl.len().alias("activities"), pl.col("duration").sum().alias("work_ns"))
    )
    work_of_rank = {rank: (count, time) for rank, count, time in counted.iter_rows()}
    return [
        {
            "rank": int(rank),
            "file": file,
            "activities": work_of_rank.get(int(rank), (0, 0))[0],
            "work_ns": work_of_rank.get(int(rank), (0, 0))[1],
        }
        for rank, file in files.items()
    ]


def as_table(values: Mapping[str, Any]) -> Result:
    """Return a row for each fact, with the columns :data:`COLUMNS`; unknown facts are left out.

    Nested facts are rows such as ``devices.0.name``.
    """
    rows = [(fact, str(value)) for fact, value in _flat(values) if value is not None]
    schema = schema_of(COLUMNS)
    return Result(pl.DataFrame(rows, schema=schema, orient="row"), columns=COLUMNS)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    parts: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    else:
        yield path, value
        return
    for key, item in parts:
        yield from _flat(item, f"{path}.{key}" if path else str(key))
