"""What convolutions allocate for their own use: the workspace of their algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traceana.analyze.memory.events import PLACE, allocations
from traceana.analyze.memory.peaks import layer_names, operator_names
from traceana.analyze.thread_numbers import thread_numbers
from traceana.enrich.nesting import NONE, Nesting, from_rows, inherit, to_rows

if TYPE_CHECKING:
    from traceana.trace import Trace


def workspaces(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Return one row a layer, operator, pass and algorithm of the convolutions.

    A workspace is all that is allocated inside the operator that launched a convolution and freed
    before it returns: also a copy of an operand that it makes for itself, never its result.
    Columns: ``rank``, ``device``, ``layer``, ``operator``, ``direction``, ``algorithm``, ``calls``
    that allocated any, and ``workspace_bytes``, the most that one of them held at once.
    """
    convolution = np.full(trace.ops.height, NONE, dtype=np.int64)
    launched = trace.episodes.filter(pl.col("op").is_not_null()).unique(
        "op", keep="first", maintain_order=True
    )
    rows = from_rows(launched["op"])
    convolution[rows] = np.arange(len(rows))
    (key,) = thread_numbers(trace.ops)
    start, duration = (trace.ops[column].to_numpy() for column in ("start", "duration"))
    around = inherit(Nesting.of(key, start, duration), convolution)
    made = allocations(events).filter(pl.col("op").is_not_null())
    of = _of(around, from_rows(made["op"]))
    operator = _of(rows, of)
    end = _of(start + duration, operator)
    within = made.with_columns(to_rows(of).alias("convolution")).filter(
        pl.Series(of != NONE)
        & pl.col("freed_time").is_not_null()
        & (pl.col("freed_time") <= pl.Series(end))
    )
    held = _held(within)
    of_held = launched[from_rows(held["convolution"])]
    algorithm, direction = of_held["algorithm"], of_held["direction"]
    return (
        held.with_columns(
            layer_names(trace, trace.ops["layer"].gather(of_held["op"])),
            operator_names(trace, of_held["op"]),
            direction,
            algorithm,
        )
        .group_by(*PLACE, "layer", "operator", "direction", "algorithm")
        .agg(pl.len().cast(pl.Int64).alias("calls"), pl.col("bytes").max().alias("workspace_bytes"))
        .sort(
            *PLACE, "workspace_bytes", "layer", "operator", "direction", "algorithm",
            descending=[False, False, True, False, False, False, False], nulls_last=True,
        )
    )  # fmt: skip


def _held(within: pl.DataFrame) -> pl.DataFrame:
    """Return the most bytes that each ``convolution`` held at once, by device."""
    size = pl.col("bytes")
    keys = (*PLACE, "convolution")
    made = within.select(*keys, "event", size)
    freed = within.select(*keys, pl.col("freed_event").alias("event"), -size)
    return (
        pl.concat([made, freed])
        .sort("event")
        .with_columns(size.cum_sum().over(keys))
        .group_by(keys)
        .agg(size.max())
    )


def _of(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    if not len(values):
        return np.full(len(rows), NONE, dtype=np.int64)
    return np.where(rows == NONE, NONE, values[rows])
