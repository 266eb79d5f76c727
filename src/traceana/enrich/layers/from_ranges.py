"""Layers from what the program marks: nn.Module calls, Module Hierarchy, NVTX and record_function.

:func:`module_places` reads Kineto's Python events (``with_stack=True``), :func:`hierarchy_layers`
the ``Module Hierarchy`` that TorchScript's operators carry, :func:`annotation_places` the ranges
that the program itself sets.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import polars as pl

from traceana.enrich.layers.places import SEPARATOR, Layer, PathTree, Places, codes, nest, tree_of
from traceana.enrich.layers.roles import WEIGHTED, role_of
from traceana.enrich.nesting import NONE, Ints, Nesting, inherit, matching
from traceana.enrich.operators import OPERATOR_TEXT
from traceana.enrich.ranges import BOTH_DIRECTIONS, DIRECTION_ALONE, DIRECTION_WORD
from traceana.enrich.steps import STEP_TEXT, WARM_UP_TEXT

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


# "TOP(AlexNet)::forward.features(Sequential)::forward.0(Conv2d)::_conv_forward"
_CALL: Final = r"[^.():<>]+\([^()]*\)::"


def hierarchy_layers(ops: pl.DataFrame, nesting: Nesting) -> tuple[Ints, list[Layer]]:
    """Return, for every operator, the module that its Module Hierarchy ends in, NONE without one.

    An operator without one inherits that of the enclosing operator. The outermost call, the model
    itself, is not part of the path.
    """
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
    return inherit(nesting, own), list(layers)


_DIRECTION: Final = re.compile(
    rf"(?i){DIRECTION_ALONE}|^{DIRECTION_WORD} ?[:/.] ?|[ ._:/-]{DIRECTION_WORD}$"
)
"""A direction alone, before or behind a layer: ``forward``, ``backward: conv1``, ``conv1.bwd``."""

_LIBRARIES: Final = ("NCCL", "cuDNN", "cuBLAS")
"""NVTX domains in which a library draws its own calls."""

OPERAND_POSITIONS: Final[dict[str, tuple[int, int]]] = {
    "aten::embedding": (1, 0),
    **dict.fromkeys(("aten::layer_norm", "aten::native_layer_norm", "aten::group_norm"), (0, 2)),
    # A bias, or what else is added to the product, stands in front.
    **dict.fromkeys(
        [
            f"aten::{name}{in_place}"
            for name in ("addmm", "baddbmm", "addbmm", "addmv", "sspaddmm")
            for in_place in ("", "_")
        ],
        (1, 2),
    ),
    "aten::_addmm_activation": (1, 2),
}
"""Where PyTorch's operators have their input and their weight, if not first and second."""


def annotation_places(ranges: pl.DataFrame, key: Ints, ops: pl.DataFrame, op_key: Ints) -> Places:
    """Return as layers the innermost named ranges, by the path of the ranges around them.

    Left out are ranges that mark steps, roles or single operators. A word for the direction is not
    part of the path, so that both directions of a layer meet in one row. Where the trace has
    operators, a range counts only if it never holds more than one weighted operator of its own:
    ``## forward ##`` around a whole network is not a layer.
    """
    texts = ranges.select("text").unique().with_columns(_names_a_layer())
    judged = ranges.select("text", "kind", "domain", "start", "duration").join(
        texts, on="text", how="left", maintain_order="left"
    )
    by_library = pl.col("domain").cast(pl.String).is_in(_LIBRARIES).fill_null(False)
    wanted = (
        judged.select(
            pl.col("named").fill_null(False)
            & pl.col("kind").is_in(["annotation", "nvtx"])
            & ~by_library
        )
        .to_series()
        .to_numpy()
    )
    chosen = judged.filter(wanted)
    nesting = nest(chosen, key[wanted])
    code, names = codes(chosen["text"])
    tree = PathTree.of(nesting, code)
    paths = tree.paths([_DIRECTION.sub("", name).strip() for name in names], SEPARATOR)
    crowded = _crowded(nesting, tree, ops, op_key)
    layer_of_node = np.full(len(paths), NONE, dtype=np.int64)
    layers: dict[str, int] = {}
    for node, path in enumerate(paths):
        if path and not crowded[node]:
            layer_of_node[node] = layers.setdefault(path, len(layers))
    rows: list[Layer] = [(path, None, "layer") for path in layers]
    layer = layer_of_node[tree.node] if len(tree.node) else np.zeros(0, dtype=np.int64)
    return Places(nesting, layer, rows)


def _names_a_layer() -> pl.Expr:
    text = pl.col("text").cast(pl.String)
    return ~(
        text.str.contains(STEP_TEXT)
        | text.str.contains(WARM_UP_TEXT)
        | role_of(text).is_not_null()
        | text.str.contains(OPERATOR_TEXT)
        | text.str.contains(BOTH_DIRECTIONS)
        | (text.str.strip_chars() == "")
    ).alias("named")


def _crowded(nesting: Nesting, tree: PathTree, ops: pl.DataFrame, op_key: Ints) -> np.ndarray:
    """Return the nodes with a range that is the innermost around two weighted operators."""
    crowded = np.zeros(len(tree.parent), dtype=np.bool_)
    forward = (ops["direction"] == "forward").fill_null(False).to_numpy()
    weighted = matching(ops["name"], WEIGHTED) & forward
    # Of nested spellings of one operator (conv2d > convolution) the outermost counts.
    parent = ops["parent"].cast(pl.Int64).fill_null(NONE).to_numpy()
    outermost = weighted & ~((parent != NONE) & weighted[parent])
    around = nesting.innermost(op_key[outermost], ops["start"].to_numpy()[outermost])
    instance, count = np.unique(around[around != NONE], return_counts=True)
    crowded[tree.node[instance[count > 1]]] = True
    return crowded
