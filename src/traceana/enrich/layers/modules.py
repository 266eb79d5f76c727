"""Layers told by calls of nn.Module (Kineto's Python events, ``with_stack=True``)."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import polars as pl

from traceana.enrich.layers.places import SEPARATOR, Layer, Places, tree_of
from traceana.enrich.nesting import Ints

_PREFIX: Final = "nn.Module: "
_INSTANCE: Final = re.compile(r"_\d+$")


def module_places(ranges: pl.DataFrame, key: Ints) -> Places:
    """Return the module calls among ``ranges`` as layers.

    Kineto numbers the instances of a class (``Conv2d_3``), so a text names one module wherever it
    is called from. Its path is the longest under which it was seen: a recomputed forward pass
    begins in the middle of the model.
    """
    wanted = (ranges["kind"] == "module").to_numpy()
    nesting, tree, texts = tree_of(ranges.filter(wanted), key[wanted])
    names = [text.removeprefix(_PREFIX) for text in texts]
    paths = tree.paths(names, SEPARATOR)
    longest: dict[int, tuple[int, str]] = {}
    for code, depth, path in zip(tree.code.tolist(), tree.depths().tolist(), paths, strict=True):
        if code not in longest or depth > longest[code][0]:
            longest[code] = (depth, path)
    layers: list[Layer] = [
        (longest[code][1], _INSTANCE.sub("", name), "layer") for code, name in enumerate(names)
    ]
    layer = tree.code[tree.node] if len(tree.node) else np.zeros(0, dtype=np.int64)
    return Places(nesting, layer, layers)
