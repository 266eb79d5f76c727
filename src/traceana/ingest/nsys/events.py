"""Records of CUDA events: on which stream, and by which call, what is waited for was recorded."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.ingest.cupti.records import NO_STREAM
from traceana.ingest.nsys.ids import process_of
from traceana.ingest.tables import Integer, Query

TABLE: Final = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
OF_SYNC: Final = {"event": Integer("eventId"), "event_sync": Integer("eventSyncId")}
"""Columns of a synchronization that name the event."""

_KEYS: Final = ("process", "event_sync")


def query() -> Query:
    """Return the query for the records of events."""
    columns = {
        "process": Integer("globalPid"),
        "event_context": Integer("contextId"),
        "event_stream": Integer("streamId"),
        "event_correlation": Integer("correlationId"),
        **OF_SYNC,
    }
    return Query(TABLE, columns, lambda page: page.with_columns(process_of("process")))


def with_events(syncs: pl.DataFrame, recorded: pl.DataFrame) -> pl.DataFrame:
    """Return ``syncs`` with ``event_stream`` and ``event_correlation``, null where not known.

    CUPTI numbers each wait and the record that it is for (``eventSyncId``); before CUDA 12.8 an
    event's record is the last of its number before the wait, for correlation ids count the calls of
    a process. An event of another context than the wait's is left out: streams are numbered within
    a context.
    """
    on_stream = (pl.col("event_stream") >= 0) & (pl.col("event_stream") != NO_STREAM)
    known = recorded.filter(on_stream & (pl.col("event_correlation") > 0))
    known = known.sort("event_correlation")
    numbered = known.filter(pl.col("event_sync") > 0).unique(_KEYS, keep="last")
    found = ("event_context", "event_stream", "event_correlation")
    told = syncs.join(
        numbered.select(*_KEYS, *found), on=list(_KEYS), how="left", maintain_order="left"
    )
    last = (
        syncs.with_row_index("row")
        .sort("correlation", nulls_last=True)
        .join_asof(
            known.select("process", "event", *found),
            left_on="correlation",
            right_on="event_correlation",
            by=["process", "event"],
            strategy="backward",
            coalesce=False,
            check_sortedness=False,
        )
        .sort("row")
    )
    counted = pl.col("event_sync").fill_null(0) > 0
    here = pl.col("event_context") == pl.col("context")
    return (
        told.with_columns(
            pl.when(counted).then(pl.col(name)).otherwise(last[name]).alias(name) for name in found
        )
        .with_columns(pl.when(here).then(pl.col(name)).alias(name) for name in found[1:])
        .drop("event", "event_sync", "event_context")
    )
