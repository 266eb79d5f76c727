"""The course of a device's memory: step by step, and in equal slices of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.memory.events import PLACE
from traceana.analyze.memory.peaks import in_steps
from traceana.enrich.nesting import to_rows

if TYPE_CHECKING:
    from traceana.trace import Trace

SLICES: Final = 40


def by_step(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Return one row a device and step of its rank.

    Columns: ``rank``, ``device``, ``step`` (number), ``step_row``, ``allocations``,
    ``peak_bytes`` (the most that was allocated while the step lasted, what there was at its begin
    counted), ``end_bytes`` (at its end) and ``growth_bytes`` (over the end of the step before; null
    for the first). Steps before the first event of a device have none of it.
    """
    number = pl.col("rank").cast(pl.Int64).fill_null(-1).alias("of_rank")
    steps = (
        trace.steps.with_row_index("step_row")
        .with_columns(number, (pl.col("start") + pl.col("duration")).alias("until"))
        .select("step_row", pl.col("number").alias("step"), "of_rank", "start", "until")
    )
    parts = []
    for place in events.partition_by(PLACE, maintain_order=True):
        rank = place.select(number).item(0, 0)
        own = steps.filter(pl.col("of_rank") == rank).sort("start")
        during = (
            in_steps(trace, place)
            .group_by("step_row")
            .agg(
                pl.col("allocated").max().alias("most"),
                (pl.col("bytes") > 0).sum().cast(pl.Int64).alias("allocations"),
            )
        )
        at_begin, at_end = (
            _at(place["time"], place["allocated"], own[edge]) for edge in ("start", "until")
        )
        parts.append(
            own.with_columns(at_begin.alias("begin_bytes"), at_end.alias("end_bytes"))
            .join(during, on="step_row", how="left", maintain_order="left")
            .select(
                pl.lit(place["rank"][0], pl.Int32).alias("rank"),
                pl.lit(place["device"][0], pl.Int32).alias("device"),
                "step",
                "step_row",
                pl.col("allocations").fill_null(0),
                pl.max_horizontal("begin_bytes", "most").alias("peak_bytes"),
                "end_bytes",
                (pl.col("end_bytes") - pl.col("end_bytes").shift(1)).alias("growth_bytes"),
            )
            .filter(pl.col("end_bytes").is_not_null())
        )
    return pl.concat(parts).sort("step_row", *PLACE, nulls_last=True, maintain_order=True)


def by_time(events: pl.DataFrame) -> pl.DataFrame:
    """Return the time of each device's events in 40 equal slices, fewer where it is shorter.

    Columns: ``rank``, ``device``, ``start_ns``, and ``allocated_bytes`` and ``reserved_bytes``, the
    most of each in the slice, what there was at its begin counted.
    """
    parts = []
    for place in events.partition_by(PLACE, maintain_order=True):
        time = place["time"].to_numpy()
        first, span = int(time[0]), int(time[-1] - time[0]) + 1
        slices = min(SLICES, span)
        starts = first + np.arange(slices) * span // slices
        of = pl.Series("slice", np.searchsorted(starts, time, side="right") - 1)
        most = place.group_by(of).agg(pl.col("allocated", "reserved").max())
        frame = pl.DataFrame({"slice": np.arange(slices), "start_ns": starts})
        frame = frame.join(most, on="slice", how="left", maintain_order="left")
        begun = [
            _at(place["time"], place[column], frame["start_ns"]).alias(f"{column}_begin")
            for column in ("allocated", "reserved")
        ]
        parts.append(
            frame.with_columns(begun).select(
                pl.lit(place["rank"][0], pl.Int32).alias("rank"),
                pl.lit(place["device"][0], pl.Int32).alias("device"),
                "start_ns",
                pl.max_horizontal("allocated", "allocated_begin").alias("allocated_bytes"),
                pl.max_horizontal("reserved", "reserved_begin").alias("reserved_bytes"),
            )
        )
    return pl.concat(parts).sort(PLACE, nulls_last=True, maintain_order=True)


def _at(times: pl.Series, values: pl.Series, moments: pl.Series) -> pl.Series:
    """Return the value after the last of the events before each moment; null before all of them."""
    place = np.searchsorted(times.to_numpy(), moments.to_numpy(), side="left") - 1
    return values.gather(to_rows(place.astype(np.int64)))
