"""The peak of each device: when it was, and what was allocated then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.layers.places import OUTSIDE, places
from traceana.analyze.memory.events import PLACE, allocations

if TYPE_CHECKING:
    from traceana.trace import Trace

NO_OPERATOR: Final = "(no operator)"
EARLIER: Final = "(before the recording)"
"""What holds the memory whose allocation is not in the trace."""

UNTOLD: Final = "(no addresses recorded)"
"""What holds all memory of a device whose allocations and frees cannot be told apart."""


def within_steps(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Return the events of the steps that are selected; all where none are."""
    if "selected_steps" not in trace.meta.properties:
        return events
    return in_steps(trace, events).filter(pl.col("step_row").is_not_null()).drop("step_row")


def in_steps(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Return ``events`` with ``step_row``, the step of their rank that was running, or null."""
    steps = trace.steps.with_row_index("step_row").select(
        "step_row", "rank", "start", (pl.col("start") + pl.col("duration")).alias("until")
    )
    # Ranks may be null, which no join by groups would take for equal.
    number = pl.col("rank").cast(pl.Int64).fill_null(-1).alias("of_rank")
    return (
        # Peaks of several devices are in the order of the devices.
        events.with_row_index("of_event")
        .with_columns(number)
        .sort("time", maintain_order=True)
        .join_asof(
            steps.with_columns(number).drop("rank").sort("start", "step_row"),
            left_on="time",
            right_on="start",
            by="of_rank",
            strategy="backward",
            check_sortedness=False,
        )
        .with_columns(pl.when(pl.col("time") < pl.col("until")).then("step_row").alias("step_row"))
        .sort("of_event")
        .drop("of_event", "of_rank", "until", "start")
    )


def peaks(events: pl.DataFrame) -> pl.DataFrame:
    """Return the event of each device after which most was allocated: the first of equal ones."""
    return (
        events.sort("allocated", descending=True, maintain_order=True)
        .unique(PLACE, keep="first", maintain_order=True)
        .sort(PLACE, nulls_last=True)
    )


def alive(trace: Trace, events: pl.DataFrame, at: pl.DataFrame) -> pl.DataFrame:
    """Return what was allocated at the peaks ``at`` of the devices, largest first.

    ``events`` are all of the recording. Columns: ``rank``, ``device``, ``layer``, ``operator``,
    ``bytes``. What none of the allocations accounts for, having been allocated before the recording
    began, is one row a device, so that its rows add up to its peak; there is none where the events
    tell of more than the allocator's own count.
    """
    moment = at.select(*PLACE, pl.col("event").alias("peak"), "allocated")
    held = (
        allocations(events)
        .join(moment, on=PLACE, how="inner", nulls_equal=True, maintain_order="left")
        .filter(
            (pl.col("event") <= pl.col("peak"))
            & (pl.col("freed_event").is_null() | (pl.col("freed_event") > pl.col("peak")))
        )
    )
    known = held.group_by(PLACE).agg(pl.col("bytes").sum().alias("known"))
    addresses = events.group_by(PLACE).agg(pl.col("address").is_not_null().any().alias("told"))
    holder = pl.when("told").then(pl.lit(EARLIER)).otherwise(pl.lit(UNTOLD))
    earlier = (
        moment.join(known, on=PLACE, how="left", nulls_equal=True)
        .join(addresses, on=PLACE, how="left", nulls_equal=True)
        .select(
            *PLACE,
            holder.alias("layer"),
            holder.alias("operator"),
            (pl.col("allocated") - pl.col("known").fill_null(0)).alias("bytes"),
        )
        .filter(pl.col("bytes") > 0)
    )
    named = held.select(
        *PLACE,
        layer_names(trace, held["layer"]),
        operator_names(trace, held["op"]),
        "bytes",
    )
    return pl.concat([named, earlier]).sort(
        *PLACE, "bytes", descending=[False, False, True], nulls_last=True, maintain_order=True
    )


def layer_names(trace: Trace, rows: pl.Series) -> pl.Series:
    """Return what the layers of these rows are called."""
    named = places(trace.layers, "layer", None)["layer"]
    return named.gather(rows).fill_null(OUTSIDE).alias("layer")


def operator_names(trace: Trace, rows: pl.Series) -> pl.Series:
    """Return the names of the operators of these rows."""
    names = trace.ops["name"].gather(rows).cast(pl.String)
    return names.fill_null(NO_OPERATOR).alias("operator")
