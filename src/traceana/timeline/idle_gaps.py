"""The gaps of each device: the analyzed windows, the work in them, the idle time between.

A gap is time in which a device runs nothing, from the end of the last work until the next starts.
``idle_causes.py`` finds the cause of each.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from traceana.columns.distinct import distinct
from traceana.columns.intervals import PER_DEVICE, Device, rows_by_device, union
from traceana.columns.nesting import NONE, Ints, to_rows
from traceana.timeline.steps import device_windows, measured_steps, step_windows
from traceana.timeline.work import work
from traceana.trace import per_trace
from traceana.trace.schema import CPU_DEVICE, TABLES, TIME_COLUMNS

if TYPE_CHECKING:
    from traceana.trace import Trace

MEANINGS: Final = {
    "profiler": "profiler overhead on the host",
    "driver": "driver: code compiled or loaded, or command buffer full",
    "allocation": "host in a memory allocation or free (cudaMalloc, cudaFree …)",
    "synchronization": "host in a synchronizing call",
    "copy": "host in a copy call, or next work waiting for a copy or its staging",
    "collective": "next work, or the host, waiting for a collective",
    "data_loader": "host waiting for the next batch",
    "operator": "host in a framework operator, before its launch",
    "host": "host outside operators: Python or other code",
    "event": "next work waiting for another stream or device",
    "launch_latency": "launch call running when the GPU went idle: to the start of the work",
    "queued": "next work already launched when the work before it ended, or long before its start",
    "same_launch": "work before and after launched by one call: CUDA graph, parts of a copy",
    "not_recorded": "launch of the next work not in the trace",
    "before_first": "before the first activity of this device, others active",
    "after_last": "after the last activity of this device, in the capture",
}
"""What each cause means, in a few words (docs/idle.md). The first nine are activities of the host,
the more specific ones first."""

CAUSES: Final = tuple(MEANINGS)
Cause: Final = pl.Enum(CAUSES)

(
    PROFILER, DRIVER, ALLOCATION, SYNCHRONIZATION, COPY, COLLECTIVE, DATA_LOADER, OPERATOR,
    HOST, EVENT, LAUNCH_LATENCY, QUEUED, SAME_LAUNCH, NOT_RECORDED, BEFORE_FIRST, AFTER_LAST,
) = range(len(CAUSES))  # fmt: skip

_EVENT_TABLES: Final = ("activities", "calls", "ops", "ranges", "links", "memory")
"""Tables with one row per event of the file."""


@per_trace
def capture(trace: Trace) -> pl.DataFrame:
    """Return ``rank``, ``start``, ``end`` of the capture, for each rank with work.

    The capture is the time from the first device activity of a rank to the end of its last, on any
    of its devices, and all of the steps that launched work.
    """
    worked = work(trace, "rank", "device", "start", "duration").drop_nulls("device")
    worked = worked.with_columns((pl.col("start") + pl.col("duration")).alias("end"))
    limits = (pl.col("start").min(), pl.col("end").max())
    parts = [times.group_by("rank").agg(limits) for times in (worked, device_windows(trace))]
    return pl.concat(parts).group_by("rank").agg(limits)


def capture_ns(trace: Trace) -> int | None:
    """Return the time from the first start to the last end of the capture; None without work."""
    first, last = capture(trace).select(pl.col("start").min(), pl.col("end").max()).row(0)
    return None if first is None else int(last) - int(first)


@per_trace
def outside(trace: Trace) -> pl.DataFrame:
    """Return ``rank``, ``before_ns``, ``after_ns``: time of the recording outside the capture.

    The recording is the time from the first to the last event of a rank's file: activities, calls,
    operators, ranges, flows and allocator events.
    """
    parts = []
    for name in _EVENT_TABLES:
        columns = TIME_COLUMNS[name]
        start, end = pl.min_horizontal(columns), pl.max_horizontal(columns)
        if "duration" in TABLES[name]:
            end += pl.col("duration")
        limits = (start.min().alias("first"), end.max().alias("last"))
        table = trace.tables[name]
        if table["rank"].null_count() == table.height:
            parts.append(table.select(pl.lit(None, pl.Int32).alias("rank"), *limits))
        else:
            parts.append(table.group_by("rank").agg(limits))
    recorded = pl.concat(parts).group_by("rank").agg(pl.col("first").min(), pl.col("last").max())
    return (
        capture(trace)
        .join(recorded, on="rank", nulls_equal=True)
        .select(
            "rank",
            (pl.col("start") - pl.col("first")).clip(0).alias("before_ns"),
            (pl.col("last") - pl.col("end")).clip(0).alias("after_ns"),
        )
    )


def selects_steps(trace: Trace) -> bool:
    """Return whether ``trace`` is a selection of steps, whose windows are then analyzed."""
    return "selected_steps" in trace.meta.properties


def analyzed_windows(trace: Trace) -> pl.DataFrame:
    """Return ``rank``, ``device``, ``start``, ``end`` of the analyzed time, disjoint by device.

    It is the capture for each device with work, or the union of the windows of the selected steps.
    """
    if not selects_steps(trace):
        used = distinct(work(trace, *PER_DEVICE)).drop_nulls("device").sort(PER_DEVICE)
        captured = capture(trace.whole)
        return used.join(captured, on="rank", nulls_equal=True, maintain_order="left")
    steps = device_windows(trace)
    parts = [steps.drop("step").clear()]
    all_starts, all_ends = steps["start"].to_numpy(), steps["end"].to_numpy()
    for device, rows in rows_by_device(steps):
        start, end = union(all_starts[rows], all_ends[rows])
        parts.append(_on_device(device, pl.DataFrame({"start": start, "end": end})))
    return pl.concat(parts)


@per_trace
def measured_windows(trace: Trace) -> pl.DataFrame:
    """Return :func:`~traceana.timeline.steps.device_windows` of the measured steps.

    A measured step that launched nothing counts on the device of its rank, if that is the only one.
    """
    steps = device_windows(trace)
    rows = measured_steps(trace).rows
    measured = steps.filter(pl.col("step").is_in(rows))
    if measured["step"].n_unique() == len(rows):
        return measured
    all_steps = step_windows(trace).with_row_index("step").select("step", "rank", "start", "end")
    without_work = all_steps[list(rows)].join(measured, on="step", how="anti")
    only_device = distinct(steps.select(PER_DEVICE)).filter(pl.len().over("rank") == 1)
    idle_steps = without_work.join(only_device, on="rank", nulls_equal=True).select(steps.columns)
    return pl.concat([measured, idle_steps]).sort("step", *PER_DEVICE)


class DeviceWork(msgspec.Struct, frozen=True):
    """The work of one device in order of its start: ``row`` in activities, ``start``, ``end``."""

    device: Device
    row: Ints
    start: Ints
    end: Ints


def device_work(trace: Trace, devices: Collection[Device]) -> list[DeviceWork]:
    """Return the work of ``devices`` except the CPU; equal starts stay in the trace's order."""
    columns = trace.tables.activities.select("rank", "device", "start", "duration", "kind")
    worked = columns.select(
        (pl.col("kind") != "sync") & (pl.col("device") != CPU_DEVICE).fill_null(value=False)
    ).to_series()
    activity_rows = None if worked.all() else np.flatnonzero(worked.to_numpy())
    if activity_rows is not None:
        columns = columns.filter(worked)
    starts, durations = columns["start"].to_numpy(), columns["duration"].to_numpy()
    work_of_devices = []
    for device, rows in rows_by_device(columns):
        if device not in devices:
            continue
        start = starts[rows]
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            start, rows = start[order], rows[order]
        row = rows if activity_rows is None else activity_rows[rows]
        work_of_devices.append(DeviceWork(device, row, start, start + durations[rows]))
    return work_of_devices


