"""What a rank gives to each collective, in bytes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from traceana.flops.types import element_size

if TYPE_CHECKING:
    from traceana.trace import Trace

_OF_BACKEND: Final = r"^(?:gloo|mpi|ucc):"
"""Operators that carry a collective out, and whose inputs are what the rank gives. ``c10d::``'s
operators around them have outputs among their inputs, and lists of tensors without a type."""

_SHAPES: Final = msgspec.json.Decoder(list[list[int]])
_TYPES: Final = msgspec.json.Decoder(list[str])


def messages(collectives: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Return ``carries`` and ``bytes`` for each row of ``collectives``, activities of ``trace``.

    ``carries``: the row is the collective itself, a kernel or a backend's operator, and not an
    operator that asks for it. ``bytes``: of a kernel what the trace says of it (``bytes`` of the
    activity), of an operator its inputs', where shapes and types are recorded; null: not told.
    """
    ops = trace.ops.select(
        "name", "input_shapes", "input_types", op=pl.int_range(pl.len(), dtype=pl.UInt32)
    )
    asked = collectives.select("kind", "bytes", "op").join(
        ops, on="op", how="left", maintain_order="left"
    )
    is_kernel = pl.col("kind") == "kernel"
    of_backend = pl.col("name").cast(pl.String).str.contains(_OF_BACKEND).fill_null(value=False)
    inputs = asked.filter(of_backend).select("input_shapes", "input_types").drop_nulls().unique()
    sizes = [_size(shapes, types) for shapes, types in inputs.iter_rows()]
    return asked.join(
        inputs.with_columns(pl.Series("input_bytes", sizes, pl.Int64)),
        on=["input_shapes", "input_types"],
        how="left",
        maintain_order="left",
    ).select(
        (is_kernel | of_backend).alias("carries"),
        pl.when(is_kernel).then("bytes").when(of_backend).then("input_bytes").alias("bytes"),
    )


def _size(shapes: str, types: str) -> int | None:
    """Return the bytes of tensors of ``shapes`` and ``types``, JSON lists of one length."""
    try:
        extents, names = _SHAPES.decode(shapes), _TYPES.decode(types)
    except msgspec.DecodeError:
        return None
    sizes = [element_size(name) for name in names]
    if len(extents) != len(names) or None in sizes:
        return None
    return sum(prod(extent) * size for extent, size in zip(extents, sizes, strict=True) if size)
