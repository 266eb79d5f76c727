"""Which work has counted FLOPs, or the reason why it has none: one decision for each activity.

The order is that of :func:`coverage`: the operator's own reason, or that of what is around and
inside it; the instruction's; a missing launch; the class of the kernel; the layer manifest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.operator_flops import OperatorCosts
from traceana.columns.nesting import NONE, from_rows, take, to_rows
from traceana.timeline.work import work
from traceana.trace.schema import CPU_DEVICE
from traceana.trace.taxonomy import NO_ARITHMETIC, PRODUCTS

if TYPE_CHECKING:
    from traceana.trace import Trace

PASSIVE: Final = "no arithmetic (view, allocation, wrapper)"
AROUND: Final = "child operators counted in their own rows"
PARTLY: Final = "partly counted: some child operators have no FLOP count"
HOLDING: Final = "child operators have no FLOP count"
BY_MODEL: Final = "counted by the layer manifest in separate rows"
ELSEWHERE: Final = "forward pass of a convolution or GEMM timed in the row of a following layer"
MOVES: Final = "no arithmetic (copy, memset, collective, layout)"
NOT_LAUNCHED: Final = "launched before capture"
NO_OPERATOR: Final = "no operator recorded"
GENERATED: Final = "compiler-fused kernel: its operators are not recorded"
NO_PRODUCT: Final = "XLA: only convolutions and GEMMs are counted"

_NOTHING_MISSING: Final = (PASSIVE, AROUND, PARTLY, BY_MODEL, ELSEWHERE, MOVES)
"""Reasons of work that is counted elsewhere or in part, or computes nothing."""


def counted(reason: pl.Expr) -> pl.Expr:
    """Return the work with counted FLOPs: rates are over its time."""
    return reason.is_null() | reason.is_in([PASSIVE, AROUND, BY_MODEL])


def without_count(reason: pl.Expr) -> pl.Expr:
    """Return the work without a FLOP count that may compute."""
    return reason.is_not_null() & ~reason.is_in(_NOTHING_MISSING)


def incomplete(reason: pl.Expr) -> pl.Expr:
    """Return the work that makes the count of its layer partial.

    Work with an unknown launch or operator is missing in the count and in its time; work without
    products adds little to the count.
    """
    missing = [NOT_LAUNCHED, NO_OPERATOR, NO_PRODUCT]
    return (without_count(reason) & ~reason.is_in(missing)) | reason.is_in([PARTLY, ELSEWHERE])


def coverage(
    trace: Trace, operators: OperatorCosts, of_op: pl.Series, of_instruction: pl.Series
) -> pl.DataFrame:
    """Return ``op`` and ``reason`` of each row of ``work(trace)``, before any layer manifest.

    ``op`` is the counted operator around the activity, else its own. ``of_op`` and
    ``of_instruction`` are the reasons of operators and instructions.
    """
    rows = work(trace, "op", "call", "instruction", "device", "category")
    op, instruction = from_rows(rows["op"]), pl.col("instruction")
    around = operators.tree.nearest(operators.counted, op)
    category = pl.col("category")
    moves = category.is_in(NO_ARITHMETIC)
    known_class = ~category.is_in([*PRODUCTS, "other"])
    fused = category == "fused"
    reason = (
        pl.when(instruction.is_not_null())
        .then(pl.lit(of_instruction.gather(rows["instruction"])))
        .when(pl.col("op").is_not_null())
        .then(pl.lit(of_op.gather(rows["op"])))
        # A trace without any call was recorded without them, so no launch is missing.
        .when(pl.col("call").is_null() & bool(trace.whole.tables.calls.height))
        .then(pl.lit(NOT_LAUNCHED))
        .otherwise(pl.lit(NO_OPERATOR))
    )
    # Its operator has others inside, whose counts are not those of the kernel.
    generated = fused & instruction.is_null() & reason.is_in([PASSIVE, AROUND, PARTLY, HOLDING])
    # A wrapper launches no kernels itself: the operators of the graph that it replays, or of the
    # code that it calls, are not recorded. On the CPU its own time is work.
    wrapped = (pl.col("device") != CPU_DEVICE) & (reason == PASSIVE)
    reason = (
        pl.when(generated)
        .then(pl.lit(GENERATED))
        .when(wrapped)
        .then(pl.lit(NO_OPERATOR))
        .otherwise(reason)
    )
    # XLA: only products are counted.
    by_class = known_class & pl.col("op").is_not_null() & bool(trace.tables.instructions.height)
    return rows.select(
        pl.Series("op", to_rows(np.where(around == NONE, op, around))),
        pl.when(~without_count(reason))
        .then(reason)
        .when(moves)
        .then(pl.lit(MOVES))
        .when(by_class)
        .then(pl.lit(NO_PRODUCT))
        .otherwise(reason)
        .alias("reason"),
    )


def with_manifest(covered: pl.DataFrame, by_model: pl.Series, elsewhere: pl.Series) -> pl.DataFrame:
    """Return what is ``covered``, with the reasons of work that a layer manifest counts.

    ``elsewhere`` is work whose counted forward pass runs in the kernels of another layer.
    """
    reason = pl.when(elsewhere).then(pl.lit(ELSEWHERE)).when(by_model).then(pl.lit(BY_MODEL))
    return covered.with_columns(reason.otherwise("reason").alias("reason"))


def of_operators(operators: OperatorCosts) -> pl.Series:
    """Return why each operator has no count, null where it or one around it has one."""
    tree, gaps, is_counted = operators.tree, operators.gaps, operators.counted
    computes, gap, whole = np.zeros((3, len(tree.parent)), dtype=np.bool_)
    computes[operators.costs.filter(pl.col("flops") > 0)["op"].to_numpy()] = True
    gap[gaps["op"].to_numpy()] = True
    whole[gaps.filter("whole")["op"].to_numpy()] = True
    every = np.arange(len(gap))
    refused = tree.nearest(whole, every)
    gap_of_op = np.full(len(gap), NONE, dtype=np.int64)
    gap_of_op[gaps["op"].to_numpy()] = np.arange(gaps.height)
    gap_row = take(gap_of_op, np.where(gap, every, refused))
    reason = gaps["reason"].gather(to_rows(gap_row))
    within, around, holding = (
        pl.Series(flags, dtype=pl.Boolean)
        for flags in (
            is_counted | tree.inside(is_counted),
            tree.holding(computes),
            tree.holding(gap),
        )
    )
    return pl.select(
        pl.when(within)
        .then(None)
        .when(around & (reason.is_not_null() | holding))
        .then(pl.lit(PARTLY))
        .when(around)
        .then(pl.lit(AROUND))
        .when(reason.is_not_null())
        .then(reason)
        .when(holding)
        .then(pl.lit(HOLDING))
        .otherwise(pl.lit(PASSIVE))
    ).to_series()


def of_instructions(trace: Trace, of_run: pl.DataFrame, holders: pl.Series) -> pl.Series:
    """Return why each of the ``instructions`` has no count, null where it has one.

    ``of_run`` has the counted instructions, ``holders`` are those with counted ones inside.
    """
    row = pl.int_range(trace.tables.instructions.height, dtype=pl.UInt32, eager=True).alias("row")
    instruction = pl.col("row")
    return (
        row.to_frame()
        .select(
            pl.when(instruction.is_in(of_run.filter("at_least")["instruction"].implode()))
            .then(pl.lit(PARTLY))
            .when(instruction.is_in(holders.implode()))
            .then(pl.lit(AROUND))
            .when(instruction.is_in(of_run["instruction"].implode()))
            .then(None)
            .otherwise(pl.lit(NO_PRODUCT))
        )
        .to_series()
    )
