"""Each class of kernels beside the machine: what it computes, how fast, and what bounds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from traceana.analyze.classes import SEARCH, SOURCE, classified, described
from traceana.analyze.costs.frame import COUNTS, whole_sum
from traceana.analyze.costs.instructions import executions, flops_by_run
from traceana.analyze.costs.machine import machine
from traceana.analyze.costs.operators import priced, selected_operators
from traceana.analyze.flops import MACS
from traceana.analyze.layers.rates import rate_columns
from traceana.analyze.result import Result, sums, with_share
from traceana.analyze.work import why_no_work, work
from traceana.attribute.nesting import NONE, from_rows, to_rows
from traceana.flops.coverage import Tree
from traceana.flops.operators import operator_costs

if TYPE_CHECKING:
    from traceana.flops.peaks import Peaks
    from traceana.trace import Trace

_GRADIENTS: Final = ("dgrad", "wgrad")
_CLASS: Final = ("category", "part")
_NO_ARITHMETIC: Final = ("memcpy", "memset", "collective", SEARCH)
"""Bound by links and other devices: the roofline of one device's memory says nothing of them.
Trials compute again what their operator computes."""


def roofline(trace: Trace, peaks: Peaks | None = None, computed: Units | None = None) -> Result:
    """Return one row a category and part of it, as of ``breakdown``, with what it computes.

    The FLOPs and bytes of an operator, or instruction of a compiled program, are those of the class
    that most of its time is of (of a gradient, of the kernels of that gradient, where they tell):
    ``flops_per_s`` is over the time of just these kernels. Columns: ``category``, ``part``,
    ``calls``, ``time_ns``, ``share``, ``flops``, ``executed_flops``, ``flops_per_s``, ``of_peak``,
    ``over_peak``, ``bytes``, ``intensity``, ``bound``, ``of_attainable`` as of ``layers``. Most
    time first. ``computed`` is what :func:`units` says of ``trace``, where somebody has it already.
    """
    if work(trace).is_empty():
        return Result(pl.DataFrame(schema=_SCHEMA), {}, (why_no_work(trace),))
    rows, charged = computed or units(trace)
    of_class, over = _of_classes(charged, rows)
    of_trace, whose = machine(trace)
    frame = (
        rows.group_by(_CLASS)
        .agg(pl.len().cast(pl.Int64).alias("calls"), pl.col("duration").sum().alias("time_ns"))
        .join(of_class, on=_CLASS, how="left", nulls_equal=True)
        .join(over, on=_CLASS, how="left", nulls_equal=True)
    )
    located = rows.rename({"duration": "time_ns"})
    frame = rate_columns(frame, located, list(_CLASS), of_trace or peaks)
    frame = with_share(frame).sort(
        ["time_ns", *_CLASS], descending=[True, False, False], nulls_last=True
    )
    totals = sums(frame, "calls", "time_ns", "flops")
    homeless = int(charged["flops"].sum()) - totals["flops"]
    return Result(
        frame.select(pl.col(name).cast(dtype) for name, dtype in _SCHEMA.items()),
        totals,
        (
            MACS,
            *_on_homeless(homeless),
            whose if of_trace is not None or peaks is None else peaks.source,
        ),
    )


class Units(NamedTuple):
    """The work of a trace with the unit that it is part of, and what the units compute.

    A unit is a counted operator, or an instruction of a compiled program. Columns of ``work``:
    ``category``, ``part``, ``duration``, ``unit`` (null: of none), ``gradient`` (``dgrad``,
    ``wgrad``, null), ``precision``, ``tensor_core``; of ``charged`` ``unit``, ``gradient``,
    ``flops``, ``executed_flops``, ``bytes`` (compulsory).
    """

    work: pl.DataFrame
    charged: pl.DataFrame


def units(trace: Trace) -> Units:
    """Return the work of ``trace`` by the units that compute it."""
    activities, tree = work(trace), Tree.of(trace.ops)
    costs = priced(trace, tree, operator_costs(trace.ops))
    costs = costs.filter(pl.Series(selected_operators(trace, tree)).gather(costs["op"]))
    rows = _rows(trace, activities, tree, costs["op"])
    parts = [_of_operators(costs, rows, tree, activities), _of_instructions(trace, activities)]
    return Units(rows, pl.concat(parts))


def _on_homeless(flops: int) -> tuple[str, ...]:
    if not flops:
        return ()
    return (
        f"{flops:.3g} FLOPs are in no class: of their operators the trace has copies and sets "
        "alone, no kernel",
    )


_SCHEMA: Final[dict[str, type[pl.DataType]]] = {
    "category": pl.String,
    "part": pl.String,
    "calls": pl.Int64,
    "time_ns": pl.Int64,
    "share": pl.Float64,
    "flops": pl.Int64,
    "executed_flops": pl.Int64,
    "flops_per_s": pl.Float64,
    "of_peak": pl.Float64,
    "over_peak": pl.String,
    "bytes": pl.Int64,
    "intensity": pl.Float64,
    "bound": pl.String,
    "of_attainable": pl.Float64,
}


def _rows(
    trace: Trace, activities: pl.DataFrame, tree: Tree, priced_ops: pl.Series
) -> pl.DataFrame:
    """Return the work with its class, the unit that tells what it computes, and its gradient.

    A unit is the counted operator around the work; where there is none the operator that the work
    is of, which on a CPU may have counted ones inside; or, numbered behind the operators, the
    instruction of a compiled program.
    """
    told = described(activities.select(SOURCE), trace)
    counted = np.zeros(trace.ops.height, dtype=np.bool_)
    counted[priced_ops.to_numpy()] = True
    own, nearest = from_rows(activities["op"]), tree.nearest(counted)
    around = np.where(own == NONE, NONE, nearest[own]) if len(nearest) else own
    unit = to_rows(np.where(around == NONE, own, around)).cast(pl.Int64)
    return classified(activities.select(*SOURCE, "duration"), trace).select(
        *_CLASS,
        "duration",
        _unit_of_instruction(trace, activities["instruction"]).fill_null(unit).alias("unit"),
        pl.when(pl.lit(told["direction"]).is_in(_GRADIENTS))
        .then(pl.lit(told["direction"]))
        .alias("gradient"),
        pl.lit(told["precision"]).alias("precision"),
        pl.lit(told["tensor_core"]).alias("tensor_core"),
    )


def _unit_of_instruction(trace: Trace, instruction: pl.Series) -> pl.Series:
    return instruction.cast(pl.Int64) + trace.ops.height


def _of_operators(
    costs: pl.DataFrame, rows: pl.DataFrame, tree: Tree, activities: pl.DataFrame
) -> pl.DataFrame:
    """Return ``unit``, ``gradient`` and counts of what operators compute."""
    at_work = np.zeros(len(tree.parent), dtype=np.bool_)
    at_work[activities["op"].drop_nulls().to_numpy()] = True
    around = to_rows(tree.nearest(at_work)).cast(pl.Int64)
    op, part = pl.col("op").cast(pl.Int64), pl.col("part").cast(pl.String)
    return costs.select(
        pl.when(op.is_in(rows["unit"].drop_nulls().unique().implode()))
        .then(op)
        .otherwise(pl.lit(around.gather(costs["op"])))
        .alias("unit"),
        pl.when(part.is_in(_GRADIENTS)).then(part).alias("gradient"),
        *COUNTS,
    )


def _of_instructions(trace: Trace, activities: pl.DataFrame) -> pl.DataFrame:
    """Return ``unit``, ``gradient`` and counts of what instructions of compiled programs compute.

    The elementwise part of an instruction is not counted, nor what it moves.
    """
    ran = executions(activities.filter(pl.col("instruction").is_not_null()))
    runs = ran.join(flops_by_run(trace), on="instruction", how="inner")
    return runs.select(
        _unit_of_instruction(trace, runs["instruction"]).alias("unit"),
        pl.lit(None, pl.String).alias("gradient"),
        (pl.col("flops") * pl.col("count")).alias("flops"),
        pl.lit(None, pl.Int64).alias("executed_flops"),
        pl.lit(None, pl.Int64).alias("bytes"),
    )


def _of_classes(charged: pl.DataFrame, rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the counts by class, and the time of the kernels that they are of (``_over``).

    A gradient of which no kernel is known to be is of the class that most of all time of its unit
    is of.
    """
    exact, whole = ["unit", "gradient"], ["unit"]
    by_gradient = charged.join(_heaviest(rows, exact), on=exact, how="left", nulls_equal=True)
    told = by_gradient.filter(pl.col("category").is_not_null())
    rest = by_gradient.filter(pl.col("category").is_null()).drop(_CLASS)
    untold = rest.join(_heaviest(rows, whole), on=whole)
    computed = (
        pl.concat([told, untold])
        .group_by(_CLASS)
        .agg(pl.col("flops").sum(), whole_sum("executed_flops"), whole_sum("bytes"))
    )
    numbered = rows.with_row_index("row")
    theirs = [
        numbered.join(told, on=[*exact, *_CLASS], how="semi", nulls_equal=True),
        numbered.join(untold, on=[*whole, *_CLASS], how="semi", nulls_equal=True),
    ]
    over = pl.concat(theirs).unique("row").group_by(_CLASS).agg(pl.col("duration").sum())
    return computed, over.rename({"duration": "_over"})


def _heaviest(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the class that most time of each unit, or of each of its gradients, is of."""
    return (
        rows.filter(pl.col("unit").is_not_null() & ~pl.col("category").is_in(_NO_ARITHMETIC))
        .group_by(*keys, *_CLASS)
        .agg(pl.col("duration").sum())
        .sort(["duration", *_CLASS], descending=[True, False, False], nulls_last=True)
        .unique(keys, keep="first", maintain_order=True)
        .drop("duration")
    )
