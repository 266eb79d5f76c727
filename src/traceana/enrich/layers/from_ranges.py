"""Layers from annotations: nn.Module calls, Module Hierarchy, NVTX and record_function.

:func:`modules` reads Kineto's Python events (``with_stack=True``), :func:`hierarchy` the
``Module Hierarchy`` of TorchScript's operators, and :func:`named_ranges` the program's own ranges.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import polars as pl

from traceana.columns.distinct import Texts
from traceana.columns.nesting import NONE, Flags, take
from traceana.enrich.layers.source import (
    SEPARATOR,
    Layer,
    LayerIntervals,
    OpLayers,
    PathTree,
    Program,
    codes,
    nest,
)
from traceana.enrich.operators import OPERATOR_TEXT
from traceana.enrich.ranges import BOTH_DIRECTIONS, DIRECTION_ALONE, DIRECTION_WORD, role_of
from traceana.enrich.steps import OUTSIDE_TEXT, SET_BY_PROGRAM, STEP_TEXT
from traceana.vocabulary.operators import COMPILED_GRAPH, WEIGHTED, of_kinds

_PREFIX: Final = "nn.Module: "
_INSTANCE: Final = re.compile(r"_\d+$")


def modules(program: Program) -> OpLayers:
    """Return the module calls around operators.

    Kineto numbers the instances of a class (``Conv2d_3``), so a text identifies one module. Its
    path is the longest one recorded, because a recomputed forward pass starts in the middle of the
    model. Of a module that several others share it is that of the first call.
    """
    rows = np.flatnonzero((program.ranges["kind"] == "module").to_numpy())
    rows = rows[np.argsort(program.ranges["start"].to_numpy()[rows], kind="stable")]
    calls = program.ranges[rows]
    nesting = nest(calls, program.range_key[rows])
    code, texts = codes(calls["text"])
    tree = PathTree.of(nesting, code)
    names = [text.removeprefix(_PREFIX) for text in texts]
    paths, too_long = tree.paths(names, SEPARATOR)
    longest: dict[int, tuple[int, str]] = {}
    for text, depth, path in zip(tree.code.tolist(), tree.depths().tolist(), paths, strict=True):
        if text not in longest or depth > longest[text][0]:
            longest[text] = (depth, path)
    layers: list[Layer] = [
        (longest[text][1], _INSTANCE.sub("", name), "layer") for text, name in enumerate(names)
    ]
    intervals = LayerIntervals(nesting, code, too_long)
    return OpLayers(intervals.at(program.op_key, program.start), layers, intervals)


# "TOP(AlexNet)::forward.features(Sequential)::forward.0(Conv2d)::_conv_forward"
_CALL: Final = r"[^.():<>]+\([^()]*\)::"


def hierarchy(program: Program) -> OpLayers:
    """Return the innermost module of each operator's Module Hierarchy.

    An operator without a Module Hierarchy inherits the module of the enclosing operator. The
    outermost call, the model itself, is not part of the path.
    """
    texts = program.ops["module"]
    if texts.null_count() == len(texts):
        return OpLayers(np.full(len(texts), NONE, dtype=np.int64), [])
    code, distinct = codes(texts.cast(pl.String).fill_null(""))
    calls = pl.Series(distinct, dtype=pl.String).str.extract_all(_CALL)
    layers: dict[Layer, int] = {}
    layer_of_text = np.full(len(distinct), NONE, dtype=np.int64)
    for i, calls_in_text in enumerate(calls.to_list()):
        inner_calls = [call.removesuffix(")::").split("(", 1) for call in calls_in_text[1:]]
        if inner_calls:
            path = SEPARATOR.join(name for name, _ in inner_calls)
            layer_of_text[i] = layers.setdefault((path, inner_calls[-1][1], "layer"), len(layers))
    return OpLayers(program.nesting.inherit(layer_of_text[code]), list(layers))


_DIRECTION: Final = re.compile(
    rf"(?i){DIRECTION_ALONE}|^{DIRECTION_WORD} ?[:/.] ?|[ ._:/-]{DIRECTION_WORD}$"
)
"""A direction alone, or before or after a layer: ``forward``, ``bwd: conv1``, ``conv1.bwd``."""

_MODULE: Final = re.compile(r"^(?:nn\.Module\.forward|\[pl\]\[module\][^ ]+): ")
"""A module's call in a recording of traceana or of Lightning's ``PyTorchProfiler``, which names the
class first; the rest of the text is the module's whole path."""

