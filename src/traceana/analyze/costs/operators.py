"""Costs of operators, charged to the layers they are of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.classes import SEARCH
from traceana.analyze.costs.frame import summed
from traceana.analyze.work import work
from traceana.enrich.nesting import NONE, from_rows, to_rows
from traceana.flops.operators import PART, Flags, OperatorCosts, Tree
from traceana.flops.trace_convolutions import executed_by_episode

if TYPE_CHECKING:
    from traceana.trace import Trace

CONVOLUTION: Final = r"^conv"
"""Kinds of which an algorithm decides what is executed."""

_PART_OF: Final = {"fprop": "forward", "dgrad": "dgrad", "wgrad": "wgrad"}


def operator_charges(costs: pl.DataFrame) -> pl.DataFrame:
    """Return what operators compute, of :func:`selected_costs`, by layer."""
    return summed(costs.with_columns(pl.lit(1, pl.Int64).alias("count")))


def selected_costs(trace: Trace, tree: Tree, told: OperatorCosts) -> pl.DataFrame:
    """Return the costs of the operators that the selected work was launched by, and ``layer``.

    ``tree`` and ``told`` are those of all operators. An operator counts if work is of it, or of
    one inside or around it: around, on a CPU, where an operator's time can stand for all that is
    inside it.
    """
    costs = priced(trace, tree, told)
    costs = costs.filter(pl.Series(selected_operators(trace, tree)).gather(costs["op"]))
    return costs.with_columns(_layers(trace.ops["layer"], tree).gather(costs["op"]).alias("layer"))


def priced(trace: Trace, tree: Tree, told: OperatorCosts) -> pl.DataFrame:
    """Return what each counted operator and part computes, with ``executed_flops`` beside.

    The other columns are those of :data:`traceana.flops.operators.COSTS`; ``tree`` and ``told`` are
    those of all operators.
    """
    costs = told.costs
    counted = np.zeros(trace.ops.height, dtype=np.bool_)
    counted[costs["op"].to_numpy()] = True
    executed = _executed(trace, tree.nearest(counted))
    return (
        costs.join(executed, on=["op", "part"], how="left", maintain_order="left")
        .with_columns(
            pl.when(pl.col("kind").str.contains(CONVOLUTION))
            .then(pl.col("flops") + pl.col("saved"))
            .otherwise(pl.col("flops") - pl.col("skipped"))
            .alias("executed_flops")
        )
        .drop("saved", "skipped")
    )


def _layers(layer: pl.Series, tree: Tree) -> pl.Series:
    """Return the layer of each operator, or of the nearest around it that has one."""
    return layer.gather(to_rows(tree.nearest(layer.is_not_null().to_numpy())))


def selected_operators(trace: Trace, tree: Tree) -> Flags:
    """Tell which operators selected work is of or inside of, and on a CPU around.

    What is inside an operator that launched kernels, and launched none itself, did not compute.
    """
    own, around = (np.zeros(trace.ops.height, dtype=np.bool_) for _ in range(2))
    selected = work(trace).filter(pl.col("op").is_not_null())
    own[selected["op"].to_numpy()] = True
    around[selected.filter(pl.col("kind") == "op")["op"].to_numpy()] = True
    return own | tree.inside(around) | tree.holding(own)


def _executed(trace: Trace, counted: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pl.DataFrame:
    """Return by operator and part how much more than a direct convolution was executed.

    Null where the algorithm's count is not known for each of its convolutions.
    """
    of_episode = executed_by_episode(trace.ops, trace.episodes)
    activities = work(trace, "episode", "layer")
    role = trace.layers["role"].cast(pl.String).gather(activities["layer"])
    # Trials compute again what is counted once.
    ran = activities.filter(role.ne_missing(SEARCH))["episode"].drop_nulls().unique()
    operator = from_rows(of_episode["operator"])
    op = np.where(operator == NONE, NONE, counted[operator]) if len(counted) else operator
    return (
        of_episode.with_columns(
            pl.Series("op", op),
            trace.episodes["direction"]
            .replace_strict(_PART_OF, default=None, return_dtype=PART)
            .alias("part"),
            (pl.col("executed_flops") - pl.col("direct_flops")).alias("saved"),
        )
        .filter(pl.col("episode").is_in(ran.implode()) & (pl.col("op") != NONE))
        .group_by(pl.col("op").cast(pl.UInt32), "part")
        .agg(pl.when(pl.col("saved").null_count() == 0).then(pl.col("saved").sum()))
    )
