"""The windows of time that are looked at, and how much of each gap lies in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.idle.gaps import recording
from traceana.analyze.intervals import union
from traceana.analyze.steps import devices_used, measured_steps
from traceana.analyze.work import work

if TYPE_CHECKING:
    from traceana.trace import Trace

PLACE: Final = ("rank", "device")


def windows(trace: Trace) -> pl.DataFrame:
    """Return ``rank``, ``device``, ``start``, ``end`` of what is looked at, disjoint by device.

    The recording from its first event to its last, or the steps that were selected, on the devices
    that they used.
    """
    if "selected_steps" in trace.meta.properties:
        found = []
        for (rank, device), rows in step_windows(trace).partition_by(PLACE, as_dict=True).items():
            start, end = union(rows["start"].to_numpy(), rows["end"].to_numpy())
            found.append(
                pl.DataFrame({"start": start, "end": end}).select(
                    pl.lit(rank, pl.Int32).alias("rank"),
                    pl.lit(device, pl.Int32).alias("device"),
                    "start",
                    "end",
                )
            )
        return pl.concat(found) if found else step_windows(trace).drop("step")
    used = work(trace).select(PLACE).drop_nulls("device").unique().sort(PLACE)
    return used.join(
        recording(trace.whole), on="rank", nulls_equal=True, maintain_order="left"
    ).rename({"begin": "start", "finish": "end"})


def step_windows(trace: Trace) -> pl.DataFrame:
    """Return ``step`` (row), ``rank``, ``device``, ``start``, ``end`` of steps and devices used."""
    steps = trace.steps.select(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("step"),
        "start",
        (pl.col("start") + pl.col("duration")).alias("end"),
    )
    return (
        devices_used(work(trace))
        .join(steps, on="step")
        .select("step", *PLACE, "start", "end")
        .sort("step", *PLACE)
    )


def measured_windows(trace: Trace) -> pl.DataFrame:
    """Return the rows of :func:`step_windows` that per-step figures are of."""
    return step_windows(trace).filter(pl.col("step").is_in(measured_steps(trace).rows))


def within(gaps: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return each piece of a gap in a window: ``gap``, ``window`` (rows of both), ``time_ns``.

    ``gaps`` are disjoint by device; windows may overlap. By gap and window.
    """
    parts = [pl.DataFrame(schema={"gap": pl.UInt32, "window": pl.UInt32, "time_ns": pl.Int64})]
    numbered = windows.with_row_index("window").partition_by(PLACE, as_dict=True)
    for place, rows in (
        gaps.select(*PLACE, "start", "end")
        .with_row_index("gap")
        .sort("start")
        .partition_by(PLACE, as_dict=True, maintain_order=True)
        .items()
    ):
        if place not in numbered:
            continue
        here = numbered[place]
        start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
        begin, finish = here["start"].to_numpy(), here["end"].to_numpy()
        first = np.searchsorted(end, begin, side="right")
        count = np.maximum(np.searchsorted(start, finish, side="left") - first, 0)
        window = np.repeat(np.arange(len(begin)), count)
        gap = np.arange(len(window)) - np.repeat(np.cumsum(count) - count - first, count)
        time = np.minimum(end[gap], finish[window]) - np.maximum(start[gap], begin[window])
        parts.append(
            pl.DataFrame(
                [rows["gap"].gather(gap), here["window"].gather(window), pl.Series("time_ns", time)]
            )
        )
    return pl.concat(parts)
