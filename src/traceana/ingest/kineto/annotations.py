"""Annotations of Kineto to the canonical ``ranges``, told from operators and from one another."""

from __future__ import annotations

from typing import Final

import polars as pl

# torch before 1.10 printed annotations of the profiler's own hooks among the operators.
_ANNOTATION_OP: Final = r"^(?:ProfilerStep[#*]|Optimizer\.|enumerate\(DataLoader\))"
_STEP: Final = r"^ProfilerStep[#*]"
_MODULE: Final = "nn.Module: "


def split_ops(ops: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (operators, annotations found among them); both keep the columns of the input."""
    is_annotation = ops["name"].cast(pl.String).str.contains(_ANNOTATION_OP)
    return ops.filter(~is_annotation), ops.filter(is_annotation)


def ranges(frame: pl.DataFrame) -> pl.DataFrame:
    """Return canonical ranges of a "range" frame (see :mod:`traceana.ingest.kineto.columns`)."""
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
