"""Costs of a compiled program's instructions (XLA), charged to the layers of their work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceana.analyze.costs.frame import summed
from traceana.analyze.work import work
from traceana.flops.hlo import instruction_flops
from traceana.flops.operators import PART

if TYPE_CHECKING:
    from traceana.trace import Trace


def instruction_charges(trace: Trace, known: pl.DataFrame) -> pl.DataFrame:
    """Return what the instructions compute that the selected work ran.

    ``known`` is of :func:`flops_by_run`.
    The elementwise part of an instruction is not counted, nor what it moves.
    """
    ran = work(trace).filter(pl.col("instruction").is_not_null())
    runs = executions(ran).join(known, on="instruction", how="inner", maintain_order="left")
    charged = runs.select(
        "layer",
        pl.when(pl.col("direction") == "backward")
        .then(pl.lit("backward"))
        .otherwise(pl.lit("forward"))
        .cast(PART)
        .alias("part"),
        trace.instructions["opcode"].cast(pl.String).gather(runs["instruction"]).alias("kind"),
        "formula",
        "count",
        (pl.col("flops") * pl.col("count")).alias("flops"),
        pl.lit(None, pl.Int64).alias("executed_flops"),
        pl.lit(None, pl.Int64).alias("bytes"),
    )
    return summed(charged)


def flops_by_run(trace: Trace) -> pl.DataFrame:
    """Return ``instruction_flops``, without what counts through the instructions inside it.

    See :func:`holders`: the count of a loop and those of its body are of the same work.
    """
    known = instruction_flops(trace.instructions)
    return known.filter(~pl.col("instruction").is_in(holders(trace).implode()))


def holders(trace: Trace) -> pl.Series:
    """Return the instructions of which some inside have events of their own.

    On the CPU a loop (``scan``, ``while_loop``, ``fori_loop``), a conditional and a call have an
    event, and each instruction of their body has one every time it runs, on any thread, inside the
    loop's event or behind it. So the body tells exactly what ran, whatever the trip count is. A
    fusion's instructions have no events.
    """
    recorded = trace.whole
    instructions = pl.concat([recorded.ops["instruction"], recorded.activities["instruction"]])
    parents = trace.instructions["parent"]
    found = parents.clear()
    above = parents.gather(instructions.drop_nulls().unique()).drop_nulls().unique()
    while len(above):
        found = pl.concat([found, above])
        above = parents.gather(above).drop_nulls().unique()
        above = above.filter(~above.is_in(found.implode()))
    return found


def executions(ran: pl.DataFrame, *more: str) -> pl.DataFrame:
    """Return how often each instruction ran, by layer and direction, and the time of its work.

    The columns ``more`` tell its work further apart.

    One that runs as several kernels ran as often as the rarest of them.
    """
    keys = ("instruction", "layer", "direction", *more)
    return (
        ran.group_by(*keys, "name_id")
        .agg(pl.len().alias("count"), pl.col("duration").sum().alias("time_ns"))
        .group_by(keys)
        .agg(pl.col("count").min().cast(pl.Int64), pl.col("time_ns").sum())
    )
