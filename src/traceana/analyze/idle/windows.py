"""The windows of time that are looked at, and how much of each gap lies in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.intervals import rows_by_place, union
from traceana.analyze.numbering import distinct
from traceana.analyze.steps import devices_used, measured_steps
from traceana.analyze.work import work

if TYPE_CHECKING:
    from traceana.trace import Trace

PLACE: Final = ("rank", "device")


def windows(trace: Trace, recorded: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return ``rank``, ``device``, ``start``, ``end`` of what is looked at, disjoint by device.

    The recording from its first event to its last (``recorded``, of
    :func:`traceana.analyze.idle.gaps.recording`), or the ``steps`` that were selected, of
    :func:`step_windows`, on the devices that they used.
    """
    if not by_steps(trace):
        used = distinct(work(trace, *PLACE)).drop_nulls("device").sort(PLACE)
        return used.join(recorded, on="rank", nulls_equal=True, maintain_order="left").rename(
            {"begin": "start", "finish": "end"}
        )
    found = [steps.drop("step").clear()]
    start, end = steps["start"].to_numpy(), steps["end"].to_numpy()
    for (rank, device), rows in rows_by_place(steps):
        begins, finishes = union(start[rows], end[rows])
        found.append(
            pl.DataFrame({"start": begins, "end": finishes}).select(
                pl.lit(rank, pl.Int32).alias("rank"),
                pl.lit(device, pl.Int32).alias("device"),
                "start",
                "end",
            )
        )
    return pl.concat(found)


def by_steps(trace: Trace) -> bool:
    """Tell whether ``trace`` is a selection of steps, and its windows are theirs."""
    return "selected_steps" in trace.meta.properties


def step_windows(trace: Trace) -> pl.DataFrame:
    """Return ``step`` (row), ``rank``, ``device``, ``start``, ``end`` of steps and devices used."""
    steps = trace.steps.select(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("step"),
        "start",
        (pl.col("start") + pl.col("duration")).alias("end"),
    )
    return (
        devices_used(work(trace, "step", *PLACE))
        .join(steps, on="step")
        .select("step", *PLACE, "start", "end")
        .sort("step", *PLACE)
    )


def measured_windows(trace: Trace) -> pl.DataFrame:
    """Return the rows of :func:`step_windows` that per-step figures are of."""
    return measured_of(trace, step_windows(trace))


def measured_of(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """Return those of ``steps``, of :func:`step_windows`, that per-step figures are of."""
    return steps.filter(pl.col("step").is_in(measured_steps(trace).rows))


def within(gaps: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return each piece of a gap in a window: ``gap``, ``window`` (rows of both), ``time_ns``.

    ``gaps`` are disjoint by device, and in order of time; windows may overlap.
    """
    parts = [pl.DataFrame(schema={"gap": pl.UInt32, "window": pl.UInt32, "time_ns": pl.Int64})]
    all_starts, all_ends = gaps["start"].to_numpy(), gaps["end"].to_numpy()
    all_begins, all_finishes = windows["start"].to_numpy(), windows["end"].to_numpy()
    numbered = dict(rows_by_place(windows))
    for place, rows in rows_by_place(gaps):
        if place not in numbered:
            continue
        here = numbered[place]
        start, end = all_starts[rows], all_ends[rows]
        begin, finish = all_begins[here], all_finishes[here]
        first = np.searchsorted(end, begin, side="right")
        count = np.maximum(np.searchsorted(start, finish, side="left") - first, 0)
        window = np.repeat(np.arange(len(begin)), count)
        gap = np.arange(len(window)) - np.repeat(np.cumsum(count) - count - first, count)
        time = np.minimum(end[gap], finish[window]) - np.maximum(start[gap], begin[window])
        parts.append(
            pl.DataFrame(
                {
                    "gap": rows[gap].astype(np.uint32),
                    "window": here[window].astype(np.uint32),
                    "time_ns": time,
                }
            )
        )
    return pl.concat(parts)
