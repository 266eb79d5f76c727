"""Matrix products of several runs by tile, plain and batched (Trindade and Lima 2018, Table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from traceana.compare.many.run import Run
from traceana.compare.many.table import RUN, Table
from traceana.compare.many.work import work

SGEMM: Final = ("fp32", "tf32")
"""Operand types of what BLAS calls SGEMM; TF32 runs behind its interface."""


def gemms(runs: Sequence[Run]) -> Table:
    """Return the matrix products by kernel.

    The items are ``gemm`` (tile and layout as the name prints them, ``128x64_nn``), ``form``
    (``plain``, ``batched``, ``strided batched``, ``plain or batched``), ``precision``,
    ``library``; ``tile`` and ``gemm_layout`` are the parts of ``gemm``. Columns of figures: those
    of :func:`traceana.compare.many.work.added` and ``to_first``. All other work is one item
    more: the rows of a run add up to all its work.
    """
    return work(runs, "gemm", _without(runs, "matrix products"))


def sgemms(runs: Sequence[Run]) -> Table:
    """Return those of :func:`gemms` that BLAS calls SGEMM: fp32 and tf32, nothing else."""
    whole = gemms(runs)
    kept = whole.frame.filter(pl.col("precision").is_in(SGEMM))
    have = set(kept[RUN])
    notes = [f"{run.label}: no SGEMM in it" for run in runs if run.label not in have]
    return replace(whole, frame=kept, notes=(*whole.notes, *notes))


def _without(runs: Sequence[Run], what: str) -> list[str]:
    return [
        f"{run.label}: no {what} in it"
        for run in runs
        if run.whole.cells.filter(pl.col("category") == "gemm").is_empty()
    ]
