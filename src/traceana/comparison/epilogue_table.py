"""Bias and activations of several runs by library (Kim et al. 2017, Table IV)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from traceana.comparison.compared_run import Run
from traceana.comparison.run_tables import Table, added, basis, comparable, table, unmarked
from traceana.comparison.step_work import OTHER

SEPARATE: Final = "separate kernel"
FUSED: Final = "fused"

_KEYS: Final = ("operation", "direction", "library", "how")
_NEITHER: Final = ("bn_stats",)
"""Epilogues that are neither a bias nor an activation."""

_GRADIENTS: Final = {"drelu": "relu", "dgelu": "gelu", "bgrad": "bias"}
"""The forward operation of cuBLASLt's epilogues of the backward pass."""

_PASSES: Final = {
    **{"forward": "forward", "fprop": "forward"},
    **{"backward": "backward", "dgrad": "backward", "wgrad": "backward"},
}


def epilogues(runs: Sequence[Run]) -> Table:
    """Return the time of bias additions and activations, by library.

    The items are ``operation`` (``bias``, or the activation: ``relu`` …), ``direction``
    (``forward``, ``backward``, null if neither the operator nor the name implies one) and ``how``:
    ``separate kernel``, or ``fused`` for convolution and GEMM kernels whose names imply such an
    epilogue. The time of fused operations is unknown: it is null, and ``calls`` counts them. Each
    row also has a ``library`` (null: unknown). Other columns: those of
    :func:`traceana.comparison.run_tables.added` and ``to_first``. All other work is a further item:
    the rows of a run add up to all its work.
    """
    time, calls = basis(runs)
    parts = [
        (run.label, pl.concat([added(run, _KEYS, _separate), _fused_calls(run)])) for run in runs
    ]
    notes = [
        f"{label}: no bias additions or activations"
        for label, frame in parts
        if (frame["operation"] == OTHER).all()
    ]
    if any((frame["how"] == FUSED).any() for _, frame in parts):
        notes.append("fused: part of a convolution or GEMM kernel, no time of its own")
    return table(
        parts,
        ("operation", "direction", "how"),
        (time, "library", calls),
        time,
        ratios=comparable(runs),
        last=[OTHER],
        notes=[*unmarked(runs), *notes],
    )


def _fused_calls(run: Run) -> pl.DataFrame:
    """Return the calls of operations fused into other kernels."""
    found = added(run, _KEYS, _fused)
    return found.with_columns(
        pl.lit(None, found.schema[column]).alias(column)
        for column in ("time_ns", "step_ns", "share")
    )


def _separate(cells: pl.DataFrame) -> pl.DataFrame:
    """Return all ``cells``, those of separate kernels with their keys."""
    category = pl.col("category")
    here = category.is_in(["bias", "activation"])
    operation = (
        pl.when(category == "bias")
        .then(pl.lit("bias"))
        .when(category == "activation")
        .then(pl.col("function").fill_null("activation"))
        .otherwise(pl.lit(OTHER))
    )
    return cells.select(
        "calls",
        "time_ns",
        operation.alias("operation"),
        pl.when(here).then(_direction()).alias("direction"),
        pl.when(here).then("library").alias("library"),
        pl.when(here).then(pl.lit(SEPARATE)).alias("how"),
    )


def _fused(cells: pl.DataFrame) -> pl.DataFrame:
    """Return the convolutions and GEMMs among ``cells`` once per part of their epilogue."""
    done = pl.col("category").is_in(["conv", "gemm"]) & pl.col("epilogue").is_not_null()
    return (
        cells.filter(done)
        .select(
            "calls",
            "time_ns",
            pl.col("epilogue").str.split("+").alias("operation"),
            _direction().alias("direction"),
            "library",
            pl.lit(FUSED).alias("how"),
        )
        .explode("operation")
        .filter(~pl.col("operation").is_in(_NEITHER))
        .with_columns(
            pl.when(pl.col("operation").is_in(list(_GRADIENTS)))
            .then(pl.lit("backward"))
            .otherwise("direction")
            .alias("direction"),
            pl.col("operation").replace(_GRADIENTS),
        )
    )


def _direction() -> pl.Expr:
    named = pl.col("named_direction").replace_strict(_PASSES, default=None, return_dtype=pl.String)
    return pl.coalesce("direction", named)
