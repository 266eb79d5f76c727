"""How many elements the weight of a layer has."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.compare.align.vocabulary import type_of
from traceana.flops.call import Call
from traceana.flops.model import UncountableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceana.describe.manifest import Layer
    from traceana.trace import Trace

_WEIGHTED: Final = frozenset(("conv", "linear", "norm"))
"""Kinds whose operators take the weight as their second input, in PyTorch."""


def weights(trace: Trace, described: Mapping[int, Layer]) -> dict[int, int]:
    """Return by row of ``layers`` the number of elements of its weight, where that is known.

    ``described`` are the layers of a manifest; without one the second input of the layer's first
    outermost forward operator tells it, where that is an operator with a weight.
    """
    first = (
        trace.ops.filter(
            pl.col("layer").is_not_null()
            & pl.col("input_shapes").is_not_null()
            & (pl.col("direction") == "forward").fill_null(True)
        )
        .sort("depth", "start", maintain_order=True)
        .unique("layer", keep="first", maintain_order=True)
        .select("layer", pl.col("name").cast(pl.String), "input_shapes")
    )
    found: dict[int, int] = {}
    for row, name, text in first.iter_rows():
        known = type_of(name)
        if known is None or known.kind not in _WEIGHTED:
            continue
        try:
            shape = Call.decode("", text).shape(1)
        except UncountableError:
            continue
        if shape:
            found[row] = prod(shape)
    for row, layer in described.items():
        if "weight" in layer.parameters:
            found[row] = prod(layer.parameters["weight"])
    return found
