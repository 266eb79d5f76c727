"""Costs charged to layers: one frame, whatever told the shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.costs.gaps import BY_MODEL, coverage, incomplete, notes
from traceana.analyze.costs.instructions import flops_by_run, instruction_charges
from traceana.analyze.costs.models import model_charges
from traceana.analyze.costs.operators import operator_charges, selected_costs
from traceana.analyze.work import work
from traceana.flops.operators import PART, Tree, operator_costs
from traceana.trace.schema import ROW

if TYPE_CHECKING:
    from traceana.model import Manifest
    from traceana.trace import Trace

CHARGES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "layer": ROW,  # row of `layers`; null for work on none
    "part": PART,
    "kind": pl.String,
    "formula": pl.String,
    "count": pl.Int64,  # calls
    "flops": pl.Int64,  # of a direct computation; a multiply-accumulate is two
    "executed_flops": pl.Int64,  # what the algorithm executes; null where it is not known
    "bytes": pl.Int64,  # compulsory; null where a shape or a type is not known
}


@dataclass(frozen=True, slots=True)
class Charges:
    """What the selected work computes, and how it is known.

    ``frame`` has the columns of :data:`CHARGES`, a row a layer, part, kind and formula: of the
    counted ``operators`` (columns of :func:`traceana.analyze.costs.operators.priced` and
    ``layer``), of instructions, and of the layers that the manifest counts (``of_model``).
    ``instructions`` are those of :func:`traceana.analyze.costs.instructions.flops_by_run`.
    ``coverage`` has a row for each of ``work(trace)``, with ``op`` and ``reason`` as of
    :func:`traceana.analyze.costs.gaps.coverage`. ``notes`` say where the shapes are from.
    """

    frame: pl.DataFrame
    operators: pl.DataFrame
    instructions: pl.DataFrame
    of_model: pl.DataFrame
    coverage: pl.DataFrame
    notes: tuple[str, ...]


def charges(trace: Trace, model: Manifest | None) -> Charges:
    """Return what the selected work of ``trace`` computes.

    Shapes are those of the trace's operators; of a compiled program (XLA) those of its
    instructions; for layers of which neither tells, or tells a part alone, those of ``model``.
    """
    tree, costs = Tree.of(trace.ops), operator_costs(trace.ops)
    operators = selected_costs(trace, tree, costs)
    instructions = flops_by_run(trace)
    told = pl.concat([operator_charges(operators), instruction_charges(trace, instructions)])
    covered = coverage(trace, tree, costs, instructions)
    of_model = told.clear()
    on_shapes: tuple[str, ...] = ()
    if model is not None:
        layer = work(trace, "layer")["layer"]
        partial = layer.filter(covered.select(incomplete(pl.col("reason"))).to_series())
        of_model, on_shapes = model_charges(trace, model, told, set(partial.drop_nulls().unique()))
        replaced = of_model["layer"].unique().implode()
        kept = ~pl.col("layer").is_in(replaced).fill_null(False)
        told, operators = told.filter(kept), operators.filter(kept)
        by_model = layer.is_in(replaced).fill_null(False)
        reason = pl.when(by_model).then(pl.lit(BY_MODEL)).otherwise("reason")
        covered = covered.with_columns(reason.alias("reason"))
    return Charges(
        pl.concat([told, of_model]), operators, instructions, of_model, covered, on_shapes
    )


MACS: Final = "1 multiply-accumulate is 2 FLOPs"
NO_SHAPES: Final = "no FLOPs: neither the trace nor a layer manifest has shapes (--model)"


def on_flops(trace: Trace, charged: Charges) -> tuple[str, ...]:
    """Return the notes on the FLOPs of ``trace``, the same in every command that prints them."""
    if charged.coverage.is_empty():
        return ()
    frame, flops = charged.frame, pl.col("flops")
    masked = frame.filter((pl.col("kind") == "attention") & (pl.col("executed_flops") < flops))
    return (
        MACS if (frame["flops"] > 0).any() else NO_SHAPES,
        *([CAUSAL] if masked.height else []),
        *notes(charged.coverage["reason"], work(trace, "duration")["duration"]),
    )


CAUSAL: Final = (
    "causal attention: flops and rates count the full square of scores, executed_flops the "
    "scores that the mask keeps"
)
