"""The activities that count as work, in every sum of time.

Synchronization records are waits of the host, not device work, and are not counted.
Annotations on the device timeline are rows of ``ranges``, not activities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.table import Column, Kind
from traceana.trace.work import labels
from traceana.trace.work import work as labelled

if TYPE_CHECKING:
    from traceana.trace import Trace

RANK: Final = Column(
    "rank", Kind.NUMBER, "rank of a distributed job; null where not recorded", type=pl.Int32
)
DEVICE: Final = Column("device", Kind.DEVICE, "number of the device within its rank; -1: the host")
DEVICE_COLUMNS: Final = (RANK, DEVICE)
"""The columns that identify a device."""


def work(trace: Trace, *columns: str) -> pl.DataFrame:
    """Return the work of ``trace`` in the order of activities: all columns of activities, or
    ``columns``, which may be labels (:func:`traceana.trace.work.work`)."""
    return labelled(trace.tables, *columns)


def work_ns(trace: Trace) -> int:
    """Return the summed durations of the work, on a timeline or in a summary."""
    if trace.is_summary:
        return int(trace.tables.summary.filter("counted")["total_ns"].sum())
    return int(work(trace, "duration")["duration"].sum())


def any_work(trace: Trace) -> bool:
    """Return whether ``trace`` has work, on a timeline or in a summary."""
    return bool(trace.tables.summary["counted"].any()) or bool(
        (trace.tables.activities["kind"] != "sync").any()
    )


def kernels_of(trace: Trace, *columns: str) -> pl.DataFrame:
    """Return the kernels, or the operators of a trace of the CPU alone, as :func:`work` does."""
    rows = labels(trace.tables, *columns)
    return rows.filter(trace.tables.activities["kind"].is_in(["kernel", "op"]))


def has_kernels(trace: Trace) -> bool:
    """Return whether ``trace`` has kernels, CUDA graphs recorded whole, or operators of the CPU.

    Copies and memsets alone keep no multiprocessor busy: without kernels a GPU has no utilization.
    """
    return bool(trace.tables.activities["kind"].is_in(["kernel", "graph", "op"]).any())


def has_frames(trace: Trace) -> bool:
    """Return whether ``trace`` has frames of the program's Python."""
    return trace.tables.frames.height > 0


def processor(trace: Trace) -> str:
    """Return the kind of processor on which the work ran: ``GPU`` or ``CPU``."""
    return "CPU" if trace.on_cpu else "GPU"


def counted(count: int, noun: str, nouns: str) -> str:
    """Return a count in words, for a note."""
    return f"{count:,} {noun if count == 1 else nouns}"


def why_no_work(trace: Trace) -> str:
    """Return the note on a trace without work, with the reason."""
    if trace.is_summary:
        if (trace.tables.summary["kind"] == "op").any():
            return "no times of operators without their inner operators (PyTorch 1.0 and older)"
        return "no device activities in the summary, only calls of the host"
    if trace.is_snapshot:
        return "a memory snapshot without a timeline: use traceana memory"
    if "printed_total_ns" in trace.meta.properties:
        total = trace.meta.properties["printed_total_ns"]
        return f"no rows in the summary, only the printed total of {total:,} ns"
    if trace.tables.activities.height:
        return (
            f"no work: all {trace.tables.activities.height} activities are synchronization events"
        )
    if {"selected_steps", "selected_devices", "selected_ranks"} & trace.meta.properties.keys():
        return "no activities in the selected steps, devices and ranks"
    # The profiler's own work is nothing that the program marked.
    rows = {name: trace.tables[name].height for name in ("ops", "calls", "counters")}
    rows["ranges"] = int((trace.tables.ranges["kind"] != "overhead").sum())
    has = ", ".join(
        counted(rows[table], noun, nouns)
        for table, noun, nouns in (
            ("ops", "operator", "operators"),
            ("calls", "runtime call", "runtime calls"),
            ("ranges", "range", "ranges"),
            ("counters", "kernel launch with counters", "kernel launches with counters"),
        )
        if rows[table]
    )
    if pairs := _unread_pairs(trace):
        has = f"{counted(pairs, 'pair', 'pairs')} of begin and end events, not read"
    why = f": {reason}" if (reason := unsupported_driver(trace)) is not None else ""
    return f"no device activities in the file{f', only {has}' if has else ''}{why}"


def _unread_pairs(trace: Trace) -> int:
    """Return the number of pairs that begin and end asynchronous work in a Chrome trace."""
    phases = trace.tables.ledger.filter(reason="unknown_category")
    phase = phases["detail"].str.split(" ").list.first()
    return max(int(phases.filter(phase == mark)["count"].sum()) for mark in "be")


def unsupported_driver(trace: Trace) -> str | None:
    """Return that the profiler does not support the driver, in its own diagnostics; else None."""
    driver = trace.meta.properties.get("unsupported_driver")
    if driver is None:
        return None
    return f"{trace.meta.producer} does not support driver {driver}: use a newer nsys"
