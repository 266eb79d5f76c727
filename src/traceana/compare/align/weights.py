"""How many elements the weight of a layer has."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from traceana.analyze.layers.operands import operands

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceana.describe.manifest import Layer
    from traceana.trace import Trace


def weights(trace: Trace, described: Mapping[int, Layer]) -> dict[int, int]:
    """Return by row of ``layers`` the number of elements of its weight, where that is known.

    ``described`` are the layers of a manifest; without one its operators tell it.
    """
    found = {row: prod(one.weight) for row, one in operands(trace).items() if one.weight}
    for row, layer in described.items():
        if "weight" in layer.parameters:
            found[row] = prod(layer.parameters["weight"])
    return found
