"""Rows of several layers, which a compiler fused: their name, and the time of each layer.

A kernel that a compiler generated for several layers has one time, which is its row's. How much of
it each layer takes is an estimate: such kernels are bound by memory, so by the elements of the
activations that the layer would read and write, and of its parameters, all of one type.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import Final

import polars as pl

from traceana.enrich.layers.source import SEPARATOR
from traceana.runs.layer_manifest import Layer, Manifest
from traceana.table import LONG, PATH, SHARE, TEXT, TIME, Column, schema_of
from traceana.vocabulary.layer_types import type_of

FUSED: Final = "fused"
"""The beginning of the type of a kernel that a compiler generated for several operators."""

COLUMNS: Final = (
    Column("row", LONG, "the row of several layers"),
    Column("layer", PATH, "one of its layers"),
    Column("type", TEXT, "type of that layer"),
    Column(
        "share",
        SHARE,
        "of the row, by the elements that a call reads and writes (an estimate)",
    ),
    Column("time_ns", TIME, "of the layer; these add up to the row's"),
)


def fused_parts(path: str, kind: str | None, layer_paths: Collection[str]) -> tuple[str, ...]:
    """Return the layers in the name ``path`` of a row of type ``kind``, by :func:`together`.

    Each is one of ``layer_paths``; empty for another row.
    """
    first, *others = path.split("+")
    if not others or not (kind or "").startswith(FUSED):
        return ()
    parts = first.split(SEPARATOR)
    # The longest first: layers of one block, where the network has one of that name too.
    starts = (SEPARATOR.join(parts[:end]) for end in reversed(range(len(parts))))
    for start in starts:
        paths = (first, *(SEPARATOR.join(filter(None, (start, name))) for name in others))
        if all(part in layer_paths for part in paths):
            return paths
    return ()


def together(paths: Sequence[str]) -> str:
    """Return one path for several: their common beginning, then the rest of each."""
    if len(paths) == 1:
        return paths[0]
    common = common_path([path.rpartition(SEPARATOR)[0] for path in paths])
    rest = "+".join(path.removeprefix(common).removeprefix(SEPARATOR) for path in paths)
    return SEPARATOR.join(part for part in (common, rest) if part)


def common_path(paths: Sequence[str]) -> str:
    """Return the common beginning of all paths, in whole parts."""
    parts = [path.split(SEPARATOR) for path in paths]
    shared = []
    for those in zip(*parts, strict=False):
        if len(set(those)) > 1:
            break
        shared.append(those[0])
    return SEPARATOR.join(shared)


def is_product(layer: Layer) -> bool:
    """Return whether the layer is a convolution, a linear or a recurrent layer."""
    type_ = type_of(layer.type)
    return type_ is not None and (type_.kind in ("conv", "recurrent") or type_.word == "linear")


def divided(frame: pl.DataFrame, model: Manifest | None) -> pl.DataFrame:
    """Return the layers of the fused rows of ``frame``, a table by layer, with their part of it.

    Columns: ``row`` (the path of the fused row), ``layer``, ``type``, ``share`` (of the row, by the
    elements of one call) and ``time_ns``, which add up to the row's. Rows with a product are left
    out: bytes do not imply its time. So are rows with a layer without shapes in ``model``.
    """
    layers = {} if model is None else {layer.path: layer for layer in model.layers}
    rows = []
    for path, kind, time in frame.select("layer", "type", "time_ns").iter_rows():
        parts = [layers[part] for part in fused_parts(path, kind, layers)]
        if any(map(is_product, parts)):
            continue
        moved = [_elements(part) for part in parts]
        whole = sum(count for count in moved if count is not None)
        if None in moved or not whole:
            continue
        before = until = 0
        for part, elements in zip(parts, moved, strict=True):
            # Rounded from sum to sum, so that the parts add up.
            until += elements or 0
            begin, end = time * before // whole, time * until // whole
            rows.append((path, part.path, part.type, (until - before) / whole, end - begin))
            before = until
    schema = schema_of(COLUMNS)
    return pl.DataFrame(rows, schema=schema, orient="row")


def _elements(layer: Layer) -> int | None:
    """Return the elements that one call reads and writes, None where a shape is unknown."""
    if layer.computes_nothing:
        return 0
    if not layer.inputs or not layer.outputs:
        return None
    return sum(map(prod, (*layer.inputs, *layer.outputs))) + layer.parameter_count
