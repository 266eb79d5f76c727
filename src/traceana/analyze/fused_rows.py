"""The time of a row of several layers, divided among these by the bytes that they move.

A kernel that a compiler generated for several layers has one time, which is its row's. How much of
it each layer takes is an estimate: such kernels are bound by memory, so by the elements of the
activations that the layer would read and write, and of its parameters, all of one type.
"""

from __future__ import annotations

from math import prod
from typing import Final

import polars as pl

from traceana.analyze.manifest_order import fused_parts, is_product
from traceana.model import Manifest
from traceana.model.manifest import Layer

_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "row": pl.String,
    "layer": pl.String,
    "type": pl.String,
    "share": pl.Float64,
    "time_ns": pl.Int64,
}


def divided(frame: pl.DataFrame, model: Manifest | None) -> pl.DataFrame:
    """Return the layers of the fused rows of ``frame``, a table by layer, with their part of it.

    Columns: ``row`` (the path of the fused row), ``layer``, ``type``, ``share`` (of the row, by the
    elements of one call) and ``time_ns``, which add up to the row's. Left out are rows with a
    product, whose time bytes do not tell, and with a layer whose shapes ``model`` does not have.
    """
    layers = {} if model is None else {layer.path: layer for layer in model.layers}
    found = []
    for path, kind, time in frame.select("layer", "type", "time_ns").iter_rows():
        parts = [layers[part] for part in fused_parts(path, kind, layers)]
        if any(map(is_product, parts)):
            continue
        moved = [_elements(part) for part in parts]
        whole = sum(one for one in moved if one is not None)
        if None in moved or not whole:
            continue
        before = until = 0
        for part, elements in zip(parts, moved, strict=True):
            # Rounded from sum to sum, so that the parts add up.
            until += elements or 0
            begin, end = time * before // whole, time * until // whole
            found.append((path, part.path, part.type, (until - before) / whole, end - begin))
            before = until
    return pl.DataFrame(found, schema=_SCHEMA, orient="row")


def _elements(layer: Layer) -> int | None:
    """Return the elements that one call reads and writes, None where a shape is unknown."""
    if layer.computes_nothing:
        return 0
    if not layer.inputs or not layer.outputs:
        return None
    return sum(map(prod, (*layer.inputs, *layer.outputs))) + layer.parameter_count
