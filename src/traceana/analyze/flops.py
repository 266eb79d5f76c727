"""What each operator computes, by which formula, and what is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.classes import SOURCE, described
from traceana.analyze.costs.frame import whole_sum
from traceana.analyze.costs.gaps import AROUND, COUNTED, PARTLY, reasons
from traceana.analyze.costs.instructions import executions, flops_by_run, holders
from traceana.analyze.costs.operators import selected_operators
from traceana.analyze.result import Result, sums, with_share
from traceana.analyze.work import why_no_work, work
from traceana.attribute.nesting import NONE, Ints, from_rows, to_rows
from traceana.flops.coverage import Tree
from traceana.flops.operators import OperatorCosts, operator_costs

if TYPE_CHECKING:
    from traceana.trace import Trace

MACS: Final = "1 multiply-accumulate is 2 FLOPs"
NO_SHAPES: Final = (
    "no FLOPs: the trace tells no shapes of what has a formula (those of a layer manifest are "
    "in traceana layers)"
)
NO_OPERATOR: Final = "(no operator)"
_NOT_TOLD: Final = "launched by no operator that is in the trace"
_SEVERAL: Final = "several parts together, counted in their own rows"
_NO_PRODUCT: Final = "neither a convolution nor a matrix product, and holds none"
_PART_OF: Final = {"fprop": "forward", "dgrad": "dgrad", "wgrad": "wgrad"}


def flops(trace: Trace) -> Result:
    """Return one row an operator, part and formula, and one an operator without a count.

    Columns: ``operator``, ``part`` (forward, backward, dgrad, wgrad, bias_grad), ``kind``,
    ``calls``, ``flops`` (null: not counted), ``share`` of them, ``bytes`` (compulsory; null where a
    shape or type is not known), ``time_ns`` of the work that is of it, ``formula``, ``reason`` why
    there is no count. Time that is of several parts together has a row with no part. The rows'
    times add up to all work of the trace. Most FLOPs first, then most time.
    """
    activities = work(trace)
    if activities.is_empty():
        return Result(pl.DataFrame(schema=_SCHEMA), {}, (why_no_work(trace),))
    frame = pl.concat([_operators(trace, activities), _instructions(trace, activities)])
    frame = with_share(frame, "flops").sort(
        ["flops", "time_ns", "operator", "part"], descending=[True, True, False, False],
        nulls_last=True,
    )  # fmt: skip
    return Result(frame.select(list(_SCHEMA)), sums(frame, "flops", "time_ns"), _notes(frame))


_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "operator": pl.String,
    "part": pl.String,
    "kind": pl.String,
    "calls": pl.Int64,
    "flops": pl.Int64,
    "share": pl.Float64,
    "bytes": pl.Int64,
    "time_ns": pl.Int64,
    "formula": pl.String,
    "reason": pl.String,
}
_COLUMNS: Final = [name for name in _SCHEMA if name != "share"]


def _operators(trace: Trace, activities: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of operators, and of work that nothing is known of."""
    tree = Tree.of(trace.ops)
    priced = operator_costs(trace.ops)
    at_work = pl.Series(selected_operators(trace, tree))
    costs = priced.costs.filter(at_work.gather(priced.costs["op"]))
    names = trace.ops["name"].cast(pl.String)
    counted = (
        costs.with_columns(names.gather(costs["op"]).alias("operator"))
        .group_by("operator", pl.col("part").cast(pl.String))
        .agg(
            pl.col("kind", "formula").unique().sort().str.join(", "),
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("flops").sum(),
            whole_sum("bytes"),
        )
    )
    time = (
        _timed(trace, tree, priced, activities)
        .group_by("operator", "part", "reason")
        .agg(pl.col("duration").sum().alias("time_ns"))
    )
    return (
        counted.with_columns(pl.lit(None, pl.String).alias("reason"))
        .join(time, on=["operator", "part", "reason"], how="full", nulls_equal=True, coalesce=True)
        .with_columns(pl.col("time_ns").fill_null(0))
        .select(_COLUMNS)
    )


