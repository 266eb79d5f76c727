"""Each class of kernels beside the machine: what it computes, how fast, and what bounds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.classes import SOURCE, classified, described
from traceana.analyze.costs.frame import whole_sum
from traceana.analyze.costs.machine import machine
from traceana.analyze.costs.operators import priced
from traceana.analyze.flops import MACS
from traceana.analyze.layers.rates import rate_columns
from traceana.analyze.result import Result, sums, with_share
from traceana.analyze.work import why_no_work, work
from traceana.attribute.nesting import NONE, from_rows, to_rows
from traceana.flops.coverage import Tree

if TYPE_CHECKING:
    from traceana.flops.peaks import Peaks
    from traceana.trace import Trace

_GRADIENTS: Final = ("dgrad", "wgrad")
_CLASS: Final = ("category", "part")
_NO_ARITHMETIC: Final = ("memcpy", "memset", "collective")
"""Bound by links and other devices: the roofline of one device's memory says nothing of them."""


def roofline(trace: Trace, peaks: Peaks | None = None) -> Result:
    """Return one row a category and part of it, as of ``breakdown``, with what it computes.

    The FLOPs and bytes of an operator are those of the class that most of its time is of (of a
    gradient, of the kernels of that gradient): ``flops_per_s`` is over the time of just these
    kernels. Columns: ``category``, ``part``, ``calls``, ``time_ns``, ``share``, ``flops``,
    ``executed_flops``, ``flops_per_s``, ``of_peak``, ``over_peak``, ``bytes``, ``intensity``,
    ``bound``, ``of_attainable`` as of ``layers``. Most time first.
    """
    activities = work(trace)
    if activities.is_empty():
        return Result(pl.DataFrame(), {}, (why_no_work(trace),))
    tree = Tree.of(trace.ops)
    costs = priced(trace, tree)
    rows = _rows(trace, activities, tree, costs["op"])
    heaviest = _heaviest(rows)
    charged = _by_gradient(costs).join(heaviest, on=["op", "gradient"], nulls_equal=True)
    computed = charged.group_by(_CLASS).agg(
        pl.col("flops").sum(), whole_sum("executed_flops"), whole_sum("bytes")
    )
    over = (
        rows.join(heaviest, on=["op", "gradient", *_CLASS], nulls_equal=True)
        .group_by(_CLASS)
        .agg(pl.col("duration").sum().alias("_over"))
    )
    of_trace, whose = machine(trace)
    frame = (
        rows.group_by(_CLASS)
        .agg(pl.len().cast(pl.Int64).alias("calls"), pl.col("duration").sum().alias("time_ns"))
        .join(computed, on=_CLASS, how="left", nulls_equal=True)
        .join(over, on=_CLASS, how="left", nulls_equal=True)
    )
    located = rows.rename({"duration": "time_ns"})
    frame = rate_columns(frame, located, list(_CLASS), of_trace or peaks)
    frame = with_share(frame).sort(
        ["time_ns", *_CLASS], descending=[True, False, False], nulls_last=True
    )
    return Result(
        frame.select(_COLUMNS),
        sums(frame, "calls", "time_ns", "flops"),
        (MACS, whose if peaks is None else peaks.source),
    )


_COLUMNS: Final = (
    *("category", "part", "calls", "time_ns", "share", "flops", "executed_flops"),
    *("flops_per_s", "of_peak", "over_peak", "bytes", "intensity", "bound", "of_attainable"),
)


def _rows(
    trace: Trace, activities: pl.DataFrame, tree: Tree, priced_ops: pl.Series
) -> pl.DataFrame:
    """Return the work with its class, the counted operator around it, and which gradient it is."""
    told = described(activities.select(SOURCE), trace)
    counted = np.zeros(trace.ops.height, dtype=np.bool_)
    counted[priced_ops.to_numpy()] = True
    own, nearest = from_rows(activities["op"]), tree.nearest(counted)
    op = np.where(own == NONE, NONE, nearest[own]) if len(nearest) else own
    return classified(activities.select(*SOURCE, "duration"), trace).select(
        *_CLASS,
        "duration",
        to_rows(op).alias("op"),
        pl.when(pl.lit(told["direction"]).is_in(_GRADIENTS))
        .then(pl.lit(told["direction"]))
        .alias("gradient"),
        pl.lit(told["precision"]).alias("precision"),
        pl.lit(told["tensor_core"]).alias("tensor_core"),
    )


def _heaviest(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the class that most time of each operator and gradient is of."""
    return (
        rows.filter(pl.col("op").is_not_null() & ~pl.col("category").is_in(_NO_ARITHMETIC))
        .group_by("op", "gradient", *_CLASS)
        .agg(pl.col("duration").sum())
        .sort(["duration", *_CLASS], descending=[True, False, False], nulls_last=True)
        .unique(["op", "gradient"], keep="first", maintain_order=True)
        .drop("duration")
    )


def _by_gradient(costs: pl.DataFrame) -> pl.DataFrame:
    part = pl.col("part").cast(pl.String)
    gradient = pl.when(part.is_in(_GRADIENTS)).then(part).alias("gradient")
    return costs.select("op", gradient, "flops", "executed_flops", "bytes")
