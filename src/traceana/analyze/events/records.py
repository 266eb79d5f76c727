"""What the trace holds of streams that were told to wait for an event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from traceana.trace import Trace

STREAM_WAIT: Final = "Stream Wait Event"
"""What readers call CUPTI's record of a stream's wait for an event."""

WAIT_CALL: Final = r"^(?:cuda|cu|hip)StreamWaitEvent"
"""Calls that make a stream wait for an event."""


def wait_records(trace: Trace, syncs: pl.DataFrame) -> pl.DataFrame:
    """Return those of ``syncs``, synchronization records, that are streams' waits for an event.

    Further column: ``asked``, when the call that asked for it began, or else the record (ns).
    """
    names = trace.names.select(pl.int_range(pl.len(), dtype=pl.UInt32).alias("name_id"), "name")
    wanted = names.filter(pl.col("name") == STREAM_WAIT)["name_id"]
    waits = syncs.filter(pl.col("name_id").is_in(wanted.implode()))
    called = trace.whole.calls["start"].gather(waits["call"])
    return waits.with_columns(called.fill_null(waits["start"]).alias("asked"))
