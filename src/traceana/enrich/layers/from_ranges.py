"""Layers from annotations: nn.Module calls, Module Hierarchy, NVTX and record_function.

:func:`module_intervals` reads Kineto's Python events (``with_stack=True``),
:func:`hierarchy_layers` the ``Module Hierarchy`` of TorchScript's operators, and
:func:`annotation_intervals` the program's own ranges.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import polars as pl

from traceana.columns.distinct import Texts
from traceana.columns.nesting import NONE, Ints, Nesting
from traceana.enrich.layers.compiled_regions import CALL
from traceana.enrich.layers.layer_intervals import (
    SEPARATOR,
    Layer,
    LayerIntervals,
    PathTree,
    codes,
    nest,
    tree_of,
)
from traceana.enrich.layers.roles import role_of
from traceana.enrich.operators import OPERATOR_TEXT
from traceana.enrich.ranges import BOTH_DIRECTIONS, DIRECTION_ALONE, DIRECTION_WORD
from traceana.enrich.steps import OUTSIDE_TEXT, SET_BY_PROGRAM, STEP_TEXT
from traceana.vocabulary.operators import WEIGHTED, of_kinds

_PREFIX: Final = "nn.Module: "
_INSTANCE: Final = re.compile(r"_\d+$")


def module_intervals(ranges: pl.DataFrame, key: Ints) -> LayerIntervals:
    """Return the module calls among ``ranges`` as layers.

    Kineto numbers the instances of a class (``Conv2d_3``), so a text identifies one module. Its
    path is the longest one recorded, because a recomputed forward pass starts in the middle of the
    model. Of a module that several others share it is that of the first call.
    """
    rows = np.flatnonzero((ranges["kind"] == "module").to_numpy())
    rows = rows[np.argsort(ranges["start"].to_numpy()[rows], kind="stable")]
    nesting, tree, texts = tree_of(ranges[rows], key[rows])
    names = [text.removeprefix(_PREFIX) for text in texts]
    paths, too_long = tree.paths(names, SEPARATOR)
    longest: dict[int, tuple[int, str]] = {}
    for code, depth, path in zip(tree.code.tolist(), tree.depths().tolist(), paths, strict=True):
        if code not in longest or depth > longest[code][0]:
            longest[code] = (depth, path)
    layers: list[Layer] = [
        (longest[code][1], _INSTANCE.sub("", name), "layer") for code, name in enumerate(names)
    ]
    layer = tree.code[tree.node] if len(tree.node) else np.zeros(0, dtype=np.int64)
    return LayerIntervals(nesting, layer, layers, too_long)


# "TOP(AlexNet)::forward.features(Sequential)::forward.0(Conv2d)::_conv_forward"
_CALL: Final = r"[^.():<>]+\([^()]*\)::"


def hierarchy_layers(ops: pl.DataFrame, nesting: Nesting) -> tuple[Ints, list[Layer]]:
    """Return the innermost module of each operator's Module Hierarchy (NONE without), and layers.

    An operator without a Module Hierarchy inherits the module of the enclosing operator. The
    outermost call, the model itself, is not part of the path.
    """
    if ops["module"].null_count() == ops.height:
        return np.full(ops.height, NONE, dtype=np.int64), []
    code, texts = codes(ops["module"].cast(pl.String).fill_null(""))
    calls = pl.Series(texts, dtype=pl.String).str.extract_all(_CALL)
    layers: dict[Layer, int] = {}
    layer_of_text = np.full(len(texts), NONE, dtype=np.int64)
    for i, found in enumerate(calls.to_list()):
        modules = [call.removesuffix(")::").split("(", 1) for call in found[1:]]
        if modules:
            path = SEPARATOR.join(name for name, _ in modules)
            layer_of_text[i] = layers.setdefault((path, modules[-1][1], "layer"), len(layers))
    own = layer_of_text[code] if len(texts) else code
    return nesting.inherit(own), list(layers)


_DIRECTION: Final = re.compile(
    rf"(?i){DIRECTION_ALONE}|^{DIRECTION_WORD} ?[:/.] ?|[ ._:/-]{DIRECTION_WORD}$"
)
"""A direction alone, or before or after a layer: ``forward``, ``bwd: conv1``, ``conv1.bwd``."""

_MODULE: Final = re.compile(r"^nn\.Module\.forward: ")
"""A module's call in a recording of traceana; the rest of the text is the module's whole path."""

_LIBRARIES: Final = (
    *("nccl", "cudnn", "cublas", "cublaslt", "cusolver", "cusparse", "cufft", "cutensor"),
    *("cccl", "cub", "thrust", "nvfuser"),
)
"""NVTX domains in which libraries mark their own calls, in lower case."""
_OF_LIBRARY: Final = r"^(?:cub|thrust)::|^DistributedDataParallel\.forward$"
"""Ranges that a library opens in the program's domain."""


