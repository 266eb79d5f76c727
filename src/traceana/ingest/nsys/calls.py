"""Runtime and driver calls of an nsys export."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.ingest.nsys.bulk import Query, integer
from traceana.ingest.nsys.database import Database
from traceana.ingest.nsys.ids import enumeration, nonzero, process_of, thread_of
from traceana.ingest.nsys.strings import Strings
from traceana.trace import Ledger

TABLES: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
"""New exports keep driver calls with the runtime's; the first ones had a table of their own."""

_BACKTRACE: Final = {67: "TRACE_PROCESS_EVENT_CUDABACKTRACE"}
_VERSION: Final = r"^(cuda.*)_v\d{4,5}$"
"""The runtime's symbol version, e.g. ``_v3020``. A driver's ``_v2`` is part of the API's name."""


def query(database: Database, table: str) -> Query:
    """Return the query for one of :data:`TABLES`, a table that ``database`` has."""
    columns = {
        "name": ("nameId",),
        "event_class": ("eventClass",),
        "start": ("start",),
        "end": ("end",),
        "thread": ("globalTid",),
        "correlation": ("correlationId",),
    }
    return Query(
        table,
        {name: integer(database, table, *sources) for name, sources in columns.items()},
        _shape,
    )


def _shape(page: pl.DataFrame) -> pl.DataFrame:
    return page.select(
        "name",
        pl.col("event_class").cast(pl.Int32, strict=False),
        "start",
        (pl.col("end") - pl.col("start")).alias("duration"),
        process_of("thread").alias("process"),
        thread_of("thread").alias("thread"),
        nonzero("correlation").alias("correlation"),
    )


def named(
    database: Database, table: str, frame: pl.DataFrame, strings: Strings, ledger: Ledger
) -> pl.DataFrame:
    """Return columns of ``calls`` for a result of :func:`query`.

    Names are without the runtime's symbol version: ``cudaLaunchKernel_v7000`` is
    ``cudaLaunchKernel``, as other profilers print it. With ``--cudabacktrace`` nsys writes a
    second row around a call, of the same correlation id; those are counted in ``ledger`` and
    left out.
    """
    classes = enumeration(database, "ENUM_NSYS_EVENT_CLASS", _BACKTRACE)
    again = pl.col("event_class").is_in([c for c, n in classes.items() if n in _BACKTRACE.values()])
    calls = frame.filter(again.not_().fill_null(value=True)).drop("event_class")
    ledger.add(
        "unknown_category",
        frame.height - calls.height,
        table="calls",
        detail=f"{table}: backtrace rows that repeat a call",
    )
    names = strings.of(calls["name"])
    ledger.add("unnamed", names.null_count(), table="calls", kept=True, detail=table)
    distinct = names.drop_nulls().unique()
    plain = distinct.cast(pl.String).str.replace(_VERSION, "$1").cast(pl.Categorical)
    return calls.with_columns(
        names.replace_strict(distinct, plain, return_dtype=pl.Categorical).alias("name")
    )
