"""Reads the SQLite database of rocprof (``results.db``) into the canonical tables.

An activity has the number of its HIP call in ``Index``. Sizes of copies and launches are among the
printed arguments of these calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from traceana.readers.rocprof.assembly import COPY, assembled
from traceana.readers.rocprof.columns import DATABASE, SIZES, Kind, typed_rows
from traceana.readers.rocprof.csv_tables import named_cells
from traceana.readers.source import Progress
from traceana.readers.table_source import Bytes, Integer, Query, TableSource, decoded
from traceana.trace import Ledger, Trace, TraceMeta

_ACTIVITIES: Final = ("OPS", "COPY")
_CALLS: Final = {"HIP": "HIP_RUNTIME_API", "HSA": "HSA_API", "rocTX": "ROCTX"}
_KERNELS: Final = "KERN"
"""The table of ``results.csv``: kernels with their counters, and times with ``--timestamp on``."""
_BARRIER: Final = "<barrier packet>"
_BYTES: Final = r"sizeBytes\((\d+)\)"
_ARGUMENTS: Final = {"grid": "numBlocks", "block": "dimBlocks"}
_DIMENSIONS: Final = r"\(\{z\((\d+)\) y\((\d+)\) x\((\d+)"
"""A ``dim3`` as rocprof prints it."""


def read(source: TableSource, progress: Progress) -> Trace:
    """Return the Trace of a database of rocprof; raises ``CorruptError``."""
    rows = typed_rows(_rows(source, progress))
    ledger = Ledger()
    source.count_damage(ledger)
    meta = TraceMeta(
        source=str(source.path),
        format="rocprof",
        producer="AMD rocprof",
        bytes_read=source.size_bytes,
        bytes_total=source.size_bytes,
    )
    return assembled(meta, rows, ledger)


def _rows(source: TableSource, progress: Progress) -> Iterator[tuple[Kind, pl.DataFrame]]:
    """Yield the rows of each table, with the names of cells."""
    numbers: dict[str, Integer | Bytes] = {
        cell: Integer(column) for cell, column in DATABASE.items()
    }
    columns = {**numbers, "name": Bytes("Name"), "args": Bytes("args")}
    queries = {
        table: Query(table, columns, _with_arguments)
        for table in (*_ACTIVITIES, *_CALLS)
        if table in source.tables
    }
    if _KERNELS in source.tables:
        texts = {title: Bytes(title) for title in source.tables[_KERNELS]}
        queries[_KERNELS] = Query(
            _KERNELS,
            texts,
            lambda page: page.select(decoded(page[name]).alias(name) for name in page.columns),
        )
    frames = dict(zip(queries, source.read(list(queries.values()), progress), strict=True))
    for table, domain in _CALLS.items():
        if table in frames:
            # Activities name the numbers of one API only.
            is_numbered = table == "HIP" or "HIP" not in frames
            correlation = pl.col("correlation") if is_numbered else pl.lit(None, pl.Int64)
            yield (
                Kind.CALLS,
                frames[table].select(
                    *("process", "thread", "start", "end"),
                    pl.col("name").alias("function"),
                    pl.lit(domain).alias("domain"),
                    correlation.alias("correlation"),
                ),
            )
    is_copy = pl.col("name").str.contains(COPY).fill_null(False)
    is_barrier = pl.col("name").str.contains(_BARRIER, literal=True).fill_null(False)
    has_kernels = False
    for table in _ACTIVITIES:
        if table not in frames:
            continue
        work = _with_sizes(frames[table], frames.get("HIP"))
        kernels = work.filter(~is_copy & ~is_barrier)
        has_kernels = has_kernels or not kernels.is_empty()
        yield Kind.COPIES, work.filter(is_copy).with_columns(pl.col("name").alias("direction"))
        yield Kind.KERNELS, kernels
        yield Kind.OTHER, work.filter(~is_copy & is_barrier).select("name")
    if _KERNELS in frames and not frames[_KERNELS].is_empty():
        kind, cells = named_cells(frames[_KERNELS])
        if kind is not None:
            # The same kernels with their counters: their times are those of the other table.
            yield Kind.LAUNCHES if has_kernels else kind, cells


def _with_arguments(page: pl.DataFrame) -> pl.DataFrame:
    """Return a page with the sizes among the arguments of calls."""
    arguments = decoded(page["args"])
    sizes = []
    for what, argument in _ARGUMENTS.items():
        groups = arguments.str.extract_groups(argument + _DIMENSIONS)
        for number, axis in enumerate("zyx", 1):
            size = groups.struct.field(str(number)).cast(pl.Int64, strict=False)
            sizes.append(size.alias(f"{what}_{axis}"))
    return page.drop("args").with_columns(
        decoded(page["name"]).alias("name"),
        arguments.str.extract(_BYTES, 1).cast(pl.Int64, strict=False).alias("bytes"),
        *sizes,
    )


def _with_sizes(work: pl.DataFrame, calls: pl.DataFrame | None) -> pl.DataFrame:
    """Return ``work`` with the bytes, grid and block of the calls of the same number."""
    plain = work.drop("bytes", *SIZES)
    if calls is None:
        return plain
    keys = ["process", "correlation"]
    sizes = calls.select(*keys, "bytes", *SIZES).unique(keys, keep="none")
    sized = plain.join(sizes, on=keys, how="left", maintain_order="left")
    # The sizes of a call with several activities are those of no single one.
    is_alone = pl.len().over(keys) == 1
    sized = sized.with_columns(
        pl.when(is_alone).then(column).alias(column) for column in ("bytes", *SIZES)
    )
    # Work-items, as rocprof prints them elsewhere.
    return sized.with_columns(
        (pl.col(f"grid_{axis}") * pl.col(f"block_{axis}")).alias(f"grid_{axis}") for axis in "xyz"
    )
