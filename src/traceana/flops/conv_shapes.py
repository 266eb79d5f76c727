"""The extents of the convolutions that operators of a trace describe."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from traceana.flops.arity import MOST_INPUTS
from traceana.flops.aten import convolution, convolution_backward
from traceana.flops.call import Call
from traceana.flops.hints import OUTPUT, with_hints
from traceana.flops.model import Refusal, UncountableError
from traceana.flops.neutral.convolution import Convolution
from traceana.flops.types import element_size

NAMES: Final = (*convolution.SIGNATURES, *convolution_backward.SIGNATURES)
CALL: Final = ("name", "input_shapes", "input_types", "inputs", OUTPUT)
"""The columns of an operator that tell of its convolution, in the order that ``read`` takes."""

_EXTENTS: Final = pl.List(pl.Int64)
SHAPE: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "batch": pl.Int64,
    "in_channels": pl.Int64,
    "out_channels": pl.Int64,
    "groups": pl.Int64,
    "transposed": pl.Boolean,
    "window": _EXTENTS,
    "input": _EXTENTS,
    "output": _EXTENTS,
    "stride": _EXTENTS,
    "dilation": _EXTENTS,
    "element_bytes": pl.Int64,
}
"""Columns of the extents, as of :class:`Convolution`, and the size of an element."""


def read(
    name: str, shapes: str | None, types: str | None, inputs: str | None, output: str | None
) -> tuple[Convolution, int | None] | Refusal:
    """Return the convolution of a call and the bytes of an element, or why it cannot be told."""
    try:
        hint = None if output is None else Call.decode("", output).shape(0)
        call = Call.decode(name, shapes, types, inputs, output=hint)
        most = MOST_INPUTS.get(name, len(call.shapes))
        call = call.inputs(slice(max(len(call.shapes) - most, 0), None))
        size = element_size(call.types[0]) if call.types else None
        if name in convolution.SIGNATURES:
            return convolution.read(call, convolution.SIGNATURES[name]), size
        signature = convolution_backward.SIGNATURES[name]
        return convolution_backward.read(call, signature), size
    except UncountableError as error:
        return Refusal(str(error))


def shapes_of(ops: pl.DataFrame, wanted: pl.Series) -> pl.DataFrame:
    """Return ``operator`` (row of ``ops``) and :data:`SHAPE` of those ``wanted`` that tell them."""
    # All that hints look at are convolutions, their gradients and the nodes around these.
    names = ops.select(pl.col("name").unique()).filter(
        pl.col("name").cast(pl.String).str.contains("(?i)conv")
    )
    rows = ops.with_row_index("op").join(names, on="name", how="semi", maintain_order="left")
    named = with_hints(rows.with_columns(pl.col("name").cast(pl.String)))
    calls = named.filter(pl.col("op").is_in(wanted.drop_nulls().implode())).select("op", *CALL)
    distinct = calls.select(CALL).unique()
    told = pl.DataFrame([_row(*call) for call in distinct.iter_rows()], schema=SHAPE, orient="row")
    return (
        calls.join(distinct.hstack(told), on=CALL, nulls_equal=True)
        .drop_nulls("batch")
        .select(pl.col("op").alias("operator"), *SHAPE)
    )


def _row(name: str, *told: Any) -> tuple[Any, ...]:
    found = read(name, *told)
    if isinstance(found, Refusal):
        return (None,) * len(SHAPE)
    conv, size = found
    return (*(getattr(conv, column) for column in list(SHAPE)[:-1]), size)
