"""Which part of a layer's work an operator does that ran inside a node of the backward pass.

A matrix product, a sum or a multiplication does not know what it is called for; the node of
autograd's graph around it does. Inside the node of a linear layer one product is the gradient of
the input, the other that of the weight, and the sum that of the bias.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.enrich.nesting import to_rows
from traceana.flops.call import Call
from traceana.flops.coverage import Tree
from traceana.flops.model import Shape, UncountableError

PART = pl.Enum(["forward", "backward", "dgrad", "wgrad", "bias_grad"])

# What a checkpoint runs inside its node is the forward pass over again.
_NODE: Final = r"Backward\d*$|AccumulateGrad$"
_RECOMPUTING: Final = r"Checkpoint\w*Backward\d*$"
_LINEAR_NODE: Final = r"(?:^|: )(?:Addmm|Mm|Linear)Backward\d*$"
# Layers have operators of their own for the backward pass: what of them runs forward inside it is
# recomputed. Only these kinds serve both.
_GENERIC: Final = (
    "elementwise",
    "matmul",
    "batched_matmul",
    "matrix_vector",
    "dot",
    "outer",
    "reduction",
    "copy",
    "fill",
    "indexing",
)


def with_parts(costs: pl.DataFrame, ops: pl.DataFrame, tree: Tree) -> pl.DataFrame:
    """Return ``costs`` (columns ``op``, ``part``, ``kind`` …) with the parts of backward operators.

    Kinds that have formulas of their own for the backward pass keep the part that these gave.
    """
    if costs.is_empty():
        return costs
    node = _nodes(costs, ops, tree)
    names = pl.col("_node_name")
    marked = costs.join(node, on="op", how="left", maintain_order="left")
    linear = marked.filter(names.str.contains(_LINEAR_NODE) & (pl.col("kind") == "matmul")).select(
        "op", "node"
    )
    gradients = _products(linear, ops)
    generic = (pl.col("part") == "forward") & names.is_not_null() & pl.col("kind").is_in(_GENERIC)
    is_bias = (pl.col("kind") == "reduction") & names.str.contains(_LINEAR_NODE)
    part = (
        pl.when(generic & pl.col("_gradient").is_not_null())
        .then(pl.col("_gradient"))
        .when(generic & is_bias)
        .then(pl.lit("bias_grad"))
        .when(generic)
        .then(pl.lit("backward"))
        .otherwise(pl.col("part").cast(pl.String))
    )
    return (
        marked.join(gradients, on="op", how="left", maintain_order="left")
        .with_columns(
            part.cast(PART).alias("part"),
            pl.when(generic & (pl.col("_gradient").is_not_null() | is_bias))
            .then(pl.lit("linear"))
            .otherwise("kind")
            .alias("kind"),
        )
        .select(costs.columns)
    )


def _nodes(costs: pl.DataFrame, ops: pl.DataFrame, tree: Tree) -> pl.DataFrame:
    """Return the node around each counted operator, none where that recomputes."""
    distinct = ops.select(pl.col("name").unique())
    found = distinct.filter(pl.col("name").str.contains(_NODE))["name"]
    recomputing = found.filter(found.str.contains(_RECOMPUTING))
    nearest = tree.nearest(ops["name"].is_in(found.implode()).to_numpy())
    nodes = pl.DataFrame({"op": costs["op"].unique()})
    nodes = nodes.with_columns(to_rows(nearest[nodes["op"].to_numpy()]).alias("node"))
    names = ops.select(pl.col("op").alias("node"), pl.col("name").alias("_node_name"))
    return (
        nodes.filter(pl.col("node").is_not_null())
        .join(names, on="node")
        .filter(~pl.col("_node_name").is_in(recomputing.implode()))
    )


def _products(linear: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Tell the products inside linear layers' nodes apart: columns ``op``, ``_gradient``.

    The gradient of the output is [N, O]: the product over O is the input's gradient, that over N
    the weight's. Where N equals O, autograd computes the input's first; a single one is then
    taken for the weight's, as of a first layer.
    """
    pairs = linear.join(ops.select("op", "start", "input_shapes"), on="op").join(
        ops.select(pl.col("op").alias("node"), pl.col("input_shapes").alias("_of_node")),
        on="node",
    )
    distinct = pairs.select("input_shapes", "_of_node").unique()
    verdicts = [_verdict(*row) for row in distinct.iter_rows()]
    first = (pl.col("start") == pl.col("start").min().over("node")) & (pl.len().over("node") > 1)
    either = pl.when(first).then(pl.lit("dgrad")).otherwise(pl.lit("wgrad"))
    verdict = pl.col("_verdict")
    gradient = pl.when(verdict == "either").then(either).otherwise(verdict)
    return pairs.join(
        distinct.with_columns(pl.Series("_verdict", verdicts, dtype=pl.String)),
        on=["input_shapes", "_of_node"],
        nulls_equal=True,
    ).select("op", gradient.alias("_gradient"))


def _verdict(product: str | None, node: str | None) -> str | None:
    try:
        left, right = (Call.decode("", product).shape(place, 2) for place in (0, 1))
        gradient: Shape = Call.decode("", node).shape(0, 2)
    except UncountableError:
        return None
    (a, k), (_, b) = left, right
    of_input = (a, k) == gradient
    of_weight = k == gradient[0] and gradient[1] in (a, b)
    if of_input and of_weight:
        return "either"
    if of_input:
        return "dgrad"
    return "wgrad" if of_weight else None
