"""Roles of work outside layers (optimizer, data, collectives), by its ranges and operators."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceana.columns.nesting import NONE, Flags, from_rows, take
from traceana.enrich.layers.source import Layer, LayerIntervals, OpLayers, Program, codes, nest
from traceana.enrich.ranges import ROLE_OF_TEXT, role_of
from traceana.vocabulary.operators import WEIGHTED, of_kinds

_ZERO_GRAD: Final = "zero_grad"


def role_ranges(program: Program) -> OpLayers:
    """Return the ranges with a role around operators; each text is a row.

    The closure of an optimizer's step has no role. Lightning calls ``optimizer.step(closure)``, and
    LBFGS calls its closure several times: the forward and the backward pass are then inside the
    range of the step. A closure begins with the step, or with the first operator that has a
    backward node within the step, and ends with its backward pass. A step of such an optimizer that
    has no backward pass was cut by the end of the recording, within its closure.
    """
    with_role = program.texts.where(role_of(pl.col("text")).is_not_null())
    wanted = with_role & program.ranges["kind"].is_in(["annotation", "nvtx"]).to_numpy()
    chosen = program.ranges.select("text", "start", "duration").filter(wanted)
    code, names = codes(chosen["text"])
    named = pl.DataFrame({"text": names}, schema={"text": pl.String})
    roles = named.select(role_of(pl.col("text"))).to_series()
    layers: list[Layer] = [(text, None, role) for text, role in zip(names, roles, strict=True)]
    intervals = LayerIntervals(nest(chosen, program.range_key[wanted]), code)

    start, root, forward = program.start, program.root, program.forward
    around = intervals.nesting.innermost(program.op_key, start)
    of_op = take(code, around)
    is_step = [role == "optimizer" and _ZERO_GRAD not in text for text, _, role in layers]
    # The last entry is that of NONE.
    row = np.where(np.array([*is_step, False])[of_op], around, NONE)
    nodes = np.flatnonzero(forward != NONE)
    of_node = row[forward[nodes]]
    within = (of_node != NONE) & (start[nodes] < take(intervals.nesting.end, of_node))
    if not within.any():
        return OpLayers(of_op, layers, intervals)
    outermost = np.flatnonzero(np.isin(row, of_node[within]) & (root == np.arange(len(root))))
    rows = [outermost, root[forward[nodes[within]]], nodes[within]]
    steps = [row[outermost], of_node[within], of_node[within]]
    updates_by_step = (
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
    closure = np.zeros(len(start), dtype=np.bool_)
    closure[updates_by_step.filter(~pl.col("updating"))["row"].to_numpy()] = True
    calls_closure = np.isin(of_op, of_op[forward[nodes[within]]])
    closure[np.flatnonzero(calls_closure & (row != NONE) & ~np.isin(row, of_node[within]))] = True
    in_closure = (row != NONE) & (closure[root] | program.of_direction("backward"))
    return OpLayers(np.where(in_closure, NONE, of_op), layers, intervals)


_COLLECTIVE_OP: Final = (
    r"^c10d::|^torch\.distributed\.|^record_param_comms$|^_?c10d_functional::|"
    r"^(?:nccl|gloo|mpi|ucc):"
)


def collectives(program: Program) -> OpLayers:
    """Return the communication operators around operators, a row of each name.

    The hooks of DDP run inside a node of the backward graph, but their reduction does not belong to
    that node's layer.
    """
    return _by_name(program, program.names.matching(_COLLECTIVE_OP), "collective")


_FETCH: Final = r"^\w*Iterator\w*GetNext\w*$"
"""TensorFlow's operators that take the next batch from the input pipeline, and copy it."""


def batch_fetches(program: Program) -> OpLayers:
    """Return the operators that fetch a batch around operators, a row of each name."""
    return _by_name(program, program.names.matching(_FETCH), "data")


def _by_name(program: Program, chosen: Flags, role: str) -> OpLayers:
    """Return the ``chosen`` operators around operators, a row of each name."""
    names = program.ops["name"].filter(chosen).unique(maintain_order=True)
    if not len(names):
        return OpLayers(np.full(len(chosen), NONE, dtype=np.int64), [])
    numbered = program.ops.select("name").join(
        names.to_frame().with_row_index("layer"), on="name", how="left", maintain_order="left"
    )
    layers: list[Layer] = [(name, None, role) for name in names.cast(pl.String).to_list()]
    return OpLayers(program.nesting.inherit(from_rows(numbered["layer"])), layers)