def gaps(work: DeviceWork, start: int, end: int, step: int | None) -> pl.DataFrame:
    """Return the gaps of a device in the capture from ``start`` to ``end``, in order of time. O(n).

    Columns: ``rank``, ``device``, ``start``, ``end``, ``before`` (row of the activity that ended
    last), ``after`` (row of the one that starts next; of several the first in the table), null
    before the first and after the last activity, and ``cause``: ``BEFORE_FIRST``, ``AFTER_LAST``,
    else null.

    ``step`` is the start of the step that launched the first work, None without one. The time
    before the first work ends there; the time from there to the first work is a normal gap.
    """
    starts, ends, row = work.start, work.end, work.row
    first_end = starts[0] if step is None else min(max(step, start), starts[0])
    latest_end = np.maximum.accumulate(ends)
    # Where the maximum grows, that activity is the last to end so far.
    grows = np.concatenate(([True], ends[1:] > latest_end[:-1]))
    last = np.maximum.accumulate(np.where(grows, np.arange(len(ends)), 0))
    idle = np.flatnonzero(starts[1:] > latest_end[:-1])
    # Before the first step's begin, from there to the first work, between work, after the last.
    gap_start = np.concatenate(([start, first_end], latest_end[idle], latest_end[-1:]))
    gap_end = np.concatenate(([first_end], starts[:1], starts[idle + 1], [end]))
    before = np.concatenate(([NONE, NONE], row[last[idle]], row[last[-1:]]))
    after = np.concatenate((row[:1], row[:1], row[idle + 1], [NONE]))
    cause = np.full(len(gap_start), NONE, dtype=np.int64)
    cause[0], cause[-1] = BEFORE_FIRST, AFTER_LAST
    filled = gap_end > gap_start
    return _on_device(
        work.device,
        pl.DataFrame(
            {
                "start": gap_start[filled],
                "end": gap_end[filled],
                "before": to_rows(before[filled]),
                "after": to_rows(after[filled]),
                "cause": to_rows(cause[filled]).cast(pl.UInt8).cat.to(Cause),
            }
        ),
    )


