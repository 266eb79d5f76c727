"""The allocator's events in order of time, the allocations, and the live ones at the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.intervals import PER_DEVICE
from traceana.analyze.layer_rows import OUTSIDE, layer_keys
from traceana.analyze.per_trace import per_small_trace
from traceana.enrich.nesting import Nesting, to_rows
from traceana.enrich.numbering import thread_numbers

if TYPE_CHECKING:
    from collections.abc import Collection

    from traceana.trace import Trace


def events(trace: Trace) -> pl.DataFrame:
    """Return the allocations and frees of ``trace`` on the selected devices and ranks, by time.

    Events of the same time stay in the file's order. Columns: ``event`` (counted over all),
    ``rank``, ``device`` (null where not recorded), ``time``, ``address``, ``bytes`` (negative:
    freed), ``allocated`` (total after the event: the allocator's own figure, else the sum of the
    events since the capture began), ``counted`` (whether it is such a sum), ``reserved`` (null
    where not recorded), ``op`` (row of the innermost operator on the thread at that time) and
    ``layer`` (row of ``layers``).
    """
    chosen = (trace.meta.properties.get(key) for key in ("selected_devices", "selected_ranks"))
    return _events(trace.whole, *chosen)


@per_small_trace
def _events(
    trace: Trace, devices: Collection[int] | None, ranks: Collection[int] | None
) -> pl.DataFrame:
    memory = trace.memory
    for wanted, column in ((devices, "device"), (ranks, "rank")):
        if wanted is not None and not (column == "rank" and memory["rank"].null_count()):
            memory = memory.filter(pl.col(column).is_in(wanted))
    op_key, event_key = thread_numbers(trace.ops, memory)
    ops = Nesting.of(op_key, trace.ops["start"].to_numpy(), trace.ops["duration"].to_numpy())
    op = to_rows(ops.innermost(event_key, memory["time"].to_numpy()))
    unknown = pl.col("allocated").is_null().any().over(PER_DEVICE)
    reserved = pl.col("reserved")
    return (
        memory.with_columns(op.alias("op"), trace.ops["layer"].gather(op).alias("layer"))
        .sort("time", maintain_order=True)
        .with_row_index("event")
        .with_columns(unknown.alias("counted"))
        .with_columns(
            pl.when("counted")
            .then(pl.col("bytes").cum_sum().over(PER_DEVICE))
            .otherwise("allocated")
            .alias("allocated"),
            # An allocator that does not report reserved memory writes 0 throughout.
            pl.when((reserved > 0).any().over(PER_DEVICE)).then(reserved).alias("reserved"),
        )
        .select(
            "event", *PER_DEVICE, "time", "address", "bytes", "allocated", "counted", "reserved",
            "op", "layer",
        )
    )  # fmt: skip


def allocations(events: pl.DataFrame) -> pl.DataFrame:
    """Return one row per allocation of :func:`events`, with the free of its address.

    Columns: ``rank``, ``device``, ``event``, ``time``, ``bytes``, ``op``, ``layer``, and
    ``freed_event`` and ``freed_time`` of the next event of the address; null if not freed during
    the capture. Events without an address cannot be matched and are left out.
    """
    each = [*PER_DEVICE, "address"]
    return (
        events.filter(pl.col("address").is_not_null())
        .with_columns(
            pl.col("event").shift(-1).over(each).alias("freed_event"),
            pl.col("time").shift(-1).over(each).alias("freed_time"),
        )
        .filter(pl.col("bytes") > 0)
        .select(*PER_DEVICE, "event", "time", "bytes", "op", "layer", "freed_event", "freed_time")
    )


NO_OPERATOR: Final = "(no operator)"
EARLIER: Final = "(allocated before capture)"
"""The layer and operator of memory without an allocation in the trace."""

NO_ADDRESSES: Final = "(no addresses recorded)"
"""The layer and operator of all memory of a device whose events have no addresses."""


def within_steps(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Return the events of the selected steps; all without a selection."""
    if "selected_steps" not in trace.meta.properties:
        return events
    return in_steps(trace, events).filter(pl.col("step_row").is_not_null()).drop("step_row")


def in_steps(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Return ``events`` with ``step_row``, the step of their rank at that time, or null."""
    steps = trace.steps.with_row_index("step_row").select(
        "step_row", "rank", "start", (pl.col("start") + pl.col("duration")).alias("until")
    )
    # Ranks may be null, which a join by groups does not match.
    number = pl.col("rank").cast(pl.Int64).fill_null(-1).alias("of_rank")
    return (
        # The order is restored afterwards: peaks of devices are in the order of the devices.
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
    """Return the event of each device with the most allocated memory; the first of equal ones."""
    return (
        events.sort("allocated", descending=True, maintain_order=True)
        .unique(PER_DEVICE, keep="first", maintain_order=True)
        .sort(PER_DEVICE, nulls_last=True)
    )


def alive(trace: Trace, events: pl.DataFrame, at: pl.DataFrame) -> pl.DataFrame:
    """Return the allocations that were live at the peaks ``at`` of the devices, largest first.

    ``events`` are all of the capture. Columns: ``rank``, ``device``, ``layer``, ``operator``,
    ``bytes``. A further row per device is the memory allocated before the capture, so that the rows
    add up to the peak; it is missing where the events exceed the allocator's own total.
    """
    peak_of = at.select(*PER_DEVICE, pl.col("event").alias("peak"), "allocated")
    live = (
        allocations(events)
        .join(peak_of, on=PER_DEVICE, how="inner", nulls_equal=True, maintain_order="left")
        .filter(
            (pl.col("event") <= pl.col("peak"))
            & (pl.col("freed_event").is_null() | (pl.col("freed_event") > pl.col("peak")))
        )
    )
    known = live.group_by(PER_DEVICE).agg(pl.col("bytes").sum().alias("known"))
    addresses = events.group_by(PER_DEVICE).agg(
        pl.col("address").is_not_null().any().alias("addressed")
    )
    holder = pl.when("addressed").then(pl.lit(EARLIER)).otherwise(pl.lit(NO_ADDRESSES))
    earlier = (
        peak_of.join(known, on=PER_DEVICE, how="left", nulls_equal=True)
        .join(addresses, on=PER_DEVICE, how="left", nulls_equal=True)
        .select(
            *PER_DEVICE,
            holder.alias("layer"),
            holder.alias("operator"),
            (pl.col("allocated") - pl.col("known").fill_null(0)).alias("bytes"),
        )
        .filter(pl.col("bytes") > 0)
    )
    named = live.select(
        *PER_DEVICE,
        layer_names(trace, live["layer"]),
        operator_names(trace, live["op"]),
        "bytes",
    )
    return pl.concat([named, earlier]).sort(
        *PER_DEVICE, "bytes", descending=[False, False, True], nulls_last=True, maintain_order=True
    )


def layer_names(trace: Trace, rows: pl.Series) -> pl.Series:
    """Return the names of the layers of these rows."""
    named = layer_keys(trace.layers, "layer", None)["layer"]
    return named.gather(rows).fill_null(OUTSIDE).alias("layer")


def operator_names(trace: Trace, rows: pl.Series) -> pl.Series:
    """Return the names of the operators of these rows."""
    names = trace.ops["name"].gather(rows).cast(pl.String)
    return names.fill_null(NO_OPERATOR).alias("operator")
