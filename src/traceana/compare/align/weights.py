"""The weight of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceana.analyze.layers.operands import Operands
    from traceana.describe.manifest import Layer


def weights(
    taken: Mapping[int, Operands], described: Mapping[int, Layer]
) -> dict[int, tuple[tuple[int, ...], bool]]:
    """Return by row of ``layers`` the extents of its weight, and whether it is a parameter.

    ``described`` are the layers of a manifest; without one the operators (``taken``) tell it, and
    what stands in the weight's place may be an activation.
    """
    found = {row: (tuple(one.weight), one.parameter) for row, one in taken.items() if one.weight}
    for row, layer in described.items():
        if "weight" in layer.parameters:
            found[row] = (tuple(layer.parameters["weight"]), True)
    return found
