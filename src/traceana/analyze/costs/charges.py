"""Costs charged to layers: one frame, whatever told the shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.costs.instructions import instruction_charges
from traceana.analyze.costs.models import model_charges
from traceana.analyze.costs.operators import operator_charges
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

    ``frame`` has the columns of :data:`CHARGES`, a row a layer, part, kind and formula. ``notes``
    say where the shapes are from.
    """

    frame: pl.DataFrame
    notes: tuple[str, ...]


def charges(trace: Trace, model: Manifest | None) -> Charges:
    """Return what the selected work of ``trace`` computes.

    Shapes are those of the trace's operators; of a compiled program (XLA) those of its
    instructions; for layers of which neither tells, those of ``model``.
    """
    parts = [operator_charges(trace), instruction_charges(trace)]
    told = pl.concat(part for part in parts)
    notes: tuple[str, ...] = ()
    if model is not None:
        of_model, notes = model_charges(trace, model, told)
        told = pl.concat([told, of_model])
    return Charges(told, notes)
