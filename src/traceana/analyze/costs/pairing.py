"""Which layer of a manifest a layer of the trace is."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from traceana.describe.manifest import Layer, Manifest

_SEPARATOR: Final = re.compile(r"[./]")


def paired(layers: pl.DataFrame, model: Manifest) -> dict[int, Layer]:
    """Return by row of ``layers`` the layer of ``model`` that it is, where that is certain.

    By the path, or by its last parts where these are of one layer alone on both sides
    (``alexnet.conv1`` is ``conv1``); else by type and order, where model and trace have equally
    many of a type (``Conv2d_2`` is the third convolution).
    """
    rows = [
        (row, path, kind)
        for row, path, kind, role in layers.with_row_index("row")
        .select("row", "path", "type", "role")
        .iter_rows()
        if role == "layer"
    ]
    found = _by_path(rows, model)
    missing = [entry for entry in rows if entry[0] not in found]
    left = [layer for layer in model.layers if layer not in found.values()]
    return found | _by_order(missing, left)


_Row = tuple[int, str, str | None]


def _by_path(rows: list[_Row], model: Manifest) -> dict[int, Layer]:
    found: dict[int, Layer] = {}
    for depth in (None, 4, 3, 2, 1):
        mine = defaultdict(list)
        theirs = defaultdict(list)
        for row, path, _ in rows:
            mine[_tail(path, depth)].append(row)
        for layer in model.layers:
            theirs[_tail(layer.path, depth)].append(layer)
        for tail, own in mine.items():
            if len(own) == 1 == len(theirs[tail]) and own[0] not in found:
                (layer,) = theirs[tail]
                if layer not in found.values():
                    found[own[0]] = layer
    return found


def _by_order(rows: list[_Row], model: list[Layer]) -> dict[int, Layer]:
    found: dict[int, Layer] = {}
    mine, theirs = defaultdict(list), defaultdict(list)
    for row, _, kind in rows:
        mine[_word(kind)].append(row)
    for layer in model:
        theirs[_word(layer.type)].append(layer)
    for word, own in mine.items():
        if word and len(own) == len(theirs[word]):
            found |= dict(zip(own, theirs[word], strict=True))
    return found


def _tail(path: str, depth: int | None) -> tuple[str, ...]:
    parts = tuple(part for part in _SEPARATOR.split(path) if part)
    return parts if depth is None else parts[-depth:]


def _word(kind: str | None) -> str:
    return (kind or "").lower().replace("_", "")
