"""Reads rocprof's CSV, a file or all files of one run, and its JSON, into the canonical tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from traceana.errors import NotATraceError
from traceana.readers import rocprof
from traceana.readers.rocprof.assembly import Rows, assembled, devices, numbered, properties
from traceana.readers.rocprof.csv_tables import CsvTables, Kind, tables_of
from traceana.readers.rocprof.json_tables import json_tables
from traceana.readers.source import ByteSource, Progress
from traceana.trace import Ledger, Tables, Trace, TraceMeta

_OF_KERNELS: Final = (Kind.KERNELS, Kind.LAUNCHES, Kind.COUNTERS)


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of one CSV file of rocprof, or of the files that have the prefix ``path``.

    Counters of a run with a timeline have the row of their kernel. Raises ``NotATraceError``
    without a row of a known table, ``NotFoundError``.
    """
    files = [path] if path.is_file() else rocprof.files(path)
    sources = [ByteSource(file, progress) for file in files]
    contents = (b"".join(source.blocks()) for source in sources)
    found = [json_tables(one) if rocprof.JSON.match(one) else tables_of(one) for one in contents]
    rows = _of_processes({kind: _rows(kind, found) for kind in Kind})
    if not any(cells.height for cells in rows.values()):
        raise NotATraceError(
            f"{path} is a file of rocprof without rows: record it again with rocprofv3 --sys-trace "
            "--output-format csv"
        )
    ledger = Ledger()
    malformed = sum(one.malformed for one in found)
    _count_files(found, sources, malformed, ledger)
    table, events = assembled(rows, ledger)
    printed = pl.concat([rows[kind]["agent"] for kind in _OF_KERNELS])
    used = pl.concat([table[name]["device"] for name in ("activities", "counters")])
    table["devices"] = devices(rows[Kind.AGENTS].to_dicts(), printed.drop_nulls(), used)
    truncated = any(source.truncated or one.cut for source, one in zip(sources, found, strict=True))
    meta = TraceMeta(
        source=str(path),
        format="rocprof",
        producer=f"AMD {min({t.version for one in found for t in one.tables}, default='rocprof')}",
        truncated=truncated,
        bytes_read=sum(source.bytes_read for source in sources),
        bytes_total=sum(source.bytes_total for source in sources),
        events=events + malformed,
        properties=properties(rows),
    )
    return Trace(meta, Tables(table))


def _rows(kind: Kind, found: Sequence[CsvTables]) -> pl.DataFrame:
    """Return all rows of the tables of ``kind``, their numbers as integers."""
    return numbered(table.cells for one in found for table in one.tables if table.kind is kind)


def _of_processes(rows: Rows) -> Rows:
    """Return ``rows`` with the process of each GUID where the tables are those of several.

    rocpd writes the processes of several databases into one table, and a GUID for each; tables of
    kernels and copies have no other number of the process.
    """
    known = pl.concat([cells.select("guid", "process") for cells in rows.values()])
    processes = known.filter(pl.col("guid").is_not_null()).group_by("guid", maintain_order=True)
    found = processes.agg(pl.col("process").drop_nulls().first()).with_row_index("number")
    if found.height < 2:
        return rows
    number = pl.coalesce("process", "number").cast(pl.Int64)
    of_guid = dict(found.select("guid", number).iter_rows())
    its = pl.col("guid").replace_strict(of_guid, default=None, return_dtype=pl.Int64)
    return {
        kind: cells.with_columns(pl.coalesce("process", its).alias("process"))
        for kind, cells in rows.items()
    }


def _count_files(
    found: Sequence[CsvTables], sources: Sequence[ByteSource], malformed: int, ledger: Ledger
) -> None:
    """Count what the text of the files lacks."""
    for source, one in zip(sources, found, strict=True):
        detail = f"{source.path.name}: no table"
        ledger.add("damaged", int(not one.tables), table="-", kept=True, detail=detail)
    ledger.add("malformed", malformed, table="-", detail="rows with other cells")
    for reason, count in (
        ("damaged", sum(source.damaged for source in sources)),
        (
            "truncated",
            sum(source.truncated or one.cut for source, one in zip(sources, found, strict=True)),
        ),
    ):
        ledger.add(reason, count, table="-", kept=True)
    for detail, count in (
        ("rows with text that is not UTF-8", sum(one.not_utf8 for one in found)),
        ("zero bytes", sum(one.zeros for one in found)),
    ):
        ledger.add("damaged", count, table="-", kept=True, detail=detail)
