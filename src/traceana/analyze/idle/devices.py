"""What each device did with its time: busy, idle, how it was fed, what overlapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.analyze.classes import category_of
from traceana.analyze.idle.lanes import Lane
from traceana.analyze.idle.launches import launches
from traceana.analyze.idle.moments import Moments, busy, moments
from traceana.analyze.idle.windows import PLACE
from traceana.analyze.intervals import Busy, union
from traceana.analyze.transfers.exposed import COMPUTING
from traceana.analyze.work import why_no_work
from traceana.result import Result, sums
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.trace import Trace

COLUMNS: Final = (
    *("rank", "device", "span_ns", "busy_ns", "kernel_ns", "memops_only_ns", "idle_ns"),
    *("idle_share", "launches", "step_launches", "launch_bound", "launch_bound_ns"),
    *("launch_bound_share", "queue_median_ns", "queue_p95_ns", "copy_ns", "copy_exposed_ns"),
    *("collective_ns", "collective_exposed_ns"),
)


def devices(trace: Trace, *, found: Moments | None = None) -> Result:
    """Return one row a device that worked.

    ``span_ns``, ``busy_ns``, ``idle_ns``, ``idle_share``
        How long it is looked at (:func:`traceana.analyze.idle.windows.windows`), the union of all
        work in that time, of whatever step, and what is left; ``busy_ns + idle_ns == span_ns``.
    ``kernel_ns``, ``memops_only_ns``
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
    looked_at = found.windows
    frame = looked_at.group_by(PLACE, maintain_order=True).agg(
        (pl.col("end") - pl.col("start")).sum().alias("span_ns")
    )
    inside = looked_at.select(
        *PLACE, *(one.within(looked_at).alias(name) for name, one in _unions(trace, found).items())
    )
    sums_of = inside.group_by(PLACE).agg(pl.all().sum())
    frame = frame.join(sums_of, on=PLACE, nulls_equal=True)
    on_gpu = pl.col("device") != CPU_DEVICE
    span, busy_ns = pl.col("span_ns"), pl.col("busy_ns")
    frame = (
        frame.with_columns(
            pl.when(on_gpu).then("kernel_ns").otherwise("busy_ns").alias("kernel_ns")
        )
        .with_columns(
            (busy_ns - pl.col("kernel_ns")).alias("memops_only_ns"),
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
        .join(launches(trace, found.measured), on=PLACE, how="left", nulls_equal=True)
        .select(COLUMNS)
        .sort(PLACE)
    )
    notes = () if frame.height else (why_no_work(trace),)
    return Result(frame, sums(frame, *_SUMMED), notes)


_SUMMED: Final = ("span_ns", "busy_ns", "kernel_ns", "memops_only_ns", "idle_ns")


def _unions(trace: Trace, found: Moments) -> dict[str, Busy]:
    """Return the unions of all work, of kernels, of copies, of collectives, and of some together.

    ``with_copies``: kernels and copies; ``computing``: kernels that are no collectives.
    """
    activities = trace.whole.activities
    kind = activities["kind"]
    kernel, copy = (kind.is_in(kinds).to_numpy() for kinds in (COMPUTING, ["memcpy"]))
    collective = kernel & _collective(trace.whole)
    wanted = {
        "kernel_ns": kernel,
        "copy_ns": copy,
        "with_copies": kernel | copy,
        "collective_ns": collective,
        "computing": kernel & ~collective,
    }
    return {
        "busy_ns": busy(found),
        **{name: _union(found.lanes, rows) for name, rows in wanted.items()},
    }


def _collective(trace: Trace) -> npt.NDArray[np.bool_]:
    return category_of(trace.activities, trace).eq("collective").to_numpy()


def _union(lanes: Sequence[Lane], rows: npt.NDArray[np.bool_]) -> Busy:
    """Return when ``rows`` of activities ran."""
    unions = {}
    for lane in lanes:
        kept = rows[lane.row]
        unions[lane.place] = union(lane.start[kept], lane.end[kept])
    return Busy(unions)
