"""Time and operations of convolution algorithms by layer (Kim et al. 2017, Figure 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from traceana.algorithms import AlgorithmStudy, by_layer, measurements
from traceana.analyze.layers import layers
from traceana.analyze.selection import select
from traceana.analyze.steps import measured_steps
from traceana.comparison.compared_run import Run
from traceana.comparison.layer_table import layer_table
from traceana.result import Result
from traceana.study.convolutions.sources import direction_order, names, notes, on, to_measure
from traceana.study.model import Study
from traceana.study.names import Name
from traceana.study.side_by_side import Traced

SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "network": pl.String,
    "run": pl.String,
    "batch": pl.Int64,
    "position": pl.Int64,
    "layer": pl.String,
    "direction": pl.String,
    "algorithm": pl.String,
    "name": pl.String,
    "time_ns": pl.Int64,
    "executed_flops": pl.Int64,
    "direct_flops": pl.Int64,
    "workspace_bytes": pl.Int64,
    "status": pl.String,
}
"""One row a source, batch, layer, direction and algorithm. ``executed_flops`` is what the algorithm
executes, ``direct_flops`` what a direct sum does, a multiply-accumulate being two. ``status`` is
``ok``, or why there is no time: null, never 0. Of recorded runs the rows are of the layers that
convolve, means over the measured steps, and ``direction`` is ``forward`` or ``backward``: one call
may compute both gradients."""

_CONVOLVES: Final = "(?i)conv"


def layerwise_study(measured: Sequence[AlgorithmStudy], traced: Sequence[Traced]) -> Study:
    """Return the fastest run of each algorithm for each layer, and what runs chose for theirs."""
    sources = names(measured, traced)
    frames = [pl.DataFrame(schema=SCHEMA)]
    frames += [_timed(one, name) for one, name in zip(measured, sources, strict=False)]
    frames += _chosen(traced, sources[len(measured) :])
    frame = pl.concat(frames).sort(
        *("network", "run", "batch", "position", direction_order(), "time_ns"),
        nulls_last=True,
        maintain_order=True,
    )
    return Study(
        Name.LAYERWISE,
        "Time and operations of convolution algorithms by layer",
        on(measured, traced),
        Result(frame, {}, tuple(notes(measured, traced))),
        missing=to_measure(measured, traced),
    )


def _timed(study: AlgorithmStudy, name: str) -> pl.DataFrame:
    table = measurements(study)
    batches = table["batch"].unique(maintain_order=True).to_list()
    fastest = pl.concat([table.head(0), *(by_layer(table, batch) for batch in batches)])
    ok = pl.col("status") == "ok"
    return fastest.select(
        pl.lit(study.network).alias("network"),
        pl.lit(name).alias("run"),
        "batch",
        "position",
        "layer",
        "direction",
        "algorithm",
        "name",
        pl.col("median_ns").round().alias("time_ns"),
        "executed_flops",
        "direct_flops",
        "workspace_bytes",
        pl.when(ok)
        .then(pl.lit("ok"))
        .otherwise(pl.format("{}: {}", pl.col("status").str.replace_all("_", " "), "reason"))
        .alias("status"),
    ).cast(dict(SCHEMA))  # type: ignore[arg-type]


def _chosen(traced: Sequence[Traced], names: Sequence[str]) -> list[pl.DataFrame]:
    """Return the rows of recorded runs; a layer is called alike in all runs of its network."""
    found = []
    for network in dict.fromkeys(one.run.network for one in traced):
        own = [(one, name) for one, name in zip(traced, names, strict=True)
               if one.run.network == network]  # fmt: skip
        runs = [Run(name, one.trace, one.model) for one, name in own]
        aligned = layer_table(runs).frame.filter(pl.col("role") == "layer")
        called = aligned.select("run", "path", pl.col("layer").alias("_name"), "item")
        for one, name in own:
            rows = _of_run(one, name).join(
                called.filter(pl.col("run") == name).drop("run"),
                left_on="layer",
                right_on="path",
                how="left",
            )
            found.append(
                rows.with_columns(
                    pl.coalesce("_name", "layer").alias("layer"), pl.col("item").alias("position")
                )
                .select(list(SCHEMA))
                .cast(dict(SCHEMA))  # type: ignore[arg-type]
            )
    return found


def _of_run(traced: Traced, name: str) -> pl.DataFrame:
    trace = traced.trace
    rows = measured_steps(trace).rows
    numbers = trace.steps["number"].gather(rows).unique().to_list() if rows else None
    steps = len(numbers) if numbers else 1
    frame = layers(select(trace, steps=numbers), direction=True, model=traced.model).frame
    algorithm = pl.col("algorithm").fill_null("")
    convolves = ((algorithm != "") | pl.col("type").str.contains(_CONVOLVES)).any().over("layer")
    chosen = algorithm.filter(algorithm != "").unique(maintain_order=True).str.join(", ")
    return (
        frame.filter(pl.col("role") == "layer", convolves)
        .with_columns(pl.col("direction").replace(dict.fromkeys(("dgrad", "wgrad"), "backward")))
        .group_by("layer", "direction", maintain_order=True)
        .agg(
            chosen.replace("", "unknown").alias("algorithm"),
            pl.col("time_ns").sum() // steps,
            *(
                (pl.when(pl.col(column).is_not_null().all()).then(pl.col(column).sum()) // steps)
                .cast(pl.Int64)
                .alias(called)
                for column, called in (
                    ("executed_flops", "executed_flops"),
                    ("flops", "direct_flops"),
                )
            ),
        )
        .with_columns(
            pl.lit(traced.run.network, pl.String).alias("network"),
            pl.lit(name).alias("run"),
            pl.lit(traced.run.batch, pl.Int64).alias("batch"),
            pl.lit(None, pl.String).alias("name"),
            pl.lit(None, pl.Int64).alias("workspace_bytes"),
            pl.lit("ok").alias("status"),
        )
    )
