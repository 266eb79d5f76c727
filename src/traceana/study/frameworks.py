"""Time of one training step by layer, forward and backward (Kim et al. 2017, Figure 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from traceana.comparison.layer_table import layer_table
from traceana.result import Result
from traceana.study.conditions import conditions
from traceana.study.missing import to_record
from traceana.study.model import Study
from traceana.study.names import Name
from traceana.study.side_by_side import Traced, tables

SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "network": pl.String,
    "run": pl.String,
    "item": pl.Int64,
    "layer": pl.String,
    "type": pl.String,
    "role": pl.String,
    "path": pl.String,
    "confidence": pl.Float64,
    "calls": pl.Float64,
    "forward_ns": pl.Int64,
    "backward_ns": pl.Int64,
    "optimizer_ns": pl.Int64,
    "other_ns": pl.Int64,
    "time_ns": pl.Int64,
    "share": pl.Float64,
    "to_first": pl.Float64,
    "per": pl.String,
}
"""One row a run and layer, as :func:`traceana.comparison.layer_table` has them."""


def frameworks_study(traced: Sequence[Traced]) -> Study:
    """Return the time of each layer in each run, the layers of all runs of a network aligned."""
    frame, notes = tables(traced, layer_table, SCHEMA)
    return Study(
        Name.FRAMEWORKS,
        "Time of one training step by layer",
        conditions([one.run for one in traced], timed=False),
        Result(frame, {}, notes),
        missing=to_record(traced),
    )
