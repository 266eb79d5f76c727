"""The numbers that nsys packs and codes: global ids, enumerations."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.ingest.table_source import TableSource

_PID_SHIFT: Final = 24
_MASK: Final = (1 << 24) - 1


def process_of(column: str) -> pl.Expr:
    """Return the process id in a ``globalPid`` or ``globalTid``.

    A global id is, from its highest bits: 8 bits hardware, 8 bits virtual machine, 24 bits
    process, 24 bits thread (Nsight Systems, "SQLite Schema Reference"). The process alone is kept:
    an export is of one machine.
    """
    return (pl.col(column) // (1 << _PID_SHIFT)).cast(pl.Int64) & _MASK


def thread_of(column: str) -> pl.Expr:
    """Return the thread id in a ``globalTid``."""
    return pl.col(column) & _MASK


def enumeration(database: TableSource, table: str, known: dict[int, str]) -> dict[int, str]:
    """Return the names of an enumeration by number: the file's own, else those ``known``.

    Schema 3 exports an ``ENUM_`` table for each; schema 2 has none.
    """
    own = {
        row["id"]: row["name"]
        for row in database.records(table)
        if isinstance(row.get("id"), int) and isinstance(row.get("name"), str)
    }
    return {**known, **own}
