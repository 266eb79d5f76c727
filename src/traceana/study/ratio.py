"""Relative performance of frameworks by network (NVIDIA's review of deep learning frameworks)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from traceana.result import Result, ratio
from traceana.study.conditions import conditions
from traceana.study.labels import labels
from traceana.study.missing import command
from traceana.study.model import Study
from traceana.study.names import Name
from traceana.study.recorded import Recorded

SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "network": pl.String,
    "batch": pl.Int64,
    "place": pl.String,
    "run": pl.String,
    "framework": pl.String,
    "version": pl.String,
    "status": pl.String,
    "timed": pl.String,
    "step_ns": pl.Int64,
    "images_per_s": pl.Float64,
    "reference": pl.String,
    "relative_speed": pl.Float64,
}
"""One row a run. ``relative_speed`` is its images a second over those of ``reference``, the first
run of the same network, batch and place; null where either has no figure."""


def ratio_study(runs: Sequence[Recorded]) -> Study:
    """Return how fast each run is relative to the first of its network, batch and place.

    The order of ``runs`` decides which framework is the reference.
    """
    names = labels(runs, lambda run: (run.network, run.batch, run.devices))
    found = [
        _row(run, name)
        for run, name in zip(runs, names, strict=True)
        if run.batch and run.network is not None
    ]
    frame = pl.DataFrame(found, schema=SCHEMA)
    first = frame["run"].first() if frame.height else None
    # The same series is the reference of every network that has it.
    alike = ("network", "batch", "place")
    chosen = (
        frame.with_row_index("_row")
        .sort(pl.col("run").ne_missing(pl.lit(first, pl.String)), "_row")
        .group_by(alike, maintain_order=True)
        .agg(
            pl.col("run").first().alias("reference"),
            pl.col("images_per_s").first().alias("_of_reference"),
        )
    )
    frame = (
        frame.drop("reference", "relative_speed")
        .join(chosen, on=alike, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(
            ratio(pl.col("images_per_s"), pl.col("_of_reference")).alias("relative_speed")
        )
        .select(list(SCHEMA))
        .sort("network", "batch", "place", maintain_order=True)
    )
    notes = ["speed is images a second; the reference is the first run that was named"]
    if frame.is_empty():
        notes = ["no run tells its network and batch"]
    return Study(
        Name.RATIO,
        "Speed relative to the first framework, by network",
        conditions(runs),
        Result(frame, {}, tuple(notes)),
        missing=tuple(_missing(frame)),
    )


def _row(run: Recorded, name: str) -> dict[str, object]:
    return {
        "network": run.network,
        "batch": run.batch,
        "place": run.place,
        "run": name,
        "framework": run.framework,
        "version": run.version,
        "status": run.status,
        "timed": run.timed,
        "step_ns": run.step_ns,
        "images_per_s": run.images_per_s,
    }


def _missing(frame: pl.DataFrame) -> list[str]:
    if frame.is_empty():
        both = [command(one, "alexnet", "--batch 32") for one in ("PyTorch", "JAX")]
        return [f"to fill this study: {'; '.join(both)}"]
    alone = frame.filter(pl.col("run").n_unique().over("network", "batch", "place") == 1)
    told = []
    for network, batch, framework in alone.select("network", "batch", "framework").iter_rows():
        other = "JAX" if framework == "PyTorch" else "PyTorch"
        words = command(other, network, f"--batch {batch}")
        told.append(f"{network} at batch {batch} was recorded once; beside it: {words}")
    return told
