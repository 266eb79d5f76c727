"""Convolutions by layer, shape, direction and algorithm, with their executed FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.executed_flops import SHAPE, executed_convolutions
from traceana.analyze.layer_operands import operands
from traceana.analyze.manifest_layers import paired
from traceana.result import Result, sums, with_share
from traceana.settings import IMAGE_CHANNELS
from traceana.table import (
    BYTES,
    COUNT,
    FLAG,
    FLOPS,
    LONG,
    NUMBER,
    PART,
    PARTS,
    PATH,
    SHARE,
    TIME,
    Column,
    aggregated,
    conformed,
    whole_sum,
)
from traceana.timeline.work import work
from traceana.trace.taxonomy import PRODUCTS, SEARCH
from traceana.trace.work import OUTSIDE, layer_labels

if TYPE_CHECKING:
    from traceana.trace import Trace

_EXTENTS: Final = {
    "batch": (NUMBER, "images of the batch"),
    "in_channels": (NUMBER, "channels of the input"),
    "out_channels": (NUMBER, "channels of the output"),
    "groups": (NUMBER, "groups of channels"),
    "transposed": (FLAG, "whether the convolution is transposed"),
    "window": (NUMBER, "spatial extents of the filter"),
    "input": (NUMBER, "spatial extents of the layer's input"),
    "output": (NUMBER, "spatial extents of the layer's output"),
    "stride": (NUMBER, "stride of the window"),
    "dilation": (NUMBER, "dilation of the window"),
    "element_bytes": (BYTES, "size of an element"),
}
COLUMNS: Final = (
    Column("layer", PATH, "as of :mod:`traceana.analyze.layers`"),
    Column(
        "position",
        NUMBER,
        "order of the layers' first forward convolutions, null without one",
        type=pl.Int32,
    ),
    Column("operator", LONG, "the operator"),
    Column("direction", PART, "`fprop`, `dgrad`, `wgrad`"),
    Column("algorithm", PARTS, "the algorithm"),
    Column("precision", PART, "of the kernel with most time"),
    Column("tensor_core", FLAG, "whether that kernel uses tensor cores"),
    *(
        Column(name, kind, f"{meaning}; null where not known", type=SHAPE[name])
        for name, (kind, meaning) in _EXTENTS.items()
    ),
    Column("unused", FLAG, "data gradients that nothing uses"),
    Column("count", COUNT, "number of convolutions", pl.len()),
    Column("kernels", COUNT, "number of kernels", pl.col("kernels").sum()),
    Column(
        "time_ns",
        TIME,
        "their time without layout changes, except those of trials",
        pl.col("time_ns").sum(),
    ),
    Column("layout_ns", TIME, "time of the layout changes around them", pl.col("layout_ns").sum()),
    Column("flops", FLOPS, "of a direct computation", whole_sum("flops"), scale="FLOPs"),
    Column(
        "executed_flops",
        FLOPS,
        "what the algorithm executes instead",
        whole_sum("executed_flops"),
        scale="FLOPs",
    ),
    Column(
        "tried",
        COUNT,
        "number of trials of an algorithm search among them",
        pl.col("tried").sum(),
    ),
    Column("tried_ns", TIME, "their time", pl.col("time_ns").filter("tried").sum()),
    Column("share", SHARE, "of the time of all rows"),
)
"""The columns of :func:`convolutions`."""
_KEYS: Final = (
    *("layer", "position", "operator", "direction", "algorithm", "precision", "tensor_core"),
    *SHAPE,
    "unused",
)
_READS: Final = ("ReadVariableOp", "ResourceGather")
"""TensorFlow's operators that read a variable."""


def convolutions(trace: Trace) -> Result:
    """Return one row per layer, operator, direction, algorithm and shape of convolution.

    The columns are :data:`COLUMNS`. Most time first.
    """
    frame = with_share(aggregated(each_convolution(trace), _KEYS, COLUMNS)).sort(
        ["time_ns", "layer", "direction", "algorithm"],
        descending=[True, False, False, False],
        nulls_last=True,
    )
    frame = conformed(frame, COLUMNS)
    notes = () if frame.height else ("no convolutions",)
    return Result(frame, sums(frame, "count", "time_ns", "layout_ns", "tried_ns"), notes, COLUMNS)


def tries_algorithms(trace: Trace) -> bool:
    """Return whether any algorithm search ran, in any step."""
    return bool((trace.tables.layers["role"] == SEARCH).any())