def _timed(
    trace: Trace, tree: Tree, priced: OperatorCosts, activities: pl.DataFrame
) -> pl.DataFrame:
    """Return ``operator``, ``part``, ``duration`` of the work that no instruction tells of.

    Beside them ``reason``: why it is of no part that is counted.
    """
    rows = activities.filter(pl.col("instruction").is_null())
    is_counted = np.zeros(trace.ops.height, dtype=np.bool_)
    is_counted[priced.costs["op"].to_numpy()] = True
    own = from_rows(rows["op"])
    nearest = _gathered(tree.nearest(is_counted), own)
    op = to_rows(np.where(nearest == NONE, own, nearest))
    parts = priced.costs.group_by("op").agg(
        pl.col("part").cast(pl.String).alias("parts"), pl.len().alias("several")
    )
    told = described(rows.select(SOURCE), trace)
    gradient = told["direction"].replace_strict(_PART_OF, default=None, return_dtype=pl.String)
    bias = told["category"].is_in(["bias", "reduction"])
    choice = pl.when(pl.lit(bias)).then(pl.lit("bias_grad")).otherwise(pl.lit(gradient))
    part = (
        pl.when(pl.col("several") == 1)
        .then(pl.col("parts").list.first())
        .when(pl.col("parts").list.contains(choice))
        .then(choice)
    )
    return (
        pl.DataFrame({"op": op, "duration": rows["duration"]})
        .join(parts, on="op", how="left", maintain_order="left")
        .select(
            trace.ops["name"].cast(pl.String).gather(op).fill_null(NO_OPERATOR).alias("operator"),
            part.alias("part"),
            pl.when(part.is_not_null())
            .then(None)
            .when(pl.col("several").is_not_null())
            .then(pl.lit(_SEVERAL))
            .when(pl.col("op").is_null())
            .then(pl.lit(_NOT_TOLD))
            .otherwise(pl.lit(reasons(tree, priced).gather(op)))
            .alias("reason"),
            "duration",
        )
    )


def _gathered(values: Ints, rows: Ints) -> Ints:
    return np.where(rows == NONE, NONE, values[rows]) if len(values) else rows


def _instructions(trace: Trace, activities: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a compiled program's instructions, by opcode and target."""
    ran = activities.filter(pl.col("instruction").is_not_null())
    runs = (
        executions(ran).group_by("instruction").agg(pl.col("count").sum(), pl.col("time_ns").sum())
    )
    known = flops_by_run(trace).select("instruction", "flops", "formula")
    instructions = trace.instructions.select(
        pl.coalesce("target", pl.col("opcode").cast(pl.String)).alias("operator"),
        pl.col("opcode").cast(pl.String).alias("kind"),
    ).with_row_index("instruction")
    around = pl.col("instruction").is_in(holders(trace).implode()).alias("around")
    return (
        runs.join(known, on="instruction", how="left")
        .join(instructions, on="instruction", how="left")
        .group_by("operator", "kind", "formula", around)
        .agg(
            pl.col("count").sum().alias("calls"),
            pl.when(pl.col("flops").count() > 0)
            .then((pl.col("flops") * pl.col("count")).sum())
            .alias("flops"),
            pl.col("time_ns").sum(),
        )
        .with_columns(
            pl.lit(None, pl.String).alias("part"),
            pl.lit(None, pl.Int64).alias("bytes"),
            pl.when("around")
            .then(pl.lit(AROUND))
            .when(pl.col("flops").is_null())
            .then(pl.lit(_NO_PRODUCT))
            .alias("reason"),
        )
        .select(_COLUMNS)
    )


def _notes(frame: pl.DataFrame) -> tuple[str, ...]:
    reason, total = pl.col("reason"), int(frame["time_ns"].sum())
    elsewhere = (*COUNTED, _SEVERAL)
    left = _percent(frame.filter(pl.col("flops").is_null() & ~reason.is_in(elsewhere)), total)
    partly = _percent(frame.filter(reason == PARTLY), total)
    return (
        MACS,
        *([] if (frame["flops"] > 0).any() else [NO_SHAPES]),
        *([f"{left} of the time is of work without a count"] if left else []),
        *([f"{partly} of the time is of operators that are counted in part"] if partly else []),
    )


def _percent(rows: pl.DataFrame, total: int) -> str | None:
    time = int(rows["time_ns"].sum())
    return f"{100 * time / total:.1f} %" if time else None
