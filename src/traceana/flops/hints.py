"""What a trace tells of a call elsewhere than in the call.

Traces of PyTorch before 2.1 have no scalar inputs: a convolution's stride and the mask of its
gradients are missing. The node of its backward pass has the shape of its output, and the library's
operators that ran inside a backward one tell which gradients were computed.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.flops.aten.convolution import SIGNATURES as FORWARD
from traceana.flops.aten.convolution_backward import INPUT_GRADIENTS, WEIGHT_GRADIENTS
from traceana.flops.aten.convolution_backward import SIGNATURES as BACKWARD

OUTPUT: Final = "_output"
"""Column: the shape of the result as JSON text, within one more list; null where not known."""
WANTED: Final = "_wanted"
"""Column: bit 0: the gradient of the input was computed, bit 1: that of the weight."""

_NODE: Final = r"Conv\w*Backward\d*$"


def with_hints(ops: pl.DataFrame) -> pl.DataFrame:
    """Return ``ops`` (names as text, row numbers in ``op``) with :data:`OUTPUT`, :data:`WANTED`."""
    forward = ops.filter(pl.col("inputs").is_null() & pl.col("name").is_in(sorted(FORWARD)))
    backward = ops.filter(pl.col("inputs").is_null() & pl.col("name").is_in(sorted(BACKWARD)))
    return ops.join(
        _outputs(ops, forward), on="op", how="left", maintain_order="left", validate="1:1"
    ).join(_wanted(ops, backward), on="op", how="left", maintain_order="left", validate="1:1")


def _outputs(ops: pl.DataFrame, forward: pl.DataFrame) -> pl.DataFrame:
    """Join convolutions and the nodes of their backward pass by sequence number.

    A number that several nodes with different gradients have (threads count by themselves) tells
    nothing.
    """
    keys = ["process", "rank", "sequence"]
    names = ops.filter(pl.col("direction") == "backward").select(pl.col("name").unique())
    nodes = names.filter(pl.col("name").str.contains(_NODE))["name"]
    if forward.is_empty() or nodes.is_empty():
        return pl.DataFrame(schema={"op": pl.UInt32, OUTPUT: pl.String})
    gradients = (
        ops.filter(pl.col("name").is_in(nodes.implode()) & (pl.col("sequence") >= 0))
        .filter(pl.col("input_shapes").is_not_null())
        .group_by(keys)
        .agg(pl.col("input_shapes").unique().alias("_shapes"))
        .filter(pl.col("_shapes").list.len() == 1)
        .select(*keys, pl.col("_shapes").list.first().alias(OUTPUT))
    )
    return (
        forward.select("op", *keys).join(gradients, on=keys, nulls_equal=True).select("op", OUTPUT)
    )


def _wanted(ops: pl.DataFrame, backward: pl.DataFrame) -> pl.DataFrame:
    if backward.is_empty():
        return pl.DataFrame(schema={"op": pl.UInt32, WANTED: pl.Int8})
    inner = (
        ops.select("parent", "name")
        .filter(pl.col("name").is_in([*INPUT_GRADIENTS, *WEIGHT_GRADIENTS]))
        .group_by(pl.col("parent").alias("op"))
        .agg(
            (
                pl.col("name").is_in(INPUT_GRADIENTS).any().cast(pl.Int8)
                + 2 * pl.col("name").is_in(WEIGHT_GRADIENTS).any().cast(pl.Int8)
            ).alias(WANTED)
        )
    )
    return backward.select("op").join(inner, on="op")