def _on_device(device: Device, frame: pl.DataFrame) -> pl.DataFrame:
    """Return ``frame`` with ``rank`` and ``device`` in front."""
    rank, number = device
    return frame.select(
        pl.lit(rank, pl.Int32).alias("rank"), pl.lit(number, pl.Int32).alias("device"), pl.all()
    )


def within(gaps: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return each part of a gap in a window: ``gap``, ``window`` (rows of both), ``time_ns``.

    ``gaps`` are disjoint by device, and in order of time; windows may overlap.
    """
    parts = [pl.DataFrame(schema={"gap": pl.UInt32, "window": pl.UInt32, "time_ns": pl.Int64})]
    all_starts, all_ends = gaps["start"].to_numpy(), gaps["end"].to_numpy()
    window_starts, window_ends = windows["start"].to_numpy(), windows["end"].to_numpy()
    windows_of = dict(rows_by_device(windows))
    for device, gap_rows in rows_by_device(gaps):
        if device not in windows_of:
            continue
        window_rows = windows_of[device]
        start, end = all_starts[gap_rows], all_ends[gap_rows]
        opens, closes = window_starts[window_rows], window_ends[window_rows]
        # Each window has consecutive gaps: ``count`` of them from the ``first``.
        first = np.searchsorted(end, opens, side="right")
        count = np.maximum(np.searchsorted(start, closes, side="left") - first, 0)
        window = np.repeat(np.arange(len(opens)), count)
        gap = np.arange(len(window)) - np.repeat(np.cumsum(count) - count - first, count)
        time = np.minimum(end[gap], closes[window]) - np.maximum(start[gap], opens[window])
        parts.append(
            pl.DataFrame(
                {
                    "gap": gap_rows[gap].astype(np.uint32),
                    "window": window_rows[window].astype(np.uint32),
                    "time_ns": time,
                }
            )
        )
    return pl.concat(parts)
