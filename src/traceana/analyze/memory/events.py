"""The allocator's events in order: what was allocated after each, and where the host was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.thread_numbers import thread_numbers
from traceana.enrich.nesting import Nesting, to_rows

if TYPE_CHECKING:
    from traceana.trace import Trace

PLACE: Final = ("rank", "device")


def events(trace: Trace) -> pl.DataFrame:
    """Return the allocations and frees of ``trace``, in order of time, those of one moment as the
    file has them; of the devices and ranks that are selected.

    Columns: ``event`` (counted over all), ``rank``, ``device`` (null where the trace does not tell
    it), ``time``, ``address``, ``bytes`` (negative: freed), ``allocated`` (in all after the event:
    the allocator's own count, else the sum of the events from the recording's beginning),
    ``counted`` (whether it is such a sum), ``reserved`` (null where nothing is told), ``op`` (row
    of the innermost operator then running on the thread) and ``layer`` (row of ``layers``).
    """
    memory = trace.memory
    for key, column in (("selected_devices", "device"), ("selected_ranks", "rank")):
        wanted = trace.meta.properties.get(key)
        if wanted is not None and not (column == "rank" and memory["rank"].null_count()):
            memory = memory.filter(pl.col(column).is_in(wanted))
    op_key, key_ = thread_numbers(trace.ops, memory)
    ops = Nesting.of(op_key, trace.ops["start"].to_numpy(), trace.ops["duration"].to_numpy())
    op = to_rows(ops.innermost(key_, memory["time"].to_numpy()))
    unknown = pl.col("allocated").is_null().any().over(PLACE)
    reserved = pl.col("reserved")
    return (
        memory.with_columns(op.alias("op"), trace.ops["layer"].gather(op).alias("layer"))
        .sort("time", maintain_order=True)
        .with_row_index("event")
        .with_columns(unknown.alias("counted"))
        .with_columns(
            pl.when("counted")
            .then(pl.col("bytes").cum_sum().over(PLACE))
            .otherwise("allocated")
            .alias("allocated"),
            # An allocator that does not say what it holds in reserve says 0 throughout.
            pl.when((reserved > 0).any().over(PLACE)).then(reserved).alias("reserved"),
        )
        .select(
            "event", *PLACE, "time", "address", "bytes", "allocated", "counted", "reserved", "op",
            "layer",
        )
    )  # fmt: skip


def allocations(events: pl.DataFrame) -> pl.DataFrame:
    """Return one row an allocation of :func:`events`, with the free of its address.

    Columns: ``rank``, ``device``, ``event``, ``time``, ``bytes``, ``op``, ``layer``, and of the
    next event of the address ``freed_event`` and ``freed_time``; null for what is not freed while
    the recording lasts. Events without an address cannot be matched and are left out.
    """
    each = [*PLACE, "address"]
    return (
        events.filter(pl.col("address").is_not_null())
        .with_columns(
            pl.col("event").shift(-1).over(each).alias("freed_event"),
            pl.col("time").shift(-1).over(each).alias("freed_time"),
        )
        .filter(pl.col("bytes") > 0)
        .select(*PLACE, "event", "time", "bytes", "op", "layer", "freed_event", "freed_time")
    )
