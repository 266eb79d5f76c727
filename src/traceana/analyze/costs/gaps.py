"""Work without a count: which operators it is of, and why they have none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.work import work
from traceana.attribute.nesting import to_rows
from traceana.flops.coverage import Tree
from traceana.flops.hlo import instruction_flops
from traceana.flops.operators import OperatorCosts

if TYPE_CHECKING:
    from traceana.trace import Trace

PASSIVE: Final = "moves, allocates or views data alone"
AROUND: Final = "operators inside it are counted in their own rows, their time is here"
PARTLY: Final = (
    "of the operators inside it some are counted in their own rows, others have no count"
)
HOLDING: Final = "operators inside it have no count"

COUNTED: Final = (PASSIVE, AROUND, PARTLY)
"""Reasons that leave out no work, or not all of it."""


def reasons(tree: Tree, costs: OperatorCosts) -> pl.Series:
    """Return of each operator why it has no count; null where it, or one around it, has one."""
    rows = len(tree.parent)
    counted, computes, gap, whole = (np.zeros(rows, dtype=np.bool_) for _ in range(4))
    counted[costs.costs["op"].to_numpy()] = True
    computes[costs.costs.filter(pl.col("flops") > 0)["op"].to_numpy()] = True
    gap[costs.gaps["op"].to_numpy()] = True
    whole[costs.gaps.filter("whole")["op"].to_numpy()] = True
    of = to_rows(np.where(gap, np.arange(rows), tree.nearest(whole)))
    own = pl.DataFrame({"op": of}).join(costs.gaps, on="op", how="left", maintain_order="left")
    none, holding = pl.col("reason").is_not_null(), pl.Series(tree.holding(gap))
    around = pl.Series(tree.holding(computes))
    return own.select(
        pl.when(pl.Series(counted | tree.inside(counted)))
        .then(None)
        .when(around & (none | holding))
        .then(pl.lit(PARTLY))
        .when(around)
        .then(pl.lit(AROUND))
        .when(none)
        .then("reason")
        .when(holding)
        .then(pl.lit(HOLDING))
        .otherwise(pl.lit(PASSIVE))
    ).to_series()


def without_count(trace: Trace, tree: Tree, costs: OperatorCosts) -> pl.Series:
    """Tell for each row of ``work(trace)`` whether what launched it is known and has no count."""
    rows = work(trace)
    of_operator = ~reasons(tree, costs).is_in(COUNTED).fill_null(True)
    counted = instruction_flops(trace.instructions)["instruction"]
    return rows.select(
        pl.when(pl.col("instruction").is_not_null())
        .then(~pl.col("instruction").is_in(counted.implode()))
        .otherwise(pl.lit(of_operator.gather(rows["op"])).fill_null(False))
    ).to_series()
