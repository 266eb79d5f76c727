"""The formulas behind a count of FLOPs, each with its derivation."""

from __future__ import annotations

import polars as pl

from traceana.flops.registry import FORMULAS
from traceana.result import Result, sums


def formulas(counted: Result) -> Result:
    """Return one row a formula that ``counted``, a result of ``analyze.flops``, used.

    Columns: ``formula``, ``operators`` that it served (comma-separated), ``calls``, ``flops`` and
    ``derivation``. Most FLOPs first.
    """
    frame = (
        counted.frame.filter(pl.col("formula").is_not_null())
        .with_columns(pl.col("formula").str.split(", "))
        .explode("formula")
        .group_by("formula")
        .agg(
            pl.col("operator").unique().sort().str.join(", ").alias("operators"),
            pl.col("calls").sum(),
            pl.col("flops").sum(),
        )
        .with_columns(
            pl.col("formula")
            .replace_strict(
                {name: " ".join(known.text.split()) for name, known in FORMULAS.items()},
                default=None,
                return_dtype=pl.String,
            )
            .alias("derivation")
        )
        .sort(["flops", "formula"], descending=[True, False])
    )
    return Result(frame, sums(frame, "flops"), counted.notes)