def each_convolution(trace: Trace) -> pl.DataFrame:
    """Return one row per convolution; ``unused`` are the data gradients that nothing uses."""
    executed = executed_convolutions(trace.whole)
    episodes = trace.tables.episodes.with_row_index("episode").hstack(
        executed.select(*SHAPE, pl.col("direct_flops").alias("flops"), "executed_flops")
    )
    named = layer_labels(trace.tables).select(
        pl.col("layer_path").cast(pl.String).alias("path"), pl.col("role") == "layer"
    )
    named = named.with_row_index("layer_row")
    start = pl.col("start").filter((pl.col("direction") == "fprop") & pl.col("role"))
    rows = (
        _timed(trace)
        .join(episodes, on="episode")
        .join(named, on="layer_row", how="left")
        .with_columns(
            pl.col("path").fill_null(OUTSIDE).alias("layer"),
            # TensorFlow runs other operators of a layer, such as those of shapes, at any time.
            start.min().over("path").rank("dense").cast(pl.Int32).alias("position"),
        )
    )
    operators = trace.tables.ops["name"].gather(rows["op"]).cast(pl.String)
    rows = rows.with_columns(operators.alias("operator"))
    return rows.with_columns(_unused(trace, rows).alias("unused"))


def _unused(trace: Trace, each: pl.DataFrame) -> pl.Series:
    """Return which convolutions of ``each`` are data gradients that nothing uses.

    Whether the gradient of a layer's input is used is in the layer manifest. Where it is not, the
    gradients of images are unused unless a layer that is trained runs before. An image has at most
    four channels; without shapes the first layer is known from the forward passes only.
    """
    gradient = pl.col("direction") == "dgrad"
    if not each.select(gradient.any()).item():
        return pl.repeat(False, each.height, dtype=pl.Boolean, eager=True)
    forward = each.filter((pl.col("direction") == "fprop") & pl.col("position").is_not_null())
    first = forward.filter(pl.col("position") == pl.col("position").min())["layer"]
    of_image = (
        (pl.col("in_channels") <= IMAGE_CHANNELS) & (pl.col("groups") == 1) & ~pl.col("transposed")
    )
    unknown = pl.col("in_channels").is_null() & pl.col("layer").is_in(first.implode())
    pairs = {} if trace.manifest is None else paired(trace, trace.manifest).layer_of
    in_manifest = {row: layer.input_gradient for row, layer in pairs.items()}
    row = pl.col("layer_row")
    used = row.replace_strict(in_manifest, default=None, return_dtype=pl.Boolean)
    trained = pl.when(row.is_in(_after_trained(trace))).then(True)
    wanted = gradient & ~pl.coalesce(used, trained, ~(of_image | unknown))
    return each.select(wanted.fill_null(value=False)).to_series()


def _after_trained(trace: Trace) -> list[int]:
    """Return the rows of the layers that run after a trained layer, in more than half of the steps.

    A layer is trained if it has a weight or a product, and work in the backward pass, or if it
    reads a variable of TensorFlow, where an embedding has no work in the backward pass.
    """
    ops, is_layer = trace.tables.ops, trace.tables.layers["role"].cast(pl.String) == "layer"
    ran = work(trace, "layer", "start", "duration", "direction", "step", "category", "name_id")
    ran = ran.filter(is_layer.gather(ran["layer"]).fill_null(value=False))
    backward = ran.filter(pl.col("direction") == "backward")["layer"].unique()
    products = ran.filter(pl.col("category").is_in(PRODUCTS))["layer"]
    weighted = {
        *(row for row, layer in operands(trace.whole).items() if layer.parameter),
        *products,
    }
    reads = ops.filter(pl.col("name").cast(pl.String).is_in(_READS))["layer"].drop_nulls().unique()
    trained = {*backward.filter(backward.is_in(weighted)), *reads}
    forward = ran.filter(pl.col("direction") == "forward")
    longest = (
        forward.group_by("layer", "name_id")
        .agg(pl.col("duration").sum())
        .sort("duration", "name_id", descending=[True, False])
        .unique("layer", keep="first", maintain_order=True)
    )
    begins = (
        forward.join(longest, on=("layer", "name_id"), how="semi")
        .group_by("step", "layer")
        .agg(pl.col("start").min())
    )
    earliest = (
        begins.filter(pl.col("layer").is_in(trained))
        .group_by("step")
        .agg(pl.col("start").min().alias("trained"))
    )
    after = (
        begins.join(earliest, on="step", nulls_equal=True)
        .group_by("layer")
        .agg((pl.col("start") > pl.col("trained")).mean().alias("after"))
    )
    return after.filter(pl.col("after") > 0.5)["layer"].to_list()


def _timed(trace: Trace) -> pl.DataFrame:
    """Return by ``episode`` its time, its layer, and the precision of its longest kernel."""
    ran = work(
        *(trace, "episode", "start", "duration", "op", "layer"),
        *("category", "precision", "tensor_core"),
    ).drop_nulls("episode")
    duration, layout = pl.col("duration"), pl.col("layout")
    longest = pl.when(layout).then(-1).otherwise(duration)
    return (
        ran.with_columns(
            # A trial has no layer; the operator that searched has one.
            pl.when(pl.col("category") == SEARCH)
            .then(trace.tables.ops["layer"].gather(ran["op"]))
            .otherwise("layer")
            .alias("layer_row"),
            pl.col("precision").cast(pl.String),
            (pl.col("category") == "layout").alias("layout"),
            (pl.col("category") == SEARCH).alias("tried"),
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
