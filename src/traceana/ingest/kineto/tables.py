"""Kineto's frames to canonical tables: ``activities``, ``ranges``, ``links`` and ``memory``."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.trace.ledger import Ledger
from traceana.trace.schema import CPU_DEVICE

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

# "Memcpy HtoD (Pinned -> Device)"; AMD writes "Host" where the memory kind is unknown.
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

# torch before 1.10 wrote annotations of the profiler's own hooks as operators.
_ANNOTATION_OP: Final = r"^(?:ProfilerStep[#*]|Optimizer\.|enumerate\(DataLoader\))"
_STEP: Final = r"^ProfilerStep[#*]"
_MODULE: Final = "nn.Module: "
_BACKWARD_FLOW: Final = "fwdbwd"


def activities(device: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the activities with their name as text, in the order of the file.

    ``device`` and ``calls`` are frames of :mod:`traceana.ingest.kineto.events`. The process stays
    null: the ``pid`` of a device row is the number of the device.
    """
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
        # -1: the event was recorded before the capture.
        pl.when((pl.col("event_stream") >= 0) & (pl.col("event_stream") != _NO_STREAM))
        .then("event_stream")
        .alias("event_stream"),
        pl.when(pl.col("event_correlation") > 0).then("event_correlation"),
        "collective",
        pl.col("group_size").cast(pl.Int32, strict=False),
    ).join(_copies(device["name"]), on="name", how="left", maintain_order="left")
    is_copy = pl.col("kind") == "memcpy"
    frame = frame.with_columns(
        pl.when(is_copy).then(pl.col("copy_kind").fill_null("unknown")).alias("copy_kind"),
        pl.when(is_copy).then("source_memory").alias("source_memory"),
        pl.when(is_copy).then("destination_memory").alias("destination_memory"),
    )
    return _with_bytes_of_calls(frame, calls)


def _copies(names: pl.Series) -> pl.DataFrame:
    """Return direction and memories of the distinct ``names``."""
    copy = pl.col("name").cast(pl.String).str.extract_groups(_COPY).struct
    return pl.DataFrame({"name": names.unique()}).select(
        "name",
        _direction(copy).alias("copy_kind"),
        _memory(copy[2], copy[0]).alias("source_memory"),
        _memory(copy[3], copy[1]).alias("destination_memory"),
    )


def _direction(copy: pl.expr.struct.ExprStructNameSpace) -> pl.Expr:
    sides = (copy[side].str.to_uppercase() for side in (0, 1))
    both = pl.concat_str(sides, separator="to")
    known = ["HtoD", "DtoH", "DtoD", "PtoP", "HtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA"]
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
    without_bytes = (pl.col("kind").is_in(["memcpy", "memset"])) & pl.col("bytes").is_null()
    if not frame.select(without_bytes.any()).item():
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
        pl.when(without_bytes).then("call_bytes").otherwise("bytes").alias("bytes")
    ).drop("call_bytes")


def split_ops(ops: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (operators, annotations among them), with the columns of ``ops``."""
    is_annotation = ops["name"].cast(pl.String).str.contains(_ANNOTATION_OP)
    return ops.filter(~is_annotation), ops.filter(is_annotation)


def ranges(frame: pl.DataFrame) -> pl.DataFrame:
    """Return canonical ranges of a "range" frame (see :mod:`traceana.ingest.kineto.events`)."""
    text = pl.col("name").cast(pl.String)
    category = pl.col("category").cast(pl.String).str.to_lowercase()
    on_device = category == "gpu_user_annotation"
    kind = (
        pl.when(on_device)
        .then(pl.lit("device"))
        .when(category == "overhead")
        .then(pl.lit("overhead"))
        .when((category == "python_function") & text.str.starts_with(_MODULE))
        .then(pl.lit("module"))
        .when(category == "python_function")
        .then(pl.lit("python"))
        .when(text.str.contains(_STEP))
        .then(pl.lit("step"))
        .otherwise(pl.lit("annotation"))
    )
    return frame.select(
        pl.col("name").alias("text"),
        kind.alias("kind"),
        pl.when(on_device).then(None).otherwise("pid").alias("process"),
        pl.col("tid").alias("thread"),
        pl.when(on_device).then("pid").alias("device"),
        "start",
        "duration",
        "input_shapes",
        "input_types",
    )


def links(flow: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    """Return one row per forward-backward flow.

    ``ledger`` counts the end of each pair, events without a time or a partner, and flows of other
    categories.
    """
    backward = flow.filter(pl.col("category").cast(pl.String).str.to_lowercase() == _BACKWARD_FLOW)
    kept = backward.filter(pl.col("time").is_not_null())
    start = kept.filter(~pl.col("ends")).unique("id", keep="first", maintain_order=True)
    end = kept.filter("ends").unique("id", keep="first", maintain_order=True)
    pairs = start.join(end, on="id", suffix="_to", maintain_order="left")
    ledger.add("flow", pairs.height, table="links", detail="ends of the flows in links")
    ledger.add("flow", kept.height - 2 * pairs.height, table="links", detail="unpaired")
    ledger.add("missing_time", backward.height - kept.height, table="links")
    ledger.add("flow", flow.height - backward.height, table="links", detail="other categories")
    return pairs.select(
        pl.col("category").alias("kind"),
        pl.col("pid").alias("from_process"),
        pl.col("tid").alias("from_thread"),
        pl.col("time").alias("from_time"),
        pl.col("pid_to").alias("to_process"),
        pl.col("tid_to").alias("to_thread"),
        pl.col("time_to").alias("to_time"),
    )


def memory(frame: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    """Return the allocator's events; those without a time are counted in ``ledger``."""
    timed = frame.filter(pl.col("time") != 0)
    ledger.add("missing_time", frame.height - timed.height, table="memory")
    on_host = pl.col("device_type") == 0
    return (
        timed.with_columns(pl.when(on_host).then(CPU_DEVICE).otherwise("device").alias("device"))
        .rename({"pid": "process", "tid": "thread"})
        .drop("device_type")
    )
