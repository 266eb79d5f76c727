"""Convolutions by layer, shape, direction and algorithm, with their executed FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.costs import whole_sum
from traceana.analyze.operator_flops import SHAPE, executed_convolutions, shapes_of
from traceana.enrich.keys import OUTSIDE, SEARCH, described, layer_keys
from traceana.result import Result, sums, with_share
from traceana.settings import IMAGE_CHANNELS
from traceana.timeline.work import work

if TYPE_CHECKING:
    from traceana.trace import Trace

_KEYS: Final = (
    *("layer", "position", "operator", "direction", "algorithm", "precision", "tensor_core"),
    *SHAPE,
)


def convolutions(trace: Trace) -> Result:
    """Return one row per layer, operator, direction, algorithm and shape of convolution.

    Columns: ``layer`` (as of :mod:`traceana.analyze.layers`), ``position`` (order of the layers'
    first forward convolutions, null without one), ``operator``, ``direction``, ``algorithm``,
    ``precision`` and ``tensor_core`` (of the kernel with most time),
    :data:`~traceana.analyze.operator_flops.SHAPE` (null where not known), ``count``
    (convolutions), ``kernels``, ``time_ns`` (without layout changes, except those of trials),
    ``layout_ns`` (of the layout changes around them), ``flops`` (of a direct computation),
    ``executed_flops``, ``tried`` (number of trials of an algorithm search among them),
    ``tried_ns`` (their time), ``share`` (of the time of all rows). Most time first.
    """
    each = each_convolution(trace)
    frame = each.group_by(_KEYS).agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("kernels", "time_ns", "layout_ns").sum(),
        whole_sum("flops"),
        whole_sum("executed_flops"),
        pl.col("tried").sum().cast(pl.Int64),
        pl.col("time_ns").filter("tried").sum().alias("tried_ns"),
    )
    frame = with_share(frame).sort(
        ["time_ns", "layer", "direction", "algorithm"],
        descending=[True, False, False, False],
        nulls_last=True,
    )
    notes = () if frame.height else ("no convolutions",)
    return Result(frame, sums(frame, "count", "time_ns", "layout_ns", "tried_ns"), notes)


def of_input(table: pl.DataFrame) -> pl.Series:
    """Return which rows of a table of convolutions are data gradients of a network's input.

    An image has at most four channels; without shapes the first layer is known from the forward
    passes only.
    """
    forward = table.filter((pl.col("direction") == "fprop") & pl.col("position").is_not_null())
    first = forward.filter(pl.col("position") == pl.col("position").min())["layer"]
    of_image = (
        (pl.col("in_channels") <= IMAGE_CHANNELS) & (pl.col("groups") == 1) & ~pl.col("transposed")
    )
    unknown = pl.col("in_channels").is_null() & pl.col("layer").is_in(first.implode())
    wanted = (pl.col("direction") == "dgrad") & (of_image | unknown)
    return table.select(wanted.fill_null(value=False)).to_series()


def tries_algorithms(trace: Trace) -> bool:
    """Return whether any algorithm search ran, in any step."""
    return bool((trace.tables.layers["role"] == SEARCH).any())


def each_convolution(trace: Trace) -> pl.DataFrame:
    """Return one row per convolution."""
    executed = executed_convolutions(trace.whole)
    episodes = trace.tables.episodes.with_row_index("episode").hstack(
        executed.select("operator", pl.col("direct_flops").alias("flops"), "executed_flops")
    )
    named = layer_keys(trace.tables.layers, by="layer", depth=None).select(
        pl.col("layer_row"), pl.col("layer").alias("path"), pl.col("role") == "layer"
    )
    start = pl.col("start").filter((pl.col("direction") == "fprop") & pl.col("role"))
    found = (
        _timed(trace)
        .join(episodes, on="episode")
        .join(shapes_of(trace.tables.ops, executed["operator"]), on="operator", how="left")
        .join(named, on="layer_row", how="left")
        .with_columns(
            pl.col("path").fill_null(OUTSIDE).alias("layer"),
            # TensorFlow runs other operators of a layer, such as those of shapes, at any time.
            start.min().over("path").rank("dense").cast(pl.Int32).alias("position"),
        )
    )
    operators = trace.tables.ops["name"].gather(found["op"]).cast(pl.String)
    return found.with_columns(operators.alias("operator"))


def _timed(trace: Trace) -> pl.DataFrame:
    """Return by ``episode`` its time, its layer, and the precision of its longest kernel."""
    ran = work(trace, "episode", "start", "duration", "name_id", "class", "op", "layer").drop_nulls(
        "episode"
    )
    of_class = described(ran.select("name_id", "class"), trace)
    duration, layout = pl.col("duration"), pl.col("layout")
    longest = pl.when(layout).then(-1).otherwise(duration)
    return (
        ran.select("episode", "start", "duration")
        .with_columns(
            # A trial has no layer; the operator that searched has one.
            pl.when(of_class["category"] == SEARCH)
            .then(trace.tables.ops["layer"].gather(ran["op"]))
            .otherwise(ran["layer"])
            .alias("layer_row"),
            of_class["precision"],
            of_class["tensor_core"],
            (of_class["category"] == "layout").alias("layout"),
            (of_class["category"] == SEARCH).alias("tried"),
        )
        .group_by("episode")
        .agg(
            pl.len().cast(pl.Int64).alias("kernels"),
            pl.col("start").min(),
            duration.filter(~layout).sum().alias("time_ns"),
            duration.filter(layout).sum().alias("layout_ns"),
            pl.col("layer_row").drop_nulls().first(),
            pl.col("tried").any(),
            pl.col("precision", "tensor_core").sort_by(longest, descending=True).first(),
        )
    )
