"""What each device did with its time: busy, idle, how it was fed, what overlapped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.classes import SOURCE, classified
from traceana.analyze.idle.launches import launches
from traceana.analyze.idle.moments import Moments, moments
from traceana.analyze.idle.windows import PLACE, windows
from traceana.analyze.intervals import Busy
from traceana.analyze.result import Result, sums
from traceana.analyze.transfers.exposed import COMPUTING
from traceana.analyze.work import why_no_work, work
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.trace import Trace

COLUMNS: Final = (
    *("rank", "device", "span_ns", "busy_ns", "kernel_ns", "copy_only_ns", "idle_ns"),
    *("idle_share", "launches", "step_launches", "launch_bound", "launch_bound_ns"),
    *("launch_bound_share", "queue_median_ns", "queue_p95_ns", "copy_ns", "copy_exposed_ns"),
    *("collective_ns", "collective_exposed_ns"),
)


def devices(trace: Trace, *, found: Moments | None = None) -> Result:
    """Return one row a device that worked.

    ``span_ns``, ``busy_ns``, ``idle_ns``, ``idle_share``
        How long it is looked at (:func:`traceana.analyze.idle.windows.windows`), the union of all
        work in that time, of whatever step, and what is left; ``busy_ns + idle_ns == span_ns``.
    ``kernel_ns``, ``copy_only_ns``
        The union of kernels (and of CUDA graphs recorded whole); busy without a kernel: copies and
        sets of memory.
    ``launches`` … ``queue_p95_ns``
        As of :func:`traceana.analyze.idle.launches.launches`.
    ``copy_ns``, ``copy_exposed_ns``
        The union of copies, and what of it no kernel runs beside.
    ``collective_ns``, ``collective_exposed_ns``
        The union of the kernels of collectives, and what of it no other kernel runs beside.

    On the host (traces of the CPU) all from ``launches`` on are null, and ``kernel_ns`` is its busy
    time. ``found`` as of :func:`traceana.analyze.idle.table.idle`.
    """
    found = found or moments(trace)
    looked_at = windows(trace)
    frame = looked_at.group_by(PLACE, maintain_order=True).agg(
        (pl.col("end") - pl.col("start")).sum().alias("span_ns")
    )
    for name, busy in _unions(trace, found).items():
        inside = looked_at.select(PLACE).with_columns(busy.within(looked_at).alias(name))
        frame = frame.join(
            inside.group_by(PLACE).agg(pl.col(name).sum()), on=PLACE, nulls_equal=True
        )
    on_gpu = pl.col("device") != CPU_DEVICE
    span, busy_ns = pl.col("span_ns"), pl.col("busy_ns")
    frame = (
        frame.with_columns(
            pl.when(on_gpu).then("kernel_ns").otherwise("busy_ns").alias("kernel_ns")
        )
        .with_columns(
            (busy_ns - pl.col("kernel_ns")).alias("copy_only_ns"),
            (span - busy_ns).alias("idle_ns"),
            pl.when(span > 0).then((span - busy_ns) / span).alias("idle_share"),
            pl.when(on_gpu).then("copy_ns").alias("copy_ns"),
            pl.when(on_gpu)
            .then(pl.col("with_copies") - pl.col("kernel_ns"))
            .alias("copy_exposed_ns"),
            pl.when(on_gpu).then("collective_ns").alias("collective_ns"),
            pl.when(on_gpu)
            .then(pl.col("kernel_ns") - pl.col("computing"))
            .alias("collective_exposed_ns"),
        )
        .join(launches(trace), on=PLACE, how="left", nulls_equal=True)
        .select(COLUMNS)
        .sort(PLACE)
    )
    notes = () if frame.height else (why_no_work(trace),)
    return Result(frame, sums(frame, *_SUMMED), notes)


_SUMMED: Final = ("span_ns", "busy_ns", "kernel_ns", "copy_only_ns", "idle_ns")


def _unions(trace: Trace, found: Moments) -> dict[str, Busy]:
    """Return the unions of all work, of kernels, of copies, of collectives, and of some together.

    ``with_copies``: kernels and copies; ``computing``: kernels that are no collectives.
    """
    activities = work(trace.whole).filter(pl.col("device") != CPU_DEVICE)
    kernels = activities.filter(pl.col("kind").is_in(COMPUTING))
    distinct = kernels.select(SOURCE).unique()
    category = classified(distinct, trace.whole).filter(pl.col("category") == "collective")
    copies = activities.filter(pl.col("kind") == "memcpy")
    return {
        "busy_ns": found.busy,
        "kernel_ns": Busy.of(kernels),
        "copy_ns": Busy.of(copies),
        "with_copies": Busy.of(pl.concat([kernels, copies])),
        "collective_ns": Busy.of(kernels.join(category, on=SOURCE, how="semi", nulls_equal=True)),
        "computing": Busy.of(kernels.join(category, on=SOURCE, how="anti", nulls_equal=True)),
    }
