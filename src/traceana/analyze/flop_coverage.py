"""Which work has a FLOP count, and the reason where it has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from traceana.analyze.operator_flops import OperatorCosts
from traceana.columns.distinct import first_rows, numbered
from traceana.columns.nesting import NONE, Flags, Ints, Tree, from_rows, take, to_rows
from traceana.enrich.keys import SOURCE, classified
from traceana.timeline.work import work
from traceana.trace.schema import CPU_DEVICE

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

COUNTED: Final = (PASSIVE, AROUND, PARTLY, BY_MODEL, ELSEWHERE, MOVES)
"""Reasons of work that is counted elsewhere, or in part."""

PRODUCTS: Final = ("conv", "gemm", "attention", "rnn")
"""Categories with most FLOPs."""

NO_ARITHMETIC: Final = ("memcpy", "memset", "collective", "layout")
"""Categories that move data."""


class Uncounted(msgspec.Struct, frozen=True):
    """Which operators have no count: flags by row, and the ``gaps`` with their reasons.

    ``within`` are the counted operators and those inside one, ``around`` those around one that
    computes, ``holding`` those around a gap. ``place`` is the row in ``gaps`` of each operator.
    """

    tree: Tree
    within: Flags
    around: Flags
    holding: Flags
    whole: Flags
    place: Ints
    gaps: pl.Series

    @classmethod
    def of(cls, tree: Tree, costs: OperatorCosts) -> Uncounted:
        """Return those among all operators; ``costs`` are theirs."""
        rows = len(tree.parent)
        counted, computes, gap, whole = (np.zeros(rows, dtype=np.bool_) for _ in range(4))
        counted[costs.costs["op"].to_numpy()] = True
        computes[costs.costs.filter(pl.col("flops") > 0)["op"].to_numpy()] = True
        gap[costs.gaps["op"].to_numpy()] = True
        whole[costs.gaps.filter("whole")["op"].to_numpy()] = True
        place = np.full(rows, NONE, dtype=np.int64)
        place[costs.gaps["op"].to_numpy()] = np.arange(costs.gaps.height)
        return cls(
            tree,
            counted | tree.inside(counted),
            tree.holding(computes),
            tree.holding(gap),
            whole,
            place,
            costs.gaps["reason"],
        )

    def reasons(self, op: Ints) -> pl.Series:
        """Return why each of the operators ``op`` has no count, null where it or a parent has one.

        The reason for NONE is that of an operator without arithmetic.
        """
        own = take(self.place, op)
        row = np.where(own == NONE, take(self.place, self.tree.nearest(self.whole, op)), own)
        reason = self.gaps.gather(to_rows(row))
        within, around, holding = (
            pl.Series(np.append(flags, False)[op], dtype=pl.Boolean)
            for flags in (self.within, self.around, self.holding)
        )
        none = reason.is_not_null()
        return pl.select(
            pl.when(within)
            .then(None)
            .when(around & (none | holding))
            .then(pl.lit(PARTLY))
            .when(around)
            .then(pl.lit(AROUND))
            .when(none)
            .then(reason)
            .when(holding)
            .then(pl.lit(HOLDING))
            .otherwise(pl.lit(PASSIVE))
        ).to_series()


def coverage(
    trace: Trace, tree: Tree, costs: pl.DataFrame, uncounted: Uncounted, known: pl.DataFrame
) -> pl.DataFrame:
    """Return for each row of ``work(trace)`` its counted operator or the reason without a count.

    Columns: ``op``, the counted operator around it, else its own; ``reason`` why it has no count,
    null where it has one. All commands use this table. ``costs`` are those of the counted
    operators, ``known`` is of :func:`flops_by_run`.
    """
    rows = work(trace, "op", "call", "instruction", "device", *SOURCE)
    counted = np.zeros(trace.tables.ops.height, dtype=np.bool_)
    counted[costs["op"].to_numpy()] = True
    own = from_rows(rows["op"])
    around = tree.nearest(counted, own)
    op = to_rows(np.where(around == NONE, own, around))
    instruction = pl.col("instruction")
    # Few classes and many rows.
    (number,) = numbered(rows.select(SOURCE))
    category = classified(rows.select(SOURCE)[first_rows(number)], trace)["category"]
    moves, known_class, fused = (
        pl.lit(flags.gather(number))
        for flags in (
            category.is_in(NO_ARITHMETIC),
            ~category.is_in([*PRODUCTS, "other"]),
            category == "fused",
        )
    )
    of_operator = (
        pl.when(pl.col("op").is_not_null())
        .then(pl.lit(uncounted.reasons(own)))
        # A trace without any call was recorded without them, so no launch is missing.
        .when(pl.col("call").is_null() & bool(trace.whole.tables.calls.height))
        .then(pl.lit(NOT_LAUNCHED))
        .otherwise(pl.lit(NO_OPERATOR))
    )
    of_instruction = _of_instructions(trace, known).gather(rows["instruction"])
    reason = pl.when(instruction.is_null()).then(of_operator).otherwise(of_instruction)
    # Its operator has others inside, whose counts are not those of the kernel.
    generated = fused & instruction.is_null() & reason.is_in([PASSIVE, AROUND, PARTLY, HOLDING])
    reason = pl.when(generated).then(pl.lit(GENERATED)).otherwise(reason)
    # A wrapper launches no kernels itself: the operators of the graph that it replays, or of the
    # code that it calls, are not recorded. On the CPU its own time is work.
    launched = (pl.col("device") != CPU_DEVICE) & (reason == PASSIVE)
    reason = pl.when(launched).then(pl.lit(NO_OPERATOR)).otherwise(reason)
    left = reason.is_not_null() & ~reason.is_in(COUNTED)
    return rows.select(
        pl.lit(op).alias("op"),
        pl.when(left & moves)
        .then(pl.lit(MOVES))
        # XLA: only products are counted.
        .when(
            left & known_class & pl.col("op").is_not_null() & bool(trace.tables.instructions.height)
        )
        .then(pl.lit(NO_PRODUCT))
        .otherwise(reason)
        .alias("reason"),
    )


def _of_instructions(trace: Trace, known: pl.DataFrame) -> pl.Series:
    """Return why each of the ``instructions`` has no count, null where it has one."""
    row = pl.int_range(trace.tables.instructions.height, dtype=pl.UInt32, eager=True).alias("row")
    instruction = pl.col("row")
    return row.to_frame().select(
        pl.when(instruction.is_in(known.filter("at_least")["instruction"].implode()))
        .then(pl.lit(PARTLY))
        .when(instruction.is_in(holders(trace).implode()))
        .then(pl.lit(AROUND))
        .when(instruction.is_in(known["instruction"].implode()))
        .then(None)
        .otherwise(pl.lit(NO_PRODUCT))
        .alias("reason")
    )["reason"]


def counted(reason: pl.Expr) -> pl.Expr:
    """Return the work with counted FLOPs: rates are over its time."""
    return reason.is_null() | reason.is_in([PASSIVE, AROUND, BY_MODEL])


def without_count(reason: pl.Expr) -> pl.Expr:
    """Return the work without a FLOP count that may compute."""
    return reason.is_not_null() & ~reason.is_in(COUNTED)


def incomplete(reason: pl.Expr) -> pl.Expr:
    """Return the work that makes the count of its layer partial.

    Work with an unknown launch or operator is missing in the count and in its time; work without
    products adds little to the count.
    """
    missing = [NOT_LAUNCHED, NO_OPERATOR, NO_PRODUCT]
    return (without_count(reason) & ~reason.is_in(missing)) | reason.is_in([PARTLY, ELSEWHERE])


def coverage_notes(reason: pl.Series, time: pl.Series) -> tuple[str, ...]:
    """Return notes on the time without FLOP counts, and with partial ones."""
    rows, total = pl.DataFrame({"reason": reason, "time": time}), int(time.sum())
    labels = (
        ("time without FLOP counts", without_count(pl.col("reason"))),
        ("time with partial FLOP counts", pl.col("reason") == PARTLY),
        ("no rate, fused into a following layer's row", pl.col("reason") == ELSEWHERE),
    )
    found = [(label, int(rows.filter(which)["time"].sum())) for label, which in labels]
    return tuple(f"{label}: {100 * part / total:.1f} %" for label, part in found if part)


def flops_by_run(trace: Trace) -> pl.DataFrame:
    """Return ``instruction_flops``, without instructions whose children are counted.

    See :func:`holders`: the count of a loop and those of its body are of the same work.
    """
    from traceana.flops.hlo import instruction_flops

    known = instruction_flops(trace.tables.instructions)
    return known.filter(~pl.col("instruction").is_in(holders(trace).implode()))


def holders(trace: Trace) -> pl.Series:
    """Return the instructions that contain others with events of their own.

    On the CPU a loop (``scan``, ``while_loop``, ``fori_loop``), a conditional and a call have an
    event, and each instruction of their body has an event every time it runs, on any thread, during
    the loop's event or after it. The body's events count all iterations. A fusion's instructions
    have no events.
    """
    recorded = trace.whole
    instructions = pl.concat(
        [recorded.tables.ops["instruction"], recorded.tables.activities["instruction"]]
    )
    parents = trace.tables.instructions["parent"]
    found = parents.clear()
    above = parents.gather(instructions.drop_nulls().unique()).drop_nulls().unique()
    while len(above):
        found = pl.concat([found, above])
        above = parents.gather(above).drop_nulls().unique()
        above = above.filter(~above.is_in(found.implode()))
    return found
