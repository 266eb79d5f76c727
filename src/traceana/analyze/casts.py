"""Kernels that cast between FP32 and 16 bits, as under autocast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from traceana.result import Result, sums
from traceana.table import COUNT, LONG, PART, TIME, Column, aggregated, conformed
from traceana.timeline.work import kernels_of

if TYPE_CHECKING:
    from traceana.trace import Trace

COLUMNS: Final = (
    Column("cast", PART, "types of source and result: `FP32 to BF16`"),
    Column("shape", LONG, "recorded inputs, JSON; empty where not recorded"),
    Column("direction", PART, "pass; null where not known"),
    Column("calls", COUNT, "number of kernels", pl.len()),
    Column("time_ns", TIME, "their time", pl.col("duration").sum()),
)
"""The columns of :func:`casts`."""
_TYPES: Final = {"float": "FP32", "c10::BFloat16": "BF16", "c10::Half": "FP16"}
_KERNELS: Final = (
    ("bfloat16tofloat32_copy_kernel", "BF16 to FP32"),
    ("float16tofloat32_copy_kernel", "FP16 to FP32"),
    ("bfloat16_copy_kernel", "FP32 to BF16"),
    ("float16_copy_kernel", "FP32 to FP16"),
)
"""Parts of the names of ATen's kernels, and their cast."""


def casts(trace: Trace) -> Result:
    """Return one row per cast between FP32 and 16 bits, shape and pass: ATen's copies.

    The types are from the operator ``aten::copy_``, else from the kernel's name. The
    columns are :data:`COLUMNS`. Most time first.
    """
    ops = trace.tables.ops
    named = pl.lit(None, pl.String)
    for part, types_of_kernel in reversed(_KERNELS):
        holds = pl.col("name").str.contains(part, literal=True)
        named = pl.when(holds).then(pl.lit(types_of_kernel)).otherwise(named)
    types = ops["input_types"].drop_nulls().unique()
    of_types = {text: known for text in types if (known := _cast(text)) is not None}
    ran = kernels_of(trace, "duration", "op", "operator", "name_id", "direction")
    is_copy = (pl.col("operator").cast(pl.String) == "aten::copy_").fill_null(value=False)
    cast = (
        pl.when(is_copy & pl.col("types").str.contains(","))
        .then(pl.col("types").replace_strict(of_types, default=None, return_dtype=pl.String))
        .otherwise("named")
    )
    rows = (
        ran.with_columns(
            ops["input_types"].gather(ran["op"]).alias("types"),
            ops["input_shapes"].gather(ran["op"]).fill_null("").alias("shape"),
            trace.tables.names.select(named.alias("named"))["named"].gather(ran["name_id"]),
            pl.col("direction").cast(pl.String),
        )
        .with_columns(cast.alias("cast"))
        .filter(pl.col("cast").is_not_null())
    )
    frame = aggregated(rows, ["cast", "shape", "direction"], COLUMNS).sort(
        ["time_ns", "cast", "shape"], descending=[True, False, False]
    )
    frame = conformed(frame, COLUMNS)
    return Result(frame, sums(frame, "calls", "time_ns"), (), COLUMNS)


def _cast(types: str) -> str | None:
    """Return the cast of a copy by the JSON text of its input types; None if it is another."""
    try:
        given = msgspec.json.decode(types, type=list[str])
    except msgspec.DecodeError:
        return None
    result, source, *_ = (*(_TYPES.get(name) for name in given), None, None)
    if result is None or source is None or "FP32" not in (result, source) or result == source:
        return None
    return f"{source} to {result}"