_LIBRARIES: Final = (
    *("nccl", "cudnn", "cublas", "cublaslt", "cusolver", "cusparse", "cufft", "cutensor"),
    *("cccl", "cub", "thrust", "nvfuser"),
)
"""NVTX domains in which libraries mark their own calls, in lower case."""
_LIBRARY_TEXT: Final = r"^(?:cub|thrust)::|^DistributedDataParallel\.forward$|^\[pl\]\[profile\]"
"""Ranges that a library opens in the program's domain; Lightning's are around its hooks."""


def named_ranges(program: Program) -> tuple[OpLayers, Flags, Flags]:
    """Return the program's own ranges as layers, by the path of the ranges around them; which
    operators are in ranges around several layers; and which recompute a layer's forward pass in the
    backward pass.

    Ranges that mark steps, roles or single operators are excluded. A word for the direction is not
    part of the path, so that both directions of a layer have one row. In a trace with operators, a
    range that directly contains more than one weighted operator has several layers, such as
    ``model`` around a whole network or the attention of a transformer around its products, unless
    it is the call of a module (:data:`_MODULE`).
    """
    text, ranges = pl.col("text"), program.ranges
    names_no_layer = (
        text.str.contains(STEP_TEXT)
        | text.str.contains(OUTSIDE_TEXT)
        | role_of(text).is_not_null()
        | text.str.contains(OPERATOR_TEXT)
        | text.str.contains(BOTH_DIRECTIONS)
        | text.str.contains(_LIBRARY_TEXT)
        | text.str.starts_with(COMPILED_GRAPH)
        | (text.str.strip_chars() == "")
    )
    by_library = Texts.of(ranges["domain"]).where(text.str.to_lowercase().is_in(_LIBRARIES))
    of_program = ranges["kind"].is_in(SET_BY_PROGRAM).to_numpy()
    wanted = program.texts.where(~names_no_layer) & of_program & ~by_library
    layer_ranges = ranges.select("text", "start", "duration").filter(wanted)
    nesting = nest(layer_ranges, program.range_key[wanted])
    code, names = codes(layer_ranges["text"])
    tree = PathTree.of(nesting, code)
    of_modules = np.array([_MODULE.search(name) is not None for name in names], dtype=np.bool_)
    shown_names = [
        _MODULE.sub("", name) if module else _DIRECTION.sub("", name).strip()
        for name, module in zip(names, of_modules, strict=True)
    ]
    paths, too_long = tree.paths(shown_names, SEPARATOR, whole=of_modules)
    layers: dict[str, int] = {}
    layer_of_node = np.array(
        [layers.setdefault(path, len(layers)) if path else NONE for path in paths], dtype=np.int64
    )
    rows: list[Layer] = [(path, None, "layer") for path in layers]
    intervals = LayerIntervals(nesting, take(layer_of_node, tree.node), too_long)
    range_around = nesting.innermost(program.op_key, program.start)
    of_op = take(intervals.layer, range_around)
    range_layers = OpLayers(of_op, rows, intervals)
    no_operators = np.zeros(program.ops.height, dtype=np.bool_)
    if not rows or not len(range_around):
        return range_layers, no_operators, no_operators

    # Of nested weighted operators (conv2d > convolution), the outermost counts.
    weighted = program.names.matching(of_kinds(*WEIGHTED)) & program.of_direction("forward")
    parent = program.nesting.parent
    weighted &= ~((parent != NONE) & weighted[parent]) & (range_around != NONE)
    instance, count = np.unique(range_around[weighted], return_counts=True)
    has_several = np.zeros(len(tree.parent), dtype=np.bool_)
    has_several[tree.node[instance[count > 1]]] = True
    has_several &= ~of_modules[tree.code]
    in_several = (range_around != NONE) & has_several[tree.node[range_around]]

    # A checkpoint opens the ranges of its layers within the node of the backward graph that needs
    # them. A range that only occurs within nodes is not part of a layer's forward pass.
    backward = program.of_direction("backward")
    single_layer = np.where(in_several, NONE, of_op)
    range_start = np.where(range_around == NONE, NONE, nesting.start[range_around])
    recomputed = (range_start > program.start[program.root]) & backward & (single_layer != NONE)
    recomputed &= np.isin(single_layer, np.unique(single_layer[~backward]))
    return range_layers, in_several, recomputed
