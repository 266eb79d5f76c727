"""Roles of work outside layers (optimizer, data, collectives), by its ranges and operators."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceana.columns.distinct import Texts
from traceana.columns.nesting import NONE, Flags, Ints, Nesting, from_rows, roots, take
from traceana.enrich.layers.layer_intervals import Layer, LayerIntervals, codes, nest
from traceana.vocabulary.operators import WEIGHTED, of_kinds

ROLE_OF_TEXT: Final = {
    "optimizer": r"(?i)^Optimizer\.|^(?:## )?optimizer(?:[._ ]?step)?(?: ##)?$",
    "data": r"(?i)^enumerate\(DataLoader\)|^(?:load[._ ]?data|data[._ ]?load(?:er|ing)?)$",
    "collective": r"^(?:nccl|gloo|mpi|ucc):|^nccl[A-Z]|^c10d::",
}
"""Pattern of the range texts, by role."""


def role_of(text: pl.Expr) -> pl.Expr:
    """Return the role in a range's text, null without one."""
    return pl.coalesce(
        pl.when(text.str.contains(pattern)).then(pl.lit(role))
        for role, pattern in ROLE_OF_TEXT.items()
    )


def role_intervals(ranges: pl.DataFrame, texts: Texts, key: Ints) -> LayerIntervals:
    """Return the ranges with a role; each text is a row of its own.

    ``texts`` are those of ``ranges``.
    """
    with_role = texts.where(role_of(pl.col("text")).is_not_null())
    wanted = with_role & ranges["kind"].is_in(["annotation", "nvtx"]).to_numpy()
    chosen = ranges.select("text", "start", "duration").filter(wanted)
    code, names = codes(chosen["text"])
    named = pl.DataFrame({"text": names}, schema={"text": pl.String})
    roles = named.select(role_of(pl.col("text"))).to_series()
    layers: list[Layer] = [(text, None, role) for text, role in zip(names, roles, strict=True)]
    return LayerIntervals(nest(chosen, key[wanted]), code, layers)


def closure_operators(
    ops: pl.DataFrame, nesting: Nesting, forward: Ints, intervals: LayerIntervals, around: Ints
) -> Flags:
    """Return which operators belong to the closure of an optimizer's step, not to the update.

    Lightning calls ``optimizer.step(closure)``, and LBFGS calls its closure several times: the
    forward and the backward pass are then inside the range of the step. A closure begins with the
    step, or with the first operator that has a backward node within the step, and ends with its
    backward pass. ``around`` is the innermost of the ``intervals`` around each operator,
    ``forward`` that of :func:`traceana.enrich.operators.forward_of`.
    """
    is_step = [role == "optimizer" and _ZERO_GRAD not in text for text, _, role in intervals.layers]
    # The last entry is that of NONE.
    row = np.where(np.array([*is_step, False])[take(intervals.layer, around)], around, NONE)
    start = ops["start"].to_numpy()
    nodes = np.flatnonzero(forward != NONE)
    of_node = row[forward[nodes]]
    within = (of_node != NONE) & (start[nodes] < take(intervals.nesting.end, of_node))
    if not within.any():
        return np.zeros(len(start), dtype=np.bool_)
    root = roots(nesting)
    rows = [
        np.flatnonzero(np.isin(row, of_node[within]) & (root == np.arange(len(root)))),
        root[forward[nodes[within]]],
        nodes[within],
    ]
    steps = [row[rows[0]], of_node[within], of_node[within]]
    found = (
        pl.concat(
            pl.DataFrame({"row": some, "step": step, "start": start[some]}).with_columns(
                pl.lit(updating, dtype=pl.Boolean).alias("updating")
            )
            for some, step, updating in zip(rows, steps, (None, False, True), strict=True)
        )
        .group_by("row", "step", "start")
        .agg(pl.col("updating").drop_nulls().last())
        .sort("step", "start", "row")
        .with_columns(pl.col("updating").forward_fill().over("step").fill_null(value=False))
    )
    backward = (ops["direction"] == "backward").fill_null(value=False).to_numpy()
    closure = np.zeros(len(start), dtype=np.bool_)
    closure[found.filter(~pl.col("updating"))["row"].to_numpy()] = True
    inside: Flags = (row != NONE) & (closure[root] | backward)
    return inside


_COLLECTIVE_OP: Final = (
    r"^c10d::|^torch\.distributed\.|^record_param_comms$|^_?c10d_functional::|"
    r"^(?:nccl|gloo|mpi|ucc):"
)


def collective_layers(ops: pl.DataFrame, nesting: Nesting) -> tuple[Ints, list[Layer]]:
    """Return the row of the enclosing communication operator's name for each operator, and rows.

    The row is NONE outside communication operators. The hooks of DDP run inside a node of the
    backward graph, but their reduction does not belong to that node's layer.
    """
    names = ops.select(pl.col("name").unique(maintain_order=True)).filter(
        pl.col("name").cast(pl.String).str.contains(_COLLECTIVE_OP)
    )
    if names.is_empty():
        return np.full(ops.height, NONE, dtype=np.int64), []
    numbered = ops.select("name").join(
        names.with_row_index("layer"), on="name", how="left", maintain_order="left"
    )
    layer = nesting.inherit(from_rows(numbered["layer"]))
    layers: list[Layer] = [
        (name, None, "collective") for name in names["name"].cast(pl.String).to_list()
    ]
    return layer, layers


OPTIMIZER: Layer = ("optimizer", None, "optimizer")
"""The row of parameter updates outside all ranges of an optimizer."""

