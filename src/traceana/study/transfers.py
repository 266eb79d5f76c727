"""Copies by direction (the tables of NVIDIA's review of deep learning frameworks)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from traceana.comparison.run_tables import transfers
from traceana.result import Result
from traceana.study.conditions import conditions
from traceana.study.missing import on_a_gpu
from traceana.study.model import Study
from traceana.study.names import Name
from traceana.study.side_by_side import Traced, tables

SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "network": pl.String,
    "run": pl.String,
    "direction": pl.String,
    "host_memory": pl.String,
    "count": pl.Float64,
    "bytes": pl.Int64,
    "bytes_per_s": pl.Float64,
    "time_ns": pl.Int64,
    "to_first": pl.Float64,
    "per": pl.String,
}
"""As :func:`traceana.comparison.run_tables` has them."""


def transfers_study(traced: Sequence[Traced]) -> Study:
    """Return the copies of each run by direction and kind of host memory."""
    frame, notes = tables(traced, transfers, SCHEMA)
    return Study(
        Name.TRANSFERS,
        "Copies by direction",
        conditions([one.run for one in traced], timed=False),
        Result(frame, {}, notes),
        missing=on_a_gpu(traced, "on the CPU nothing is copied to a device"),
    )
