"""Time of bias additions and activations by library (Kim et al. 2017, Table IV)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from traceana.comparison.epilogue_table import epilogues
from traceana.comparison.step_work import OTHER
from traceana.result import Result
from traceana.study.conditions import conditions
from traceana.study.missing import to_record
from traceana.study.model import Study
from traceana.study.names import Name
from traceana.study.side_by_side import Traced, tables

SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "network": pl.String,
    "run": pl.String,
    "operation": pl.String,
    "direction": pl.String,
    "library": pl.String,
    "how": pl.String,
    "calls": pl.Float64,
    "time_ns": pl.Int64,
    "share": pl.Float64,
    "to_first": pl.Float64,
    "per": pl.String,
}
"""As :func:`traceana.comparison.epilogue_table.epilogues` has them, without the other work."""


def epilogues_study(traced: Sequence[Traced]) -> Study:
    """Return the time of bias additions and activations of each run, by library."""
    frame, notes = tables(traced, epilogues, SCHEMA)
    frame = frame.filter(pl.col("operation") != OTHER)
    return Study(
        Name.EPILOGUES,
        "Time of bias additions and activations, by library",
        conditions([one.run for one in traced], timed=False),
        Result(frame, {}, notes),
        missing=to_record(traced, "--epilogue separate"),
    )
