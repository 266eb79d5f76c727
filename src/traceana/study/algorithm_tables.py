"""The tables of an algorithm study: all measurements, by batch size, and by layer."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from traceana.flops.cost import Refusal
from traceana.flops.executed import executed
from traceana.flops.timed_algorithms import AlgorithmStudy
from traceana.trace.taxonomy import FAMILY_OF_ALGORITHM

_TEXT, _COUNT = pl.String, pl.Int64
MEASUREMENTS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "position": _COUNT,
    "layer": _TEXT,
    "direction": pl.Enum(["fprop", "dgrad", "wgrad"]),
    "batch": _COUNT,
    "algorithm": _TEXT,
    "family": _TEXT,
    "name": _TEXT,
    "implementation": _TEXT,
    "math_type": _TEXT,
    "deterministic": pl.Boolean,
    "status": _TEXT,
    "reason": _TEXT,
    "median_ns": pl.Float64,
    "times_ns": pl.List(pl.Int64),
    "search_ns": _COUNT,
    "reorder_median_ns": pl.Float64,
    "reorder_ns": pl.List(pl.Int64),
    "reorder_bytes": _COUNT,
    "workspace_bytes": _COUNT,
    "direct_flops": _COUNT,
    "executed_flops": _COUNT,
    "flops_reason": _TEXT,
    "direct_flops_per_s": pl.Float64,
    "error": pl.Float64,
}
"""Columns of :func:`measurements`."""

CHOICE: Final = ("algorithm", "name", "implementation", "math_type")
"""The columns that distinguish the algorithms of one layer, direction and batch size."""

_DERIVED: Final = ("median_ns", "reorder_median_ns", "direct_flops_per_s")


def measurements(study: AlgorithmStudy) -> pl.DataFrame:
    """Return one row per measurement, in the file's order, with the columns of ``MEASUREMENTS``.

    Times are in ns, ``position`` is the layer's from 0. ``direct_flops`` are the FLOPs of a direct
    convolution, ``executed_flops`` those of this algorithm (``traceana.flops.executed``; null, with
    ``flops_reason``, without a formula). ``direct_flops_per_s`` is ``direct_flops`` divided by the
    median time, the effective rate of the layer.
    """
    layers = {layer.path: (number, layer) for number, layer in enumerate(study.layers)}
    rows: list[dict[str, Any]] = []
    for each in study.measurements:
        position, layer = layers[each.layer]
        conv = layer.convolution(each.batch)
        count = executed(conv, each.algorithm, each.direction)
        rows.append(
            {
                "position": position,
                "layer": each.layer,
                "direction": each.direction,
                "batch": each.batch,
                "algorithm": each.algorithm,
                "family": FAMILY_OF_ALGORITHM[each.algorithm],
                "name": each.name,
                "implementation": each.implementation,
                "math_type": each.math_type,
                "deterministic": each.deterministic,
                "status": each.status,
                "reason": each.reason,
                "times_ns": list(each.times_ns) or None,
                "search_ns": each.search_ns,
                "reorder_ns": list(each.reorder_ns) or None,
                "reorder_bytes": each.reorder_bytes,
                "workspace_bytes": each.workspace_bytes,
                "direct_flops": 2 * conv.macs,
                "executed_flops": None if isinstance(count, Refusal) else count.flops,
                "flops_reason": count.reason if isinstance(count, Refusal) else None,
                "error": each.error,
            }
        )
    given = {name: kind for name, kind in MEASUREMENTS.items() if name not in _DERIVED}
    return (
        pl.DataFrame(rows, schema=given)
        .with_columns(
            median_ns=pl.col("times_ns").list.median(),
            reorder_median_ns=pl.col("reorder_ns").list.median(),
        )
        .with_columns(direct_flops_per_s=pl.col("direct_flops") / pl.col("median_ns") * 1e9)
        .select(list(MEASUREMENTS))
    )


def by_layer(table: pl.DataFrame, batch: int) -> pl.DataFrame:
    """Return the fastest measurement of each layer, direction and algorithm at one batch size.

    ``table`` is that of :func:`measurements`; rows are in the order of the layers. An algorithm
    that did not run for a layer has a row with the reason. Figure 9 of Kim et al. (ISPASS 2017).
    """
    return _fastest(table.filter(pl.col("batch") == batch), ("position", "direction", "algorithm"))


def by_batch(table: pl.DataFrame) -> pl.DataFrame:
    """Return time and memory of each algorithm over all layers, by direction and batch size.

    Columns: ``direction``, ``batch``, ``algorithm``, ``family``, ``layers`` (number of layers on
    which the algorithm ran), ``of_layers`` (number of layers), ``median_ns`` (sum of its fastest
    medians over these layers), ``fastest_ns`` (sum of the fastest medians of any algorithm over
    these layers), ``workspace_bytes`` (the largest of these layers, which can share one). Figure 8
    of Kim et al. (ISPASS 2017).
    """
    run = table.filter(pl.col("status") == "ok")
    case = ("position", "direction", "batch")
    best = run.group_by(case).agg(pl.col("median_ns").min().alias("fastest_ns"))
    measured = table.group_by("direction", "batch").agg(
        pl.col("position").n_unique().cast(pl.Int64).alias("of_layers")
    )
    return (
        _fastest(run, (*case, "algorithm"))
        .join(best, on=case)
        .group_by("direction", "batch", "algorithm", "family")
        .agg(
            pl.len().cast(pl.Int64).alias("layers"),
            pl.col("median_ns", "fastest_ns").sum(),
            pl.col("workspace_bytes").max(),
        )
        .join(measured, on=("direction", "batch"))
        .select(
            *("direction", "batch", "algorithm", "family", "layers", "of_layers"),
            *("median_ns", "fastest_ns", "workspace_bytes"),
        )
        .sort("direction", "batch", "median_ns", "algorithm")
    )


def _fastest(table: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    """Return the row with the lowest median for each value of ``keys``."""
    return (
        table.sort("median_ns", nulls_last=True, maintain_order=True)
        .unique(keys, keep="first", maintain_order=True)
        .sort(keys)
    )
