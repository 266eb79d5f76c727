"""Runtime and driver calls of an nvprof database, which stores their numbers only."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import Final

import polars as pl

from traceana.ingest.cupti.records import nonzero
from traceana.ingest.cupti.words import without_symbol_version
from traceana.ingest.tables import Integer, Query

TABLES: Final = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": "runtime",
    "CUPTI_ACTIVITY_KIND_DRIVER": "driver",
}
_LOW_WORD: Final = 0xFFFFFFFF


def query(table: str) -> Query:
    """Return the query for one of :data:`TABLES`."""
    columns = {
        "code": "cbid",
        "start": "start",
        "end": "end",
        "process": "processId",
        "thread": "threadId",
        "correlation": "correlationId",
    }
    return Query(table, {name: Integer(column) for name, column in columns.items()}, _shape)


def _shape(page: pl.DataFrame) -> pl.DataFrame:
    return page.select(
        "code",
        "start",
        (pl.col("end") - pl.col("start")).alias("duration"),
        "process",
        thread("thread").alias("thread"),
        nonzero("correlation").alias("correlation"),
    )


def thread(column: str) -> pl.Expr:
    """Return a thread's number: an unsigned 32-bit one, which SQLite shows with a sign."""
    return pl.col(column) & _LOW_WORD


@cache
def _names(api: str) -> pl.DataFrame:
    """Return the names of the calls by number, see ``tools/cupti_call_names.py``."""
    text = (files("traceana.ingest.nvprof") / "calls.tsv").read_text("utf-8")
    rows = [row for row in csv.DictReader(text.splitlines(), delimiter="\t") if row["api"] == api]
    names = without_symbol_version(pl.Series([row["name"] for row in rows], dtype=pl.String))
    return pl.DataFrame(
        {"code": [int(row["cbid"]) for row in rows], "name": names},
        schema_overrides={"code": pl.Int64},
    ).with_columns(pl.col("name").cast(pl.Categorical))


def named(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return columns of ``calls`` for a result of :func:`query`.

    A number that CUDA 12.9 does not know yet is shown as it is: ``runtime call 9999``.
    """
    api = TABLES[table]
    by_number = frame.join(_names(api), on="code", how="left", maintain_order="left")
    unknown = pl.format(f"{api} call {{}}", pl.col("code")).cast(pl.Categorical)
    return by_number.with_columns(pl.coalesce("name", unknown).alias("name")).drop("code")
