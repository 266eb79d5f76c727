"""Layers told by nothing but the order of operators: the third conv2d of a step is ``conv2d_2``."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceana.attribute.layers.places import Layer
from traceana.attribute.nesting import NONE, Ints

_SHORT: Final = (
    r"^(?:autograd::engine::evaluate_function: |aten::|torch\.nn\.functional\.|torch\.|Tensor\.)"
)
_ROLES: Final = {
    **dict.fromkeys(("to", "_to_copy", "copy_", "cuda", "pin_memory"), "data"),
    # The last node of the backward graph adds into param.grad: of the step, not of a layer.
    "torch::autograd::AccumulateGrad": "optimizer",
    # What a module's backward hook puts around it: one row for all.
    "BackwardHookFunction": "layer",
}
"""Outermost operators that are no layer of their own wherever they stand, and their role."""


def short_name(names: pl.Series) -> pl.Series:
    """Return operator names without the namespace: ``aten::conv2d`` is ``conv2d``."""
    return names.str.replace(_SHORT, "").alias("name")


def position_layers(ops: pl.DataFrame, root: Ints, step: Ints) -> tuple[Ints, list[Layer]]:
    """Return, for every operator, a layer by the position of its outermost operator in the step.

    ``root`` holds the row of the outermost operator around each, ``step`` the step of each row. A
    network that does not change runs its operators in the same order each step, so equal positions
    are the same layer.
    """
    is_root = root == np.arange(len(root))
    if not len(root):
        return root, []
    outermost = (
        ops.select("name", "process", "thread", "start")
        .with_columns(pl.Series("step", step), pl.int_range(pl.len()).alias("row"))
        .filter(pl.Series(is_root))
        .with_columns(
            short_name(ops["name"].cast(pl.String)).filter(pl.Series(is_root)).alias("short")
        )
        .sort("start", maintain_order=True)
        .with_columns(
            pl.int_range(pl.len()).over("process", "thread", "step", "short").alias("position")
        )
        .with_columns(
            pl.when(pl.col("short").is_in(list(_ROLES)))
            .then(pl.col("short"))
            .otherwise(pl.format("{}_{}", "short", "position"))
            .alias("path")
        )
    )
    distinct = outermost.select("path", "short").unique("path", maintain_order=True)
    numbered = distinct.select("path").with_row_index("layer")
    joined = outermost.join(numbered, on="path", maintain_order="left")
    layer = np.full(len(root), NONE, dtype=np.int64)
    layer[joined["row"].to_numpy()] = joined["layer"].to_numpy()
    layers: list[Layer] = [
        (path, short, _ROLES.get(short, "layer")) for path, short in distinct.iter_rows()
    ]
    return layer[root], layers
