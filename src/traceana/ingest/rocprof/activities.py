"""Kernels, copies, calls and ranges of rocprof's tables of texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import polars as pl

from traceana.ingest.cupti import copy_name, nonzero
from traceana.ingest.names import NameTable
from traceana.trace.schema import ACTIVITIES, ActivityKind, CopyKind, RangeKind, empty

_DESCRIPTOR: Final = r"(?: \[clone \.kd\]|\.kd)$"
"""Of the kernel's descriptor, whose symbol rocprof and rocprofv2 print."""
_NUMBER: Final = r"(\d+)$"
COPY: Final = r"(?i)(host|device)_?to_?(host|device)$"
"""The name of a copy, with its two sides."""
_MARKERS: Final = r"^(?:MARKER|ROCTX)"
_MARKER_CALL: Final = r"^roctx[A-Z]\w*$"
"""Functions of the library of markers; a range has its message instead."""
_INTEGERS: Final = (
    "start", "end", "stream", "process", "thread", "dispatch", "correlation", "shared_memory",
    "registers", "bytes", *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"),
)  # fmt: skip
_TEXTS: Final = (
    "name", "agent", "queue", "guid", "direction", "source", "destination", "domain", "function",
    "counter", "value",
)  # fmt: skip


def numbered(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of ``parts``, none for no part, with all columns of a kind of rows.

    Those of :data:`_INTEGERS` are int64, those of :data:`_TEXTS` and others as they are.
    ``device``, ``source`` and ``destination`` are numbers of agents: ``Agent 2``, ``GPU 1``, ``2``.
    """
    none = pl.DataFrame(schema={"name": pl.String})
    cells = pl.concat([*parts, none], how="diagonal_relaxed")
    schema = cells.schema
    integers = [
        (pl.col(name).str.strip_chars(" ") if schema[name] == pl.String else pl.col(name)).cast(
            pl.Int64, strict=False
        )
        if name in schema
        else pl.lit(None, pl.Int64).alias(name)
        for name in _INTEGERS
    ]
    texts = [pl.lit(None, pl.String).alias(name) for name in _TEXTS if name not in schema]
    agents = {"device": "agent", "source": "source", "destination": "destination"}
    return cells.with_columns(*integers, *texts).with_columns(
        pl.col(text).cast(pl.String).str.extract(_NUMBER, 1).cast(pl.Int32, strict=False).alias(one)
        for one, text in agents.items()
    )


def kernels(cells: pl.DataFrame, names: NameTable) -> pl.DataFrame:
    """Return ``activities`` of the rows of kernels, with ``guid`` and number of the dispatch."""
    frame = cells.select(
        "guid",
        "dispatch",
        pl.lit("kernel", ActivityKind).alias("kind"),
        "start",
        (pl.col("end") - pl.col("start")).alias("duration"),
        "process",
        "device",
        "stream",
        nonzero("correlation").alias("correlation"),
        *sizes(),
        "registers",
        "shared_memory",
    )
    return frame.with_columns(names.ids(plain_names(cells["name"])).alias("name_id"))


def sizes() -> list[pl.Expr]:
    """Return the grid and block of a row of kernels or counters.

    rocprof's grid is in work-items, as in HSA; that of ``activities`` is in blocks.
    """
    blocks = []
    for axis in "xyz":
        size = pl.col(f"block_{axis}")
        whole = (pl.col(f"grid_{axis}") + size - 1) // pl.when(size > 0).then(size)
        blocks.append(whole.alias(f"grid_{axis}"))
    return [*blocks, *(pl.col(f"block_{axis}") for axis in "xyz")]


def plain_names(names: pl.Series) -> pl.Series:
    """Return ``names`` of kernels without the suffix of their descriptor, ``.kd``."""
    return names.str.replace(_DESCRIPTOR, "")


def copies(cells: pl.DataFrame, names: NameTable) -> pl.DataFrame:
    """Return ``activities`` of the rows of copies; the device is the destination of HtoD copies,
    else the source."""
    direction = pl.col("direction").str.extract_groups(COPY)
    begin, end = (direction.struct[n].str.slice(0, 1).str.to_uppercase() for n in ("1", "2"))
    kind = pl.concat_str(begin, pl.lit("to"), end)
    source, target = pl.col("source"), pl.col("destination")
    across = (kind == "DtoD") & (source != target)
    frame = cells.select(
        pl.lit("memcpy", ActivityKind).alias("kind"),
        "start",
        (pl.col("end") - pl.col("start")).alias("duration"),
        "process",
        pl.coalesce(
            "device", pl.when(kind == "HtoD").then(target).when(kind != "HtoH").then(source)
        ).alias("device"),
        "stream",
        nonzero("correlation").alias("correlation"),
        pl.when(across)
        .then(pl.lit("PtoP"))
        .otherwise(kind.fill_null("unknown"))
        .cast(CopyKind)
        .alias("copy_kind"),
        "bytes",
    )
    return named_copies(frame, names)


def named_copies(frame: pl.DataFrame, names: NameTable) -> pl.DataFrame:
    """Return copies of known ``copy_kind`` with their name, and the memory that it implies."""
    kind = pl.col("copy_kind").cast(pl.String)
    memories = [
        pl.when(kind.str.contains(pattern))
        .then(pl.lit("device"))
        .cast(ACTIVITIES[side])
        .alias(side)
        for side, pattern in (("source_memory", "^[DP]to"), ("destination_memory", "to[DP]$"))
    ]
    typed = frame.with_columns(memories)
    texts = typed.select(copy_name()).to_series()
    return typed.with_columns(names.ids(texts).alias("name_id"))


def calls(cells: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return ``calls`` and ``ranges`` of the rows of functions; ranges are those of ROCTx.

    rocprofv3 prints a range of ``roctxRangeStart``, which is of no thread, with thread 0.
    """
    if cells.is_empty():
        return empty("calls"), empty("ranges")
    function = pl.col("function")
    marker = (
        pl.col("domain").str.contains(_MARKERS) & ~function.str.contains(_MARKER_CALL)
    ).fill_null(False)
    times = ("start", (pl.col("end") - pl.col("start")).alias("duration"))
    made = cells.filter(~marker).select(
        function.cast(pl.Categorical()).alias("name"),
        "process",
        "thread",
        *times,
        nonzero("correlation").alias("correlation"),
    )
    return made, ranges(cells.filter(marker).rename({"function": "text"}))


def ranges(cells: pl.DataFrame) -> pl.DataFrame:
    """Return ``ranges`` of rows with text, process, thread, start and end of ROCTx's ranges."""
    duration = pl.col("end") - pl.col("start")
    return cells.select(
        pl.col("text").cast(pl.Categorical()),
        pl.when(duration == 0)
        .then(pl.lit("mark"))
        .when(pl.col("thread") == 0)
        .then(pl.lit("nvtx_start"))
        .otherwise(pl.lit("nvtx"))
        .cast(RangeKind)
        .alias("kind"),
        "process",
        pl.when(pl.col("thread") != 0).then("thread").alias("thread"),
        "start",
        duration.alias("duration"),
    )
