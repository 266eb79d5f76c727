"""Device rows of Kineto to the canonical ``activities``: kinds, copy directions, missing sizes."""

from __future__ import annotations

from typing import Final

import polars as pl

_KINDS: Final = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cuda_sync": "sync",
}
_NO_STREAM: Final = 0xFFFFFFFF
"""CUPTI_SYNCHRONIZATION_INVALID_VALUE: the synchronization is of a context, not of a stream."""

# "Memcpy HtoD (Pinned -> Device)"; AMD prints "Host" where the memory's kind is not known.
_COPY: Final = r"^Memcpy ([A-Z])to([A-Z])(?: \(([\w ]+) -> ([\w ]+)\))?"
_MEMORY: Final = {
    "Pageable": "pageable",
    "Pinned": "pinned",
    "Device": "device",
    "Array": "array",
    "Managed": "managed",
    "Device Static": "device_static",
    "Managed Static": "managed_static",
}


def activities(device: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the activities with their name as text, in the order of the file.

    ``device`` and ``calls`` are frames of :mod:`traceana.ingest.kineto.columns`. The process stays
    null, for a device row does not tell it: its ``pid`` is the number of the device.
    """
    copy = pl.col("name").cast(pl.String).str.extract_groups(_COPY).struct
    kind = pl.col("category").cast(pl.String).str.to_lowercase().replace_strict(_KINDS)
    frame = device.select(
        pl.col("name"),
        kind.alias("kind"),
        "start",
        "duration",
        pl.coalesce("device", "pid").alias("device"),
        "context",
        pl.when(pl.coalesce("stream", "tid") != _NO_STREAM)
        .then(pl.coalesce("stream", "tid"))
        .alias("stream"),
        "correlation",
        "external",
        *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"),
        "registers",
        "shared_memory",
        "bytes",
        "graph_node",
        # Kineto prints -1 where it did not see the event recorded.
        pl.when((pl.col("event_stream") >= 0) & (pl.col("event_stream") != _NO_STREAM))
        .then("event_stream")
        .alias("event_stream"),
        pl.when(pl.col("event_correlation") > 0).then("event_correlation"),
        "collective",
        pl.col("group_size").cast(pl.Int32, strict=False),
        _direction(copy).alias("copy_kind"),
        _memory(copy[2], copy[0]).alias("source_memory"),
        _memory(copy[3], copy[1]).alias("destination_memory"),
    )
    is_copy = pl.col("kind") == "memcpy"
    frame = frame.with_columns(
        pl.when(is_copy).then(pl.col("copy_kind").fill_null("unknown")).alias("copy_kind"),
        pl.when(is_copy).then("source_memory").alias("source_memory"),
        pl.when(is_copy).then("destination_memory").alias("destination_memory"),
    )
    return _with_bytes_of_calls(frame, calls)


def _direction(copy: pl.expr.struct.ExprStructNameSpace) -> pl.Expr:
    both = pl.concat_str(copy[0], pl.lit("2"), copy[1]).str.to_lowercase()
    known = ["h2d", "d2h", "d2d", "p2p", "h2h", "h2a", "a2h", "a2a", "a2d", "d2a"]
    return pl.when(both.is_in(known)).then(both)


def _memory(word: pl.Expr, side: pl.Expr) -> pl.Expr:
    known = word.replace_strict(_MEMORY, default=None, return_dtype=pl.String)
    return (
        pl.when(known.is_not_null())
        .then(known)
        .when(side.is_in(["D", "P"]))
        .then(pl.lit("device"))
        .otherwise(pl.lit("unknown"))
    )


def _with_bytes_of_calls(frame: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    lacking = (pl.col("kind").is_in(["memcpy", "memset"])) & pl.col("bytes").is_null()
    if not frame.select(lacking.any()).item():
        return frame
    sizes = (
        calls.lazy()
        .filter(pl.col("bytes").is_not_null(), pl.col("correlation").is_not_null())
        .group_by("correlation")
        .agg(pl.col("bytes").first().alias("call_bytes"))
        .collect()
    )
    joined = frame.join(sizes, on="correlation", how="left", maintain_order="left")
    return joined.with_columns(
        pl.when(lacking).then("call_bytes").otherwise("bytes").alias("bytes")
    ).drop("call_bytes")
