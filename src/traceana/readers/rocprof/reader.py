"""Reads rocprof's CSV, a file or all files of one run, and its JSON, into the canonical tables."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from traceana.errors import NotATraceError
from traceana.readers import rocprof
from traceana.readers.rocprof.assembly import assembled
from traceana.readers.rocprof.columns import Rows, typed_rows
from traceana.readers.rocprof.csv_tables import csv_tables
from traceana.readers.rocprof.json_tables import json_tables
from traceana.readers.source import ByteSource, Progress
from traceana.trace import Ledger, Trace, TraceMeta


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of one file of rocprof, or of the CSV files that have the prefix ``path``.

    Raises ``NotATraceError`` without a row of a known table, ``NotFoundError``.
    """
    files = [path] if path.is_file() else rocprof.files(path)
    sources = [ByteSource(file, progress) for file in files]
    contents = (b"".join(source.blocks()) for source in sources)
    parsed = [
        json_tables(content) if rocprof.JSON.match(content) else csv_tables(content)
        for content in contents
    ]
    tables = [table for file in parsed for table in file.tables]
    rows = _with_processes(typed_rows((table.kind, table.cells) for table in tables))
    if not any(cells.height for cells in rows.values()):
        raise NotATraceError(
            f"{path} is a file of rocprof without rows: record it again with rocprofv3 --sys-trace "
            "--output-format csv"
        )
    ledger = Ledger()
    for source, file in zip(sources, parsed, strict=True):
        detail = f"{source.path.name}: no table"
        ledger.add("damaged", int(not file.tables), table="-", kept=True, detail=detail)
    malformed = sum(file.malformed for file in parsed)
    ledger.add("malformed", malformed, table="-", detail="rows with other cells")
    ledger.add("damaged", sum(source.damaged for source in sources), table="-", kept=True)
    truncated = sum(
        source.truncated or file.cut for source, file in zip(sources, parsed, strict=True)
    )
    ledger.add("truncated", truncated, table="-", kept=True)
    not_utf8 = sum(file.not_utf8 for file in parsed)
    detail = "rows with text that is not UTF-8"
    ledger.add("damaged", not_utf8, table="-", kept=True, detail=detail)
    zeros = sum(file.zeros for file in parsed)
    ledger.add("damaged", zeros, table="-", kept=True, detail="zero bytes")
    meta = TraceMeta(
        source=str(path),
        format="rocprof",
        producer=f"AMD {min((table.version for table in tables), default='rocprof')}",
        truncated=truncated > 0,
        bytes_read=sum(source.bytes_read for source in sources),
        bytes_total=sum(source.bytes_total for source in sources),
        events=malformed,
    )
    return assembled(meta, rows, ledger)


def _with_processes(rows: Rows) -> Rows:
    """Return ``rows`` with the process of each GUID, where there are several.

    rocpd writes the processes of several databases into one table, and a GUID for each; tables of
    kernels and copies have no other number of the process.
    """
    cells = pl.concat([cells.select("guid", "process") for cells in rows.values()])
    guids = cells.filter(pl.col("guid").is_not_null()).group_by("guid", maintain_order=True)
    processes = guids.agg(pl.col("process").drop_nulls().first()).with_row_index("number")
    if processes.height < 2:
        return rows
    number = pl.coalesce("process", "number").cast(pl.Int64)
    process_of_guid = dict(processes.select("guid", number).iter_rows())
    process = pl.col("guid").replace_strict(process_of_guid, default=None, return_dtype=pl.Int64)
    return {
        kind: cells.with_columns(pl.coalesce("process", process).alias("process"))
        for kind, cells in rows.items()
    }
