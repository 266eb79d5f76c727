"""The forward operator of every backward one: by the profiler's flows or autograd's numbers."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceana.attribute.nesting import NONE, Ints, Nesting, inherit, thread_keys

_EVALUATES: Final = "autograd::engine::evaluate_function: "


def forward_of(ops: pl.DataFrame, nesting: Nesting, links: pl.DataFrame) -> Ints:
    """Return, for every operator, the row of the forward operator that it is the backward of.

    ``ops`` carry their direction. A flow decides where there is one. Otherwise the sequence number
    does: among the forward operators that saw number *s* the one that started last created the
    node *s* of the graph, for the number grows when a node is created. What runs inside a backward
    node belongs to that node, and the engine's call of a node is the node's too.
    """
    forward = _by_flow(ops, nesting, links)
    by_number = _by_sequence(ops)
    forward = np.where(forward == NONE, by_number, forward)
    return inherit(nesting, _of_evaluated(ops, nesting, forward))


def _of_evaluated(ops: pl.DataFrame, nesting: Nesting, forward: Ints) -> Ints:
    """Give the engine's call of a node what the node says, where it says nothing itself.

    A range that a hook opens in the call and another closes overlaps it, and PyTorch then writes
    the call without its sequence number.
    """
    evaluates = ops["name"].cast(pl.String).str.starts_with(_EVALUATES).to_numpy()
    parent = nesting.parent
    node = np.flatnonzero((forward != NONE) & (parent != NONE))
    node = node[evaluates[parent[node]] & (forward[parent[node]] == NONE)]
    completed = forward.copy()
    completed[parent[node]] = forward[node]
    return completed


def _by_flow(ops: pl.DataFrame, nesting: Nesting, links: pl.DataFrame) -> Ints:
    forward = np.full(ops.height, NONE, dtype=np.int64)
    if links.is_empty():
        return forward
    origin = links.select(
        pl.col("from_process").alias("process"), pl.col("from_thread").alias("thread")
    )
    target = links.select(
        pl.col("to_process").alias("process"), pl.col("to_thread").alias("thread")
    )
    op_keys, origin_keys, target_keys = thread_keys(ops, origin, target)
    nesting = nesting.renumbered(op_keys)
    source = nesting.innermost(origin_keys, links["from_time"].to_numpy())
    sink = nesting.innermost(target_keys, links["to_time"].to_numpy())
    known = (source != NONE) & (sink != NONE)
    forward[sink[known]] = source[known]
    return forward


def _by_sequence(ops: pl.DataFrame) -> Ints:
    numbered = (
        ops.lazy()
        .with_row_index("op")
        .filter(pl.col("sequence") >= 0)
        .select("op", "process", "sequence", "start", "direction")
    )
    creators = (
        numbered.filter(pl.col("direction") == "forward")
        .sort("start")
        .select("process", "sequence", "start", pl.col("op").alias("forward"))
    )
    # Numbers are per thread and may come again: the last creator before the backward node counts.
    found = (
        numbered.filter(pl.col("direction") == "backward")
        .sort("start")
        .join_asof(
            creators,
            on="start",
            by=["process", "sequence"],
            strategy="backward",
            check_sortedness=False,
        )
        .filter(pl.col("forward").is_not_null())
        .select("op", "forward")
        .collect()
    )
    forward = np.full(ops.height, NONE, dtype=np.int64)
    forward[found["op"].to_numpy()] = found["forward"].to_numpy()
    return forward
