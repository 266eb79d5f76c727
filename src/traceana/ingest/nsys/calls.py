"""Runtime and driver calls of an nsys export."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.ingest.cupti.records import nonzero
from traceana.ingest.cupti.words import without_symbol_version
from traceana.ingest.nsys.ids import enumeration, process_of, thread_of
from traceana.ingest.tables import Integer, Query, TableSource
from traceana.ingest.texts import Texts
from traceana.trace import Ledger

TABLES: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
"""New exports keep driver calls with the runtime's; the first ones had a table of their own."""

_BACKTRACE: Final = {67: "TRACE_PROCESS_EVENT_CUDABACKTRACE"}


def query(table: str) -> Query:
    """Return the query for one of :data:`TABLES`."""
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
        {name: Integer(*sources) for name, sources in columns.items()},
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
    database: TableSource, table: str, frame: pl.DataFrame, strings: Texts, ledger: Ledger
) -> pl.DataFrame:
    """Return columns of ``calls`` for a result of :func:`query`.

    Names are without the runtime's symbol version. With ``--cudabacktrace`` nsys writes a
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
    plain = without_symbol_version(distinct.cast(pl.String)).cast(pl.Categorical)
    return calls.with_columns(
        names.replace_strict(distinct, plain, return_dtype=pl.Categorical).alias("name")
    )