MULTI_TENSOR: Final = "multi_tensor_apply"
"""Part of the names of kernels that Apex and DeepSpeed launch outside operators."""

SEEDS: Final = "aten::randint"
"""Draws the seeds of a compiled graph, whose generated code computes random numbers with them."""

_OPTIMIZER_OP: Final = (
    r"(?:^|::|\.)(?:_fused_\w+_|_amp_(?:foreach|update)_\w+|multi_tensor_\w+)(?:\.\w+)?$|"
    # MXNet's optimizers are operators.
    r"^\w*(?:sgd|adam|rmsprop|ftrl|ftml|nag|signum|lamb|adagrad|adadelta)\w*_update(?:_phase[12])?$"
)
_FOREACH: Final = r"(?:^|::|\.)_foreach_\w+(?:\.\w+)?$"
_FOREACH_COPY: Final = r"(?:^|::|\.)_foreach_copy_(?:\.\w+)?$"
_UPDATE: Final = r"(?:^|::|\.)(?:add|sub|mul|div|addcmul|addcdiv|lerp|zero)_$"
_ZERO_GRAD: Final = "zero_grad"


def optimizer_layers(
    ops: pl.DataFrame,
    op_names: Texts,
    nesting: Nesting,
    forward: Ints,
    step: Ints,
    ranges: pl.DataFrame,
) -> tuple[Ints, list[Layer]]:
    """Return the row of each operator that updates parameters or is inside one, and the rows.

    These are the operators of fused optimizers, and the foreach operators after the begin of a
    step's backward pass, one row per name: an inference scales and copies lists of tensors too, as
    sharded parameters before they are gathered. In a process without
    them and without a range of an optimizer's step, they are the operators after the backward pass
    of a step, up to the last in-place operator, and before the first operator that has weights or
    a backward node: an update without an optimizer class.
    ``forward`` is that of :func:`traceana.enrich.operators.forward_of`.
    """
    named = op_names.matching(_OPTIMIZER_OP) | _foreach_updates(ops, op_names, step)
    names = ops["name"].filter(pl.Series(named)).unique(maintain_order=True)
    numbered = ops.select("name").join(
        names.to_frame().with_row_index("layer", offset=1),
        on="name",
        how="left",
        maintain_order="left",
    )
    own = from_rows(numbered["layer"]).copy()
    if len(own):
        own[_manual_updates(ops, op_names, nesting, forward, step, named, ranges)] = 0
    layers: list[Layer] = [(name, None, "optimizer") for name in names.cast(pl.String).to_list()]
    return nesting.inherit(own), [OPTIMIZER, *layers]


def _foreach_updates(ops: pl.DataFrame, op_names: Texts, step: Ints) -> Flags:
    foreach = op_names.matching(_FOREACH) & ~op_names.matching(_FOREACH_COPY)
    if not foreach.any():
        return foreach
    timed = ops.select("process", "start", "direction", step=pl.Series(step))
    backward = pl.col("start").filter(pl.col("direction") == "backward").min()
    after = timed.select((pl.col("start") > backward.over("process", "step")).fill_null(False))
    return np.asarray(foreach & after.to_series().to_numpy())


def _manual_updates(
    ops: pl.DataFrame,
    op_names: Texts,
    nesting: Nesting,
    forward: Ints,
    step: Ints,
    named: Flags,
    ranges: pl.DataFrame,
) -> Flags:
    is_forward = (ops["direction"] == "forward").fill_null(False).to_numpy()
    updates: Flags = op_names.matching(_UPDATE) & is_forward
    if not updates.any():
        return updates
    root = roots(nesting)
    rows = np.flatnonzero(root == np.arange(ops.height))
    opens = np.zeros(ops.height, dtype=np.bool_)
    opens[root[op_names.matching(of_kinds(*WEIGHTED)) & is_forward]] = True
    creators = forward[forward != NONE]
    opens[root[creators[is_forward[creators]]]] = True
    texts = Texts.of(ranges["text"])
    steps = texts.matching(ROLE_OF_TEXT["optimizer"]) & ~texts.matching(_ZERO_GRAD)
    by_range, by_operator = ranges.filter(pl.Series(steps)), ops.filter(pl.Series(named))
    optimized = pl.concat([by_range["process"], by_operator["process"]]).fill_null(NONE).unique()
    marker = pl.when(pl.col("forward").not_()).then(1).when("opens").then(0)
    run = ["process", "step", "run"]
    found = (
        ops.select(pl.col("process").fill_null(NONE), "start")[rows]
        .with_columns(
            pl.Series("thread", nesting.key[rows]),
            pl.Series("step", step[rows]),
            pl.Series("forward", is_forward[rows]),
            pl.Series("opens", opens[rows]),
            pl.Series("updates", updates[rows]),
            pl.Series("row", rows),
        )
        .filter(~pl.col("process").is_in(optimized.implode()))
        .sort("start", "row")
        .with_columns(marker.alias("marker"))
        .with_columns(
            pl.col("marker").forward_fill().over("process", "step").alias("behind"),
            pl.col("marker").is_not_null().cum_sum().over("process", "step").alias("run"),
        )
        .filter(pl.col("marker").is_null() & (pl.col("behind") == 1))
        .filter(pl.col("updates").cum_max(reverse=True).over(*run, "thread"))
    )
    manual = np.zeros(ops.height, dtype=np.bool_)
    manual[found["row"].to_numpy()] = True
    return manual
