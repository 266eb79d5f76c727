"""Consecutive matrix products of one shape, which one batched call could compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.columns.distinct import numbered
from traceana.columns.intervals import Busy
from traceana.result import Result, sums
from traceana.settings import REPEATED_GEMMS, REPEATED_GEMMS_GAP
from traceana.table import (
    COUNT,
    KERNEL,
    LONG,
    MEAN,
    PART,
    PATH,
    TIME,
    Column,
    aggregated,
    completed,
    conformed,
)
from traceana.timeline.work import kernels_of, work
from traceana.trace.work import OUTSIDE, layer_labels

if TYPE_CHECKING:
    from traceana.trace import Trace

_IN_RUN: Final = pl.col("length") >= REPEATED_GEMMS
COLUMNS: Final = (
    Column("layer", PATH, "layer of the products"),
    Column("operator", LONG, "their operator"),
    Column("shapes", LONG, "recorded inputs, JSON"),
    Column("name", KERNEL, "name of the kernel"),
    Column("precision", PART, "its precision"),
    Column(
        "blocks",
        MEAN,
        "blocks of its grid",
        value=pl.col("grid_x").cast(pl.Int64) * pl.col("grid_y") * pl.col("grid_z"),
        type=pl.Int64,
    ),
    Column(
        "multiprocessors",
        COUNT,
        "multiprocessors of the device",
        pl.col("multiprocessors").max(),
        type=pl.Int32,
    ),
    Column("calls", COUNT, "number of products", pl.len()),
    Column("time_ns", TIME, "their time", pl.col("duration").sum()),
    Column("runs", COUNT, "number of runs", pl.col("run").n_unique()),
    Column("longest", COUNT, "products in the longest run", pl.col("length").max()),
    Column("in_runs", COUNT, "products in runs", _IN_RUN.sum()),
    Column("in_runs_ns", TIME, "their time", pl.col("duration").filter(_IN_RUN).sum()),
    Column(
        "gaps_ns",
        TIME,
        "time between the products of runs in which their device is idle",
        pl.col("gap").filter(_IN_RUN).sum(),
    ),
)
"""The columns of :func:`products`."""
_QUEUE: Final = ("rank", "device", "context", "stream")
_COLUMNS: Final = (
    *_QUEUE,
    *("start", "duration", "step", "op", "layer", "name_id", "batched"),
    *("grid_x", "grid_y", "grid_z"),
)
_KEYS: Final = ("name_id", "layer_row", "operands", "grid_x", "grid_y", "grid_z")


def products(trace: Trace) -> Result:
    """Return one row per layer, operator, kernel and grid of non-batched matrix products.

    A run is :data:`REPEATED_GEMMS` or more consecutive ones of one step on one stream, with only
    kernels of a convolution (the expansion of the next image) and at most
    :data:`REPEATED_GEMMS_GAP` between them. The columns are :data:`COLUMNS`. Most in runs first.
    """
    each = _in_order(trace)
    sms = trace.tables.devices.select("rank", "device", "multiprocessors").unique(
        ["rank", "device"], keep="first"
    )
    each = each.join(sms, on=["rank", "device"], how="left", nulls_equal=True)
    # Operators of one number in `operands` have the same name and shapes.
    op = each.select(*_KEYS, "op").unique(_KEYS, keep="first", maintain_order=True)
    summed = aggregated(each, _KEYS, COLUMNS).join(op, on=_KEYS, nulls_equal=True)
    layers = layer_labels(trace.tables)["layer_path"].cast(pl.String)
    kernel = trace.tables.names.select("name", "precision").with_row_index("name_id")
    frame = (
        summed.with_columns(
            trace.tables.ops["name"].gather(summed["op"]).cast(pl.String).alias("operator"),
            trace.tables.ops["input_shapes"].gather(summed["op"]).alias("shapes"),
            layers.gather(summed["layer_row"]).fill_null(OUTSIDE).alias("layer"),
        )
        .join(kernel, on="name_id", how="left")
        .sort(["in_runs_ns", "time_ns", "layer", "name"], descending=[True, True, False, False])
    )
    frame = conformed(completed(frame, COLUMNS), COLUMNS)
    notes = () if frame.height else ("no non-batched GEMMs",)
    return Result(frame, sums(frame, "calls", "time_ns", "in_runs", "in_runs_ns"), notes, COLUMNS)


def _in_order(trace: Trace) -> pl.DataFrame:
    """Return non-batched products by stream and time, with their ``run`` and the ``gap`` before.

    ``operands`` is the number of the operator's name and shapes.
    """
    ran = kernels_of(trace, *_COLUMNS)
    # A product that computes a convolution has the name of one, and the convolution's class.
    named = trace.tables.names["category"].gather(ran["name_id"])
    plain = ((named == "gemm") & ran["batched"].not_()).fill_null(value=False)
    helping = ((named == "conv") & ~plain).fill_null(value=False)
    (queue,) = numbered(ran.select(_QUEUE))
    shapes = trace.tables.ops["input_shapes"].cast(pl.Categorical)
    (operands,) = numbered(trace.tables.ops.select("name", shapes))
    each = ran.rename({"layer": "layer_row"}).with_columns(
        plain.alias("plain"),
        helping.alias("helping"),
        pl.Series("queue", queue),
        pl.Series("operands", operands).gather(ran["op"]),
    )
    start = each["start"].to_numpy()
    if ((queue[1:] < queue[:-1]) | ((queue[1:] == queue[:-1]) & (start[1:] < start[:-1]))).any():
        each = each[np.lexsort((start, queue))]
    end = pl.col("start") + pl.col("duration")
    each = (
        each.with_columns((pl.col("start") - end.shift(1)).clip(0).alias("gap"))
        .filter(~pl.col("helping"))
        .with_columns((pl.col("gap") > REPEATED_GEMMS_GAP).cum_sum().alias("pause"))
        .with_columns(pl.struct("plain", "queue", "step", "pause", *_KEYS).rle_id().alias("run"))
        .filter("plain")
    )
    follows = (pl.col("run") == pl.col("run").shift(1)).fill_null(value=False)
    each = each.with_columns(
        pl.when(follows).then("gap").otherwise(0).alias("gap"),
        pl.len().over("run").alias("length"),
    )
    # Of the gaps of runs the part in which nothing ran on the device.
    (rows,) = np.nonzero(((each["gap"] > 0) & (each["length"] >= REPEATED_GEMMS)).to_numpy())
    if not len(rows):
        return each
    gaps = each[rows].select(
        "rank", "device", "gap", (pl.col("start") - pl.col("gap")).alias("start"), end="start"
    )
    ran = work(trace.whole, "rank", "device", "start", "duration")
    busy = Busy.of(ran).within(gaps)
    return each.with_columns(each["gap"].scatter(rows, gaps["gap"] - busy))