def annotation_intervals(
    ranges: pl.DataFrame, texts: Texts, key: Ints, ops: pl.DataFrame, op_names: Texts, op_key: Ints
) -> LayerIntervals:
    """Return the innermost named ranges as layers, by the path of the ranges around them.

    ``texts`` are those of ``ranges``, ``op_names`` the names of ``ops``.

    Ranges that mark steps, roles or single operators are excluded. A word for the direction is not
    part of the path, so that both directions of a layer have one row. In a trace with operators, a
    range that directly contains more than one weighted operator has ``several`` layers, such as
    ``model`` around a whole network, unless it is the call of a module (:data:`_MODULE`).
    """
    by_library = Texts.of(ranges["domain"]).where(
        pl.col("text").str.to_lowercase().is_in(_LIBRARIES)
    )
    of_program = ranges["kind"].is_in(SET_BY_PROGRAM).to_numpy()
    wanted = texts.where(_names_a_layer()) & of_program & ~by_library
    chosen = ranges.select("text", "start", "duration").filter(wanted)
    nesting = nest(chosen, key[wanted])
    code, names = codes(chosen["text"])
    tree = PathTree.of(nesting, code)
    modules = np.array([_MODULE.search(name) is not None for name in names], dtype=np.bool_)
    shown = [
        _MODULE.sub("", name) if module else _DIRECTION.sub("", name).strip()
        for name, module in zip(names, modules, strict=True)
    ]
    paths, too_long = tree.paths(shown, SEPARATOR, whole=modules)
    crowded = _crowded(nesting, tree, ops, op_names, op_key) & ~modules[tree.code]
    layer_of_node = np.full(len(paths), NONE, dtype=np.int64)
    layers: dict[str, int] = {}
    for node, path in enumerate(paths):
        if path:
            layer_of_node[node] = layers.setdefault(path, len(layers))
    rows: list[Layer] = [(path, None, "layer") for path in layers]
    layer = layer_of_node[tree.node] if len(tree.node) else np.zeros(0, dtype=np.int64)
    return LayerIntervals(nesting, layer, rows, too_long, crowded[tree.node])


def _names_a_layer() -> pl.Expr:
    text = pl.col("text")
    return ~(
        text.str.contains(STEP_TEXT)
        | text.str.contains(OUTSIDE_TEXT)
        | role_of(text).is_not_null()
        | text.str.contains(OPERATOR_TEXT)
        | text.str.contains(BOTH_DIRECTIONS)
        | text.str.contains(_OF_LIBRARY)
        | text.str.starts_with(CALL)
        | (text.str.strip_chars() == "")
    )


def _crowded(
    nesting: Nesting, tree: PathTree, ops: pl.DataFrame, op_names: Texts, op_key: Ints
) -> np.ndarray:
    """Return the nodes with a range that is the innermost around two weighted operators."""
    crowded = np.zeros(len(tree.parent), dtype=np.bool_)
    forward = (ops["direction"] == "forward").fill_null(False).to_numpy()
    weighted = op_names.matching(of_kinds(*WEIGHTED)) & forward
    # Of nested weighted operators (conv2d > convolution), the outermost counts.
    parent = ops["parent"].cast(pl.Int64).fill_null(NONE).to_numpy()
    outermost = weighted & ~((parent != NONE) & weighted[parent])
    around = nesting.innermost(op_key[outermost], ops["start"].to_numpy()[outermost])
    instance, count = np.unique(around[around != NONE], return_counts=True)
    crowded[tree.node[instance[count > 1]]] = True
    return crowded
