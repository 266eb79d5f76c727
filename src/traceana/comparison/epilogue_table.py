"""Bias and activations of several runs by the library that ran them (Kim et al. 2017, Table IV)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from traceana.comparison.compared_run import Run
from traceana.comparison.run_tables import Table, added, basis, comparable, table, unmarked
from traceana.comparison.step_work import OTHER

OWN: Final = "own kernel"
FUSED: Final = "fused"

_KEYS: Final = ("operation", "direction", "library", "how")
_NEITHER: Final = ("bn_stats",)
"""Epilogues that are neither a bias nor an activation."""

_GRADIENTS: Final = {"drelu": "relu", "dgelu": "gelu", "bgrad": "bias"}
"""What cuBLASLt's epilogues of the backward pass are the gradient of."""

_PASSES: Final = {
    **{"forward": "forward", "fprop": "forward"},
    **{"backward": "backward", "dgrad": "backward", "wgrad": "backward"},
}


def epilogues(runs: Sequence[Run]) -> Table:
    """Return the time of bias additions and activations, by library.

    The items are ``operation`` (``bias``, or the activation: ``relu`` …), ``direction``
    (``forward``, ``backward``, null where neither the operator nor the name tells) and ``how``:
    ``own kernel``, or ``fused`` for kernels of convolutions and products that do it in their
    epilogue, as their names tell. Of the latter nobody can say how long it takes: their times are
    null, ``calls`` counts them. A row is also of a ``library`` (null: not known). Other columns:
    those of :func:`traceana.comparison.run_tables.added` and ``to_first``. All other work is one
    item more: the rows of a run add up to all its work.
    """
    time, calls = basis(runs)
    parts = [(run.label, pl.concat([added(run, _KEYS, _alone), _inside(run)])) for run in runs]
    notes = [
        f"{label}: neither bias additions nor activations in it"
        for label, frame in parts
        if (frame["operation"] == OTHER).all()
    ]
    if any((frame["how"] == FUSED).any() for _, frame in parts):
        notes.append("fused: in the kernel of a convolution or product, whose time is not theirs")
    return table(
        parts,
        ("operation", "direction", "how"),
        (time, "library", calls),
        time,
        ratios=comparable(runs),
        last=[OTHER],
        notes=[*unmarked(runs), *notes],
    )


def _inside(run: Run) -> pl.DataFrame:
    """Return the calls of what other kernels do in their epilogues."""
    found = added(run, _KEYS, _fused)
    return found.with_columns(
        pl.lit(None, found.schema[column]).alias(column)
        for column in ("time_ns", "step_ns", "share")
    )


def _alone(cells: pl.DataFrame) -> pl.DataFrame:
    """Return all ``cells`` with the keys of what is a kernel of its own."""
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
        pl.when(here).then(pl.lit(OWN)).alias("how"),
    )


def _fused(cells: pl.DataFrame) -> pl.DataFrame:
    """Return the convolutions and products among ``cells`` once for each part of their epilogue."""
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
