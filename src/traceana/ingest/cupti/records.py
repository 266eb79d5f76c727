"""Pages of CUPTI's records of device work, as exported tables hold them, to activities."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.ingest.tables import Integer
from traceana.trace.schema import ACTIVITIES

WORK: Final = {
    "start": Integer("start"),
    "end": Integer("end"),
    "device": Integer("deviceId"),
    "context": Integer("contextId"),
    "stream": Integer("streamId"),
    "correlation": Integer("correlationId"),
}
KERNEL: Final = {
    "registers": Integer("registersPerThread"),
    "static_memory": Integer("staticSharedMemory"),
    "dynamic_memory": Integer("dynamicSharedMemory"),
    "graph_node": Integer("graphNodeId"),
    **{
        f"{what}_{axis}": Integer(f"{what}{axis.upper()}")
        for what in ("grid", "block")
        for axis in "xyz"
    },
}
COPY: Final = {
    "code": Integer("copyKind"),
    "source_code": Integer("srcKind"),
    "destination_code": Integer("dstKind"),
    "bytes": Integer("bytes"),
    "graph_node": Integer("graphNodeId"),
}

NO_STREAM: Final = 0xFFFFFFFF
"""CUPTI_SYNCHRONIZATION_INVALID_VALUE: the synchronization is of a context, not of a stream."""


def nonzero(column: str) -> pl.Expr:
    """Return ``column`` with null for 0, which CUPTI writes where there is no such id."""
    return pl.when(pl.col(column) != 0).then(pl.col(column))


def shape(page: pl.DataFrame) -> pl.DataFrame:
    """Return a page of :data:`WORK` and more with columns of ``activities``.

    Enumerated values stay numbers, in ``code``, ``source_code`` and ``destination_code``.
    """
    stream = pl.col("stream")
    frame = page.with_columns(
        (pl.col("end") - pl.col("start")).alias("duration"),
        nonzero("correlation").alias("correlation"),
        pl.when((stream != NO_STREAM) & (stream >= 0)).then(stream).alias("stream"),
    ).drop("end")
    if "static_memory" in frame.columns:
        static, dynamic = pl.col("static_memory"), pl.col("dynamic_memory")
        both = pl.coalesce(static + dynamic, static, dynamic)
        frame = frame.with_columns(both.alias("shared_memory")).drop(
            "static_memory", "dynamic_memory"
        )
    if "graph_node" in frame.columns:
        frame = frame.with_columns(nonzero("graph_node").alias("graph_node"))
    # What does not fit its column is no size or device that ever was: null, rather than a crash.
    narrow = [
        pl.col(name).cast(pl.Int32, strict=False)
        for name in frame.columns
        if ACTIVITIES.get(name) == pl.Int32
    ]
    codes = [pl.col(c).cast(pl.Int32, strict=False) for c in ("source_code", "destination_code")]
    return frame.with_columns(
        *narrow, *(code for code in codes if code.meta.output_name() in frame.columns)
    )
