"""Layers told by nothing but the order of operators: the third conv2d of a step is ``conv2d_2``."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceana.enrich.layers.passes import bursts_before, numbered
from traceana.enrich.layers.places import Layer
from traceana.enrich.nesting import NONE, Ints

_SHORT: Final = (
    r"^(?:autograd::engine::evaluate_function: |aten::|torch\.nn\.functional\.|torch\.|Tensor\.)"
)
_ROLES: Final = {
    **dict.fromkeys(("to", "_to_copy", "copy_", "cuda", "pin_memory"), "data"),
    # PyTorch's autograd node of module hooks: work of no layer.
    "BackwardHookFunction": "hooks",
    # MXNet's engine frees memory.
    "DeleteVariable": "unattributed",
}
"""Outermost operators that are no layer of their own wherever they stand, and their role."""

_SCALAR: Final = r"^\[\s*\[\s*\]"
"""Of recorded shapes: a first input without dimensions."""


def short_name(names: pl.Series) -> pl.Series:
    """Return operator names without the namespace: ``aten::conv2d`` is ``conv2d``."""
    return names.str.replace(_SHORT, "").alias("name")


def position_layers(
    ops: pl.DataFrame, root: Ints, step: Ints, settled: Ints, forward: Ints
) -> tuple[Ints, list[Layer]]:
    """Return, for every operator, a layer by the position of its outermost operator in the step.

    ``root`` holds the row of the outermost operator around each, ``step`` the step of each row,
    ``settled`` its layer where that is known otherwise, ``forward`` the forward operator of each
    backward one. A network that does not change runs its operators in the same order each step, so
    equal positions are the same layer; a step may run it several times
    (:func:`traceana.enrich.layers.passes.numbered`). The counting of batches is of the
    normalization behind it. A backward operator has no position: its layer is its forward
    operator's.
    """
    is_root = root == np.arange(len(root))
    if not len(root):
        return root, []
    linked = np.zeros(len(root), dtype=np.bool_)
    linked[root[forward[forward != NONE]]] = True
    outermost = (
        ops.select(
            *("name", "process", "thread", "start", "input_shapes", "input_types"),
            (pl.col("direction") == "backward").fill_null(False).alias("backward"),
        )
        .with_columns(
            pl.Series("step", step),
            pl.int_range(pl.len()).alias("row"),
            pl.Series("settled", settled != NONE),
            pl.Series("linked", linked),
        )
        .filter(pl.Series(is_root))
        .with_columns(
            short_name(ops["name"].cast(pl.String)).filter(pl.Series(is_root)).alias("short")
        )
        .sort("start", maintain_order=True)
        .with_columns(_counts_batches().alias("counting"))
    )
    passing = ~(pl.col("settled") | pl.col("backward") | pl.col("counting"))
    passing = passing & ~pl.col("short").is_in(list(_ROLES))
    backward = outermost.filter("backward")
    through = outermost.filter(passing).with_columns(pl.lit(0, dtype=pl.Int64).alias("bursts"))
    through = through.with_columns(
        pl.Series(
            "bursts",
            bursts_before(
                through["process"],
                through["start"].to_numpy(),
                backward["process"],
                backward["start"].to_numpy(),
            ),
        )
    )
    outermost = (
        outermost.with_columns(
            pl.int_range(pl.len())
            .over("process", "thread", "step", "short", passing, "settled")
            .alias("nth")
        )
        .join(numbered(through), on="row", how="left", maintain_order="left")
        # What is of no forward pass and of no layer known otherwise is numbered behind the passes.
        .with_columns(
            pl.coalesce(
                "position",
                pl.col("nth")
                + (pl.col("position").max().over("process", "step", "short") + 1).fill_null(0),
            ).alias("position")
        )
        .with_columns(
            pl.when(pl.col("short").is_in(list(_ROLES)))
            .then(pl.col("short"))
            .otherwise(pl.format("{}_{}", "short", "position"))
            .alias("path")
        )
        .with_columns(
            pl.when("counting")
            .then(pl.col(column).shift(-1).over("process", "thread"))
            .otherwise(column)
            .alias(column)
            for column in ("path", "short")
        )
    )
    outermost = outermost.filter(~pl.col("backward"))
    distinct = outermost.select("path", "short").unique("path", maintain_order=True)
    numbers = distinct.select("path").with_row_index("layer")
    joined = outermost.join(numbers, on="path", maintain_order="left")
    layer = np.full(len(root), NONE, dtype=np.int64)
    layer[joined["row"].to_numpy()] = joined["layer"].to_numpy()
    layers: list[Layer] = [
        (path, short, _ROLES.get(short, "layer")) for path, short in distinct.iter_rows()
    ]
    return layer[root], layers


def _counts_batches() -> pl.Expr:
    """Tell of operators in order of time whether they add one to a normalization's count.

    It is an addition to an integer without dimensions. Where no types were recorded it is one if
    an addition stands before every normalization.
    """
    adds = pl.col("short") == "add_"
    follows = (pl.col("short").shift(-1) == "batch_norm").over("process", "thread").fill_null(False)
    integer = pl.col("input_types").str.contains(r'^\["(?:long|int64)').fill_null(False)
    scalar = pl.col("input_shapes").str.contains(_SCALAR).fill_null(False)
    norms = pl.col("short") == "batch_norm"
    every = (~norms | adds.shift(1).over("process", "thread").fill_null(False)).all()
    told = pl.col("input_types").is_not_null() & pl.col("input_shapes").is_not_null()
    return adds & follows & pl.when(told).then(integer & scalar).otherwise(every)
