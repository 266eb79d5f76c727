"""Printed summaries: their work by class source, kernel and copy direction; what they lack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.errors import NoSuchSelectionError
from traceana.table import whole_sum
from traceana.timeline.copies import host_memory
from traceana.trace.schema import TABLES
from traceana.trace.work import SOURCE, labels_of

if TYPE_CHECKING:
    from traceana.trace import Trace

_ACTIVITIES = TABLES["activities"]
_SUMS: Final = (
    whole_sum("calls"),
    whole_sum("bytes"),
    pl.col("total_ns").sum().alias("time_ns"),
)


def needs_timeline(trace: Trace, what: str) -> None:
    """Raise :class:`~traceana.errors.NoSuchSelectionError` if ``trace`` is a summary or a memory
    snapshot.

    ``what`` is the analysis that needs the times of single activities.
    """
    if trace.is_snapshot:
        raise NoSuchSelectionError(
            f"{trace.meta.source} is a memory snapshot without a timeline, which {what} needs: use "
            "traceana memory, or record a trace, such as with torch.profiler"
        )
    if trace.is_summary:
        raise NoSuchSelectionError(
            f"{trace.meta.source} is a summary without a timeline, which {what} needs: record a "
            "trace, such as nvprof --print-gpu-trace, nsys profile or torch.profiler"
        )


def counted(trace: Trace) -> pl.DataFrame:
    """Return the rows of the summary that are part of sums, with the columns of activities that
    determine a class: ``name_id``, ``class``, ``kind``, ``copy_kind``.
    """
    return trace.tables.summary.filter("counted").with_columns(
        pl.lit(None, _ACTIVITIES["class"]).alias("class"),
        pl.col("kind").cast(pl.String).cast(_ACTIVITIES["kind"]),
    )


def added(rows: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Return ``calls``, ``time_ns`` and ``bytes`` of ``rows`` by ``keys``.

    ``calls`` and ``bytes`` are null where a row has none: a sum over some rows would look like the
    sum over all.
    """
    return rows.group_by(keys).agg(*_SUMS)


def kernels(trace: Trace) -> pl.DataFrame:
    """Return calls and times of each kernel, or operator.

    The mean is the sum over the calls, rounded down; the median is known for a name with one row.
    """
    rows = counted(trace).filter(pl.col("kind").is_in(["kernel", "op"]))
    calls, least, most = pl.col("calls"), pl.col("min_ns"), pl.col("max_ns")
    return (
        rows.group_by("name_id", "class")
        .agg(
            pl.col("kind", "copy_kind").first(),
            *_SUMS,
            pl.when(pl.len() == 1).then(pl.col("median_ns").first()).alias("median_ns"),
            pl.lit(None, pl.Int64).alias("std_ns"),
            pl.when(least.null_count() == 0).then(least.min()),
            pl.when(most.null_count() == 0).then(most.max()),
        )
        .drop("bytes")
        .with_columns(pl.when(calls > 0).then(pl.col("time_ns") // calls).alias("mean_ns"))
    )


def by_class(trace: Trace) -> pl.DataFrame:
    """Return ``calls``, ``time_ns`` and ``bytes`` of the rows of each class, with its labels."""
    rows = added(counted(trace), *SOURCE)
    return rows.hstack(labels_of(rows, trace.tables))


def copies(trace: Trace) -> pl.DataFrame:
    """Return the copies of the summary as rows with ``direction`` and ``host_memory``."""
    rows = counted(trace).filter(pl.col("kind") == "memcpy")
    direction = pl.col("copy_kind").cast(pl.String).fill_null("unknown")
    return rows.with_columns(
        direction.alias("direction"), host_memory(direction).alias("host_memory")
    )


def notes(trace: Trace) -> tuple[str, ...]:
    """Return the notes on figures of a summary; empty for a timeline."""
    if not trace.is_summary:
        return ()
    rows = counted(trace)
    lines = ["printed summary without a timeline: no steps, layers, idle or exposed time"]
    if others := trace.meta.properties.get("other_runs"):
        lines.insert(
            0,
            f"{len(others) + 1} runs in the file, the first is shown \u00b7 {', '.join(others)} "
            "\u00b7 compare them as one file each: traceana diff",
        )
    if trace.meta.properties.get("device_times") == "inclusive":
        lines.append("CPU times: those of the GPU include inner operators (PyTorch 1.6 and older)")
    untimed = rows["total_ns"].null_count()
    if untimed:
        lines.append(f"rows without a printed time: {untimed:,}")
    off = -(-int(rows["precision_ns"].fill_null(1).sum()) // 2)
    if rows["precision_ns"].fill_null(1).max() not in (1, None):
        lines.append(f"times as printed: their sum is within \u00b1{off:,} ns")
    total = None if trace.on_cpu else trace.meta.properties.get("printed_total_ns")
    printed = int(rows["total_ns"].sum()) + trace.meta.properties.get("printed_annotations_ns", 0)
    if isinstance(total, int) and total > printed + 2 * off:
        lines.append(
            f"rows not printed: {100 * (total - printed) / total:.1f} % of the printed total, "
            f"{total:,} ns; shares are of the printed rows"
        )
    else:
        cut = trace.tables.ledger.filter(pl.col("reason") == "cut_table")["detail"].drop_nulls()
        lines += [
            f"{detail}; shares are of the printed rows"
            for detail in cut.unique(maintain_order=True)
        ]
    return tuple(lines)
