"""Chains of consecutive elementwise kernels, which a compiler would fuse into one kernel."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.columns.distinct import numbered
from traceana.result import Result, sums
from traceana.table import COUNT, LONG, TIME, Column, aggregated, conformed
from traceana.timeline.work import kernels_of
from traceana.vocabulary.operators import GENERATED

if TYPE_CHECKING:
    from traceana.trace import Trace

COLUMNS: Final = (
    Column("operator", LONG, "operators of the chain, in order"),
    Column("count", COUNT, "number of chains", pl.len()),
    Column("calls", COUNT, "number of their kernels", pl.col("calls").sum()),
    Column("time_ns", TIME, "time of the kernels", pl.col("time_ns").sum()),
    Column(
        "saving_ns",
        TIME,
        "their time without the longest kernel of each chain",
        pl.col("saving_ns").sum(),
    ),
)
"""The columns of :func:`elementwise_chains`."""
_FUSIBLE: Final = ("elementwise", "activation", "dropout", "bias")
_ALONE: Final = ("fill", "sum")
"""Functions of such kernels that are in no chain: a fill reads nothing, a sum is a reduction."""
_LISTS: Final = r"multi_tensor_apply"
"""Kernels over lists of tensors."""
_SHAPE: Final = re.compile(r"\[\s*(\d[\d,\s]*)\]")
_BLOCKS: Final = pl.col("grid_x").cast(pl.Int64) * pl.col("grid_y") * pl.col("grid_z")


def elementwise_chains(trace: Trace) -> Result:
    """Return one row per sequence of operators whose elementwise kernels follow each other.

    A chain is two kernels or more of one step, one after the other on one stream, on tensors of
    one number of elements. Where shapes are not recorded they have one number of blocks, and two
    names or more: a loop over other tensors has one. A chain of biases and activations alone does
    not count, since the product before it can compute them; kernels that a compiler generated and
    kernels of the optimizer are left out. The fused kernel reads and writes what the longest kernel
    does, or more. The columns are :data:`COLUMNS`. Largest saving first.
    """
    chains = (
        _in_order(trace)
        .group_by("chain", maintain_order=True)
        .agg(
            pl.col("operator").str.join(" → "),
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("duration").sum().alias("time_ns"),
            (pl.col("duration").sum() - pl.col("duration").max()).alias("saving_ns"),
            (~pl.col("category").is_in(["bias", "activation"])).any().alias("counts"),
            (pl.col("size").min() > 0).alias("sized"),
            pl.col("name_id").n_unique().alias("names"),
        )
        .filter("counts", pl.col("calls") > 1, pl.col("sized") | (pl.col("names") > 1))
    )
    frame = aggregated(chains, ["operator"], COLUMNS).sort(
        ["saving_ns", "operator"], descending=[True, False]
    )
    frame = conformed(frame, COLUMNS)
    return Result(frame, sums(frame, "count", "calls", "time_ns", "saving_ns"), (), COLUMNS)


def _in_order(trace: Trace) -> pl.DataFrame:
    """Return the elementwise kernels by stream and time, with the number of their ``chain``."""
    queue = ("rank", "device", "context", "stream")
    ran = kernels_of(
        trace,
        *(*queue, "start", "duration", "step", "op", "operator", "name_id", "direction"),
        *("instruction", "category", "function", "grid_x", "grid_y", "grid_z"),
    )
    name = pl.col("name")
    names = trace.tables.names.select(
        (name.str.contains(GENERATED) | name.str.contains(_LISTS)).alias("other")
    )
    (stream,) = numbered(ran.select(queue))
    size = pl.coalesce("elements", -_BLOCKS)
    fusible = (
        pl.col("category").cast(pl.String).is_in(_FUSIBLE)
        & ~pl.col("function").cast(pl.String).is_in(_ALONE).fill_null(value=False)
        & ~pl.col("other")
        & (pl.col("direction") != "optimizer").fill_null(value=True)
        & pl.col("instruction").is_null()
        & size.is_not_null()
    )
    return (
        ran.with_columns(
            pl.Series("queue", stream),
            names["other"].gather(ran["name_id"]),
            _elements(trace).gather(ran["op"]).alias("elements"),
            pl.col("category").cast(pl.String),
            pl.coalesce(
                pl.col("operator").cast(pl.String), pl.col("function").cast(pl.String), "category"
            ).alias("operator"),
        )
        .sort("queue", "start")
        .with_columns(fusible.alias("fusible"), size.alias("size"))
        .with_columns(pl.struct("queue", "step", "fusible", "size").rle_id().alias("chain"))
        .filter("fusible")
    )


def _elements(trace: Trace) -> pl.Series:
    """Return by operator the elements of its largest input; null where shapes are not recorded."""
    shapes = trace.tables.ops["input_shapes"]
    counts = {text: _largest(text) for text in shapes.drop_nulls().unique()}
    return shapes.replace_strict(counts, default=None, return_dtype=pl.Int64).alias("elements")


def _largest(shapes: str) -> int | None:
    sizes = (prod(map(int, shape.split(","))) for shape in _SHAPE.findall(shapes))
    largest = max(sizes, default=0)
    # A damaged file may have any numbers.
    return largest if 0 < largest < 1 << 62 else None
