"""Matrix products by kernel, plain and batched (Trindade and Lima 2018, Table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from traceana.comparison.run_tables import sgemms
from traceana.result import Result
from traceana.study.conditions import conditions
from traceana.study.missing import on_a_gpu
from traceana.study.model import Study
from traceana.study.names import Name
from traceana.study.side_by_side import Traced, tables

SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "network": pl.String,
    "run": pl.String,
    "gemm": pl.String,
    "form": pl.String,
    "library": pl.String,
    "calls": pl.Float64,
    "time_ns": pl.Int64,
    "mean_ns": pl.Int64,
    "per": pl.String,
}
"""One row a run, tile with layout, and form; ``library`` lists whose kernels they are, ``mean_ns``
is the time of one call, rounded down."""


def sgemm_study(traced: Sequence[Traced]) -> Study:
    """Return the single-precision matrix products of each run by tile."""
    each, notes = tables(traced, sgemms, SCHEMA)
    libraries = pl.col("library").drop_nulls().unique(maintain_order=True).str.join(", ")
    calls, time = pl.col("calls").sum(), pl.col("time_ns").sum()
    frame = (
        each.group_by("network", "run", "gemm", "form", "per", maintain_order=True)
        .agg(
            libraries.replace("", None).alias("library"),
            calls,
            time,
            pl.when(calls > 0).then((time / calls).floor()).cast(pl.Int64).alias("mean_ns"),
        )
        .select(list(SCHEMA))
    )
    return Study(
        Name.SGEMM,
        "Single-precision matrix products by kernel",
        conditions([one.run for one in traced], timed=False),
        Result(frame, {}, notes),
        missing=on_a_gpu(traced, "operators of the CPU tell no precision"),
    )
