"""The convolution or matrix product of each layer of a compiled program (XLA)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from traceana.flops.call import decoded_instruction
from traceana.flops.convolution import as_written
from traceana.flops.cost import Shape, UncountableError

if TYPE_CHECKING:
    from traceana.trace import Trace

_PRODUCT: Final = (pl.col("opcode").cast(pl.String).is_in(["convolution", "dot"])) | (
    pl.col("target").cast(pl.String).str.contains(r"^__(?:cudnn\$convForward|cublas\$|onednn\$)")
)
_OF_CONVOLUTION: Final = re.compile(r"conv_general_dilated\w*$")
"""End of the scope of a convolution, also where XLA made a product of it."""


class Product(NamedTuple):
    """One convolution or product; shapes are batch, channels, spatial axes. None is not known."""

    input: Shape | None
    weight: Shape
    output: Shape | None


def products(trace: Trace) -> dict[int, Product]:
    """Return by row of ``layers`` the first convolution or product that it ran forward.

    It may be inside of what ran: a fusion, a call, a loop. A convolution that XLA made a product
    of has a weight, and no input and output: batch and positions are one axis there.
    """
    if trace.instructions.is_empty():
        return {}
    ran = (
        trace.ops.filter(
            pl.col("layer").is_not_null()
            & pl.col("instruction").is_not_null()
            & (pl.col("direction") == "forward").fill_null(True)
        )
        .select("instruction", "layer")
        .unique("instruction", keep="first", maintain_order=True)
    )
    layers = trace.layers["role"].cast(pl.String) == "layer"
    layer_of = dict(ran.filter(layers.gather(ran["layer"])).iter_rows())
    parents = trace.instructions["parent"].to_list()
    chosen = trace.instructions.with_row_index("row").filter(_PRODUCT.fill_null(False))
    found: dict[int, Product] = {}
    columns = ("scope", "target", "input_shapes", "output_shape", "output_type", "attributes")
    for row, scope, target, *texts in chosen.select(
        "row", *(pl.col(name).cast(pl.String) for name in columns)
    ).iter_rows():
        layer = _holder(row, parents, layer_of)
        if layer is None or layer in found:
            continue
        try:
            of = as_written(decoded_instruction(target or "", *texts))
        except UncountableError:
            continue
        if (to := of.attributes.dimension_numbers) is not None:
            taken = _arranged(of.left, to.input_batch, to.input_feature, to.input_spatial)
            given = _arranged(of.output, to.output_batch, to.output_feature, to.output_spatial)
            found[layer] = Product(taken, of.right, given)
        elif _OF_CONVOLUTION.search(scope or ""):
            found[layer] = Product(None, of.right, None)
        else:
            found[layer] = Product(of.left, of.right, of.output)
    return found


def _holder(row: int, parents: list[int | None], layer_of: dict[int, int]) -> int | None:
    """Return the layer of the instruction, or of the innermost around it that ran for one."""
    at: int | None = row
    while at is not None:
        if at in layer_of:
            return layer_of[at]
        above = parents[at]
        # What holds others stands before them; a trace that says otherwise would never end.
        at = above if above is not None and above < at else None
    return None


def _arranged(shape: Shape, batch: int, feature: int, spatial: list[int]) -> Shape | None:
    axes = (batch, feature, *spatial)
    if sorted(axes) != list(range(len(shape))):
        return None
    return tuple(shape[axis] for axis in axes)
