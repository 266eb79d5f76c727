"""Reads the SQLite database of rocprof (``rocprof --hip-trace``, ``--sys-trace``): its
``results.db``."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.ingest.rocprof.activities import COPY, numbered
from traceana.ingest.rocprof.assembly import Rows
from traceana.ingest.rocprof.csv_tables import Kind, named_cells
from traceana.ingest.source import Progress
from traceana.ingest.table_source import Bytes, Integer, Query, TableSource, decoded

_ACTIVITIES: Final = ("OPS", "COPY")
_CALLS: Final = {"HIP": "HIP_RUNTIME_API", "HSA": "HSA_API", "rocTX": "ROCTX"}
_KERNELS: Final = "KERN"
"""The table of ``results.csv``: kernels with their counters, and times with ``--timestamp on``."""
_INTEGERS: Final = {
    "start": "BeginNs",
    "end": "EndNs",
    "process": "pid",
    "thread": "tid",
    "agent": "dev-id",
    "stream": "stream-id",
    "correlation": "Index",
}
_BARRIER: Final = "<barrier packet>"
_BYTES: Final = r"sizeBytes\((\d+)\)"
_DIMENSIONS: Final = r"\(\{z\((\d+)\) y\((\d+)\) x\((\d+)"
"""Of the arguments numBlocks and dimBlocks, as rocprof prints a ``dim3``."""
_SIZES: Final = tuple(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")


def rows_of(source: TableSource, progress: Progress) -> Rows:
    """Return the rows of the database; raises ``CorruptError``.

    An activity has the number of its HIP call in ``Index``. Sizes of copies and launches are among
    the printed arguments of these calls.
    """
    wanted = [name for name in (*_ACTIVITIES, *_CALLS) if name in source.tables]
    queries = [_query(name) for name in wanted]
    if _KERNELS in source.tables:
        titles = source.tables[_KERNELS]
        texts = {title: Bytes(title) for title in titles}
        queries.append(Query(_KERNELS, texts, _texts))
    frames = dict(zip([*wanted, _KERNELS], source.read(queries, progress), strict=False))
    parts: dict[Kind, list[pl.DataFrame]] = {kind: [] for kind in Kind}
    parts[Kind.CALLS] = [
        _call(frames[name], domain, counted=name == "HIP" or "HIP" not in frames)
        for name, domain in _CALLS.items()
        if name in frames
    ]
    copy = pl.col("name").str.contains(COPY).fill_null(False)
    barrier = pl.col("name").str.contains(_BARRIER, literal=True).fill_null(False)
    for work in (_with_sizes(frames[n], frames.get("HIP")) for n in _ACTIVITIES if n in frames):
        parts[Kind.COPIES].append(work.filter(copy).with_columns(pl.col("name").alias("direction")))
        parts[Kind.KERNELS].append(work.filter(~copy & ~barrier))
        parts[Kind.OTHER].append(work.filter(~copy & barrier).select("name"))
    if (kernels := frames.get(_KERNELS)) is not None and kernels.height:
        kind, cells = named_cells(kernels)
        if kind is not None:
            # The same kernels with their counters: their times are those of the other table.
            again = any(frame.height for frame in parts[Kind.KERNELS])
            parts[Kind.LAUNCHES if again else kind] = [cells]
    return {kind: numbered(frames) for kind, frames in parts.items()}


def _query(name: str) -> Query:
    columns: dict[str, Integer | Bytes] = {
        cell: Integer(column) for cell, column in _INTEGERS.items()
    }
    columns["name"] = Bytes("Name")
    columns["args"] = Bytes("args")
    return Query(name, columns, _shape)


def _shape(page: pl.DataFrame) -> pl.DataFrame:
    args = decoded(page["args"])
    sizes = []
    for what, argument in (("grid", "numBlocks"), ("block", "dimBlocks")):
        groups = args.str.extract_groups(argument + _DIMENSIONS)
        for number, axis in ((3, "x"), (2, "y"), (1, "z")):
            text = groups.struct.field(str(number))
            sizes.append(text.cast(pl.Int64, strict=False).alias(f"{what}_{axis}"))
    return page.drop("args").with_columns(
        decoded(page["name"]).alias("name"),
        args.str.extract(_BYTES, 1).cast(pl.Int64, strict=False).alias("bytes"),
        *sizes,
    )


def _texts(page: pl.DataFrame) -> pl.DataFrame:
    return page.select(decoded(page[name]).alias(name) for name in page.columns)


def _call(frame: pl.DataFrame, domain: str, *, counted: bool) -> pl.DataFrame:
    """Return rows of functions; only those of one API have the numbers that activities name."""
    number = pl.col("correlation") if counted else pl.lit(None, pl.Int64)
    return frame.select(
        pl.col("name").alias("function"),
        pl.lit(domain).alias("domain"),
        "process", "thread", "start", "end",
        number.alias("correlation"),
    )  # fmt: skip


def _with_sizes(work: pl.DataFrame, calls: pl.DataFrame | None) -> pl.DataFrame:
    """Return ``work`` with the bytes, grid and block of the calls of the same number."""
    keys = ["process", "correlation"]
    plain = work.drop("bytes", *_SIZES)
    if calls is None:
        return plain
    sizes = calls.select(*keys, "bytes", *_SIZES).unique(keys, keep="none")
    # A call of several activities has the sizes of none of them.
    alone = plain.with_columns((pl.len().over(keys) == 1).alias("_alone"))
    found = alone.join(sizes, on=keys, how="left", maintain_order="left").with_columns(
        pl.when("_alone").then(column).alias(column) for column in ("bytes", *_SIZES)
    )
    # Work-items, as rocprof prints them elsewhere.
    return found.drop("_alone").with_columns(
        (pl.col(f"grid_{axis}") * pl.col(f"block_{axis}")).alias(f"grid_{axis}") for axis in "xyz"
    )
