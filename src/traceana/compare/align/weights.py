"""How many elements the weight of a layer has."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

from traceana.analyze.layers.operands import operands
from traceana.compare.align.vocabulary import type_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceana.describe.manifest import Layer
    from traceana.trace import Trace

_WEIGHTED: Final = frozenset(("conv", "linear", "norm", "embedding"))
"""Kinds whose operators take a weight."""


def weights(trace: Trace, described: Mapping[int, Layer]) -> dict[int, int]:
    """Return by row of ``layers`` the number of elements of its weight, where that is known.

    ``described`` are the layers of a manifest; without one the layer's first operator tells it,
    where that is one with a weight.
    """
    found: dict[int, int] = {}
    for row, one in operands(trace).items():
        known = type_of(one.operator)
        if one.weight and known is not None and known.kind in _WEIGHTED:
            found[row] = prod(one.weight)
    for row, layer in described.items():
        if "weight" in layer.parameters:
            found[row] = prod(layer.parameters["weight"])
    return found