OPTIMIZER: Layer = ("optimizer", None, "optimizer")
"""The row of parameter updates outside all ranges of an optimizer."""

MULTI_TENSOR: Final = "multi_tensor_apply"
"""Part of the names of kernels that Apex and DeepSpeed launch outside operators."""

_OPTIMIZER_OP: Final = (
    r"(?:^|::|\.)(?:_fused_\w+_|_amp_(?:foreach|update)_\w+|multi_tensor_\w+)(?:\.\w+)?$|"
    # MXNet's optimizers are operators.
    r"^\w*(?:sgd|adam|rmsprop|ftrl|ftml|nag|signum|lamb|adagrad|adadelta)\w*_update(?:_phase[12])?$"
)
_FOREACH: Final = r"(?:^|::|\.)_foreach_\w+(?:\.\w+)?$"
_FOREACH_COPY: Final = r"(?:^|::|\.)_foreach_copy_(?:\.\w+)?$"
_UPDATE: Final = r"(?:^|::|\.)(?:add|sub|mul|div|addcmul|addcdiv|lerp|zero)_$"


def optimizers(program: Program) -> OpLayers:
    """Return the operators that update parameters, of operators and of what is inside them.

    These are the operators of fused optimizers, and the foreach operators after the begin of a
    step's backward pass, one row per name: an inference scales and copies lists of tensors too, as
    sharded parameters before they are gathered. In a process without them and without a range of an
    optimizer's step, they are the operators after the backward pass of a step, up to the last
    in-place operator, and before the first operator that has weights or a backward node: an update
    without an optimizer class.
    """
    ops, names, root = program.ops, program.names, program.root
    foreach = names.matching(_FOREACH) & ~names.matching(_FOREACH_COPY)
    if foreach.any():
        timed = ops.select("process", "start", "direction", step=pl.Series(program.step))
        backward = pl.col("start").filter(pl.col("direction") == "backward").min()
        after = timed.select((pl.col("start") > backward.over("process", "step")).fill_null(False))
        foreach &= after.to_series().to_numpy()
    named = names.matching(_OPTIMIZER_OP) | foreach
    by_operator_name = _by_name(program, named, "optimizer")
    is_forward = program.of_direction("forward")
    updates = names.matching(_UPDATE) & is_forward
    if not updates.any():
        return by_operator_name
    rows = np.flatnonzero(root == np.arange(ops.height))
    starts_forward = np.zeros(ops.height, dtype=np.bool_)
    starts_forward[root[names.matching(of_kinds(*WEIGHTED)) & is_forward]] = True
    creators = program.forward[program.forward != NONE]
    starts_forward[root[creators[is_forward[creators]]]] = True
    steps = program.texts.matching(ROLE_OF_TEXT["optimizer"])
    steps &= ~program.texts.matching(_ZERO_GRAD)
    by_range, by_operator = program.ranges.filter(pl.Series(steps)), ops.filter(pl.Series(named))
    with_optimizer = (
        pl.concat([by_range["process"], by_operator["process"]]).fill_null(NONE).unique()
    )
    marker = pl.when(pl.col("forward").not_()).then(1).when("opens").then(0)
    run = ["process", "step", "run"]
    updates_by_hand = (
        ops.select(pl.col("process").fill_null(NONE), "start")[rows]
        .with_columns(
            pl.Series("thread", program.nesting.key[rows]),
            pl.Series("step", program.step[rows]),
            pl.Series("forward", is_forward[rows]),
            pl.Series("opens", starts_forward[rows]),
            pl.Series("updates", updates[rows]),
            pl.Series("row", rows),
        )
        .filter(~pl.col("process").is_in(with_optimizer.implode()))
        .sort("start", "row")
        .with_columns(marker.alias("marker"))
        .with_columns(
            pl.col("marker").forward_fill().over("process", "step").alias("behind"),
            pl.col("marker").is_not_null().cum_sum().over("process", "step").alias("run"),
        )
        .filter(pl.col("marker").is_null() & (pl.col("behind") == 1))
        .filter(pl.col("updates").cum_max(reverse=True).over(*run, "thread"))
    )
    of_op = by_operator_name.of_op.copy()
    of_op[updates_by_hand["row"].to_numpy()] = len(by_operator_name.layers)
    return OpLayers(program.nesting.inherit(of_op), [*by_operator_name.layers, OPTIMIZER])
