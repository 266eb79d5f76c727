"""Time and memory of convolution algorithms by batch (Kim et al. 2017, Figure 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from traceana.algorithms import AlgorithmStudy, by_batch, measurements
from traceana.comparison.compared_run import Run
from traceana.comparison.run_tables import algorithms
from traceana.result import Result
from traceana.study.convolutions.sources import direction_order, names, notes, on, to_measure
from traceana.study.model import Study
from traceana.study.names import Name
from traceana.study.side_by_side import Traced, conformed, of_basis

SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "network": pl.String,
    "run": pl.String,
    "direction": pl.String,
    "batch": pl.Int64,
    "algorithm": pl.String,
    "family": pl.String,
    "layers": pl.Int64,
    "of_layers": pl.Int64,
    "time_ns": pl.Int64,
    "fastest_ns": pl.Int64,
    "workspace_bytes": pl.Int64,
    "calls": pl.Float64,
}
"""One row a source (``run``), direction, batch and algorithm. Of timed algorithms as
:func:`traceana.algorithms.by_batch` has them, medians rounded; of recorded runs ``time_ns`` and
``calls`` of the convolutions' kernels a step, or of the recording where it marks no steps, and the
rest is null: a run shows what was chosen."""


def algorithms_study(measured: Sequence[AlgorithmStudy], traced: Sequence[Traced]) -> Study:
    """Return time and workspace of each algorithm over the layers that it ran on, by batch."""
    sources = names(measured, traced)
    frames = [pl.DataFrame(schema=SCHEMA)]
    frames += [_timed(one, name) for one, name in zip(measured, sources, strict=False)]
    rest = sources[len(measured) :]
    frames += [_chosen(one, name) for one, name in zip(traced, rest, strict=True)]
    frame = pl.concat(frames).sort(
        "network",
        "run",
        direction_order(),
        "batch",
        "time_ns",
        nulls_last=True,
        maintain_order=True,
    )
    return Study(
        Name.ALGORITHMS,
        "Time and workspace of convolution algorithms by batch size",
        on(measured, traced),
        Result(frame, {}, (*notes(measured, traced), *_partial(frame))),
        missing=to_measure(measured, traced),
    )


def _partial(frame: pl.DataFrame) -> list[str]:
    some = frame.filter(pl.col("layers") < pl.col("of_layers"))
    return ["times are of the layers that the algorithm ran on"] if some.height else []


def _timed(study: AlgorithmStudy, name: str) -> pl.DataFrame:
    table = by_batch(measurements(study)).rename({"median_ns": "time_ns"})
    rounded = table.with_columns(pl.col("time_ns", "fastest_ns").round())
    return _rows(rounded, network=study.network, run=name)


def _chosen(traced: Traced, name: str) -> pl.DataFrame:
    table = algorithms([Run(name, traced.trace, traced.model)])
    frame = of_basis(table).filter(pl.col("category") == "conv").rename({"pass": "direction"})
    return _rows(
        frame.with_columns(pl.lit(traced.run.batch, pl.Int64).alias("batch")),
        network=traced.run.network,
        run=name,
    )


def _rows(frame: pl.DataFrame, *, network: str | None, run: str) -> pl.DataFrame:
    told = frame.with_columns(pl.lit(network, pl.String).alias("network"), pl.lit(run).alias("run"))
    return conformed(told, SCHEMA)
