"""nsys's global ids and enumerations."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.ingest.table_source import TableSource

_PID_SHIFT: Final = 24
_MASK: Final = (1 << 24) - 1


def process_of(column: str) -> pl.Expr:
    """Return the process id in a ``globalPid`` or ``globalTid``.

    A global id has, from its highest bits, 8 bits for hardware, 8 for the virtual machine, 24 for
    the process, 24 for the thread (Nsight Systems, "SQLite Schema Reference"). An export is from
    one machine: its process ids are unique.
    """
    return (pl.col(column) // (1 << _PID_SHIFT)).cast(pl.Int64) & _MASK


def thread_of(column: str) -> pl.Expr:
    """Return the thread id in a ``globalTid``."""
    return pl.col(column) & _MASK


def enumeration(database: TableSource, table: str, known: dict[int, str]) -> dict[int, str]:
    """Return the names of an enumeration by number: the file's own, else ``known``.

    Schema 3 has an ``ENUM_`` table for each, schema 2 has none.
    """
    own = {
        row["id"]: row["name"]
        for row in database.records(table)
        if isinstance(row.get("id"), int) and isinstance(row.get("name"), str)
    }
    return {**known, **own}
