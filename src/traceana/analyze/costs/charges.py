"""Costs charged to layers: one frame, whatever told the shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.costs.gaps import without_count
from traceana.analyze.costs.instructions import instruction_charges
from traceana.analyze.costs.models import model_charges
from traceana.analyze.costs.operators import operator_charges
from traceana.analyze.work import work
from traceana.flops.coverage import Tree
from traceana.flops.operators import operator_costs
from traceana.flops.parts import PART
from traceana.trace.schema import ROW

if TYPE_CHECKING:
    from traceana.describe import Manifest
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
    """What was computed, and how it is known.

    ``frame`` has the columns of :data:`CHARGES`, a row a layer, part, kind and formula.
    ``without_count`` tells of each row of ``work(trace)`` whether it is known to be of work that
    is not in it. ``notes`` say where the shapes are from.
    """

    frame: pl.DataFrame
    without_count: pl.Series
    notes: tuple[str, ...]


def charges(trace: Trace, model: Manifest | None) -> Charges:
    """Return what the selected work of ``trace`` computes.

    Shapes are those of the trace's operators; of a compiled program (XLA) those of its
    instructions; for layers of which neither tells, those of ``model``.
    """
    tree, costs = Tree.of(trace.ops), operator_costs(trace.ops)
    told = pl.concat([operator_charges(trace, tree, costs), instruction_charges(trace)])
    missing = without_count(trace, tree, costs)
    notes: tuple[str, ...] = ()
    if model is not None:
        of_model, notes = model_charges(trace, model, told)
        told = pl.concat([told, of_model])
        by_model = work(trace)["layer"].is_in(of_model["layer"].unique().implode())
        missing = missing & ~by_model.fill_null(False)
    return Charges(told, missing, notes)
