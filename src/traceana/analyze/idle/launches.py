"""How devices are fed: launches, kernels shorter than their launch, and time in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceana.analyze.idle.windows import PLACE, measured_windows

if TYPE_CHECKING:
    from traceana.trace import Trace


def launches(trace: Trace) -> pl.DataFrame:
    """Return one row a ``rank`` and ``device`` that calls launched work on.

    ``launches``
        Calls that launched work of any kind. ``step_launches``: mean over the measured steps.
    ``launch_bound``, ``launch_bound_ns``, ``launch_bound_share``
        Kernels whose launching call lasts longer than all that it launched, their summed time, and
        their part of the number of kernels whose launch is known.
    ``queue_median_ns``, ``queue_p95_ns``
        Of the kernels' start less the end of their launching call: median and 95th percentile, the
        lower of two. Negative where the kernel starts before the call returns.
    """
    started, took = trace.calls["start"], trace.calls["duration"]
    work = trace.activities.filter(
        (pl.col("kind") != "sync") & pl.col("call").is_not_null() & pl.col("device").is_not_null()
    ).select(*PLACE, "kind", "start", "duration", "call", "step")
    by_call = work.group_by(*PLACE, "call").agg(pl.col("step").first())
    measured = measured_windows(trace)
    steps = measured.group_by(PLACE).agg(pl.len().alias("steps"))
    in_steps = pl.col("step").is_in(measured["step"].implode()).sum().alias("in_steps")
    fed = (
        by_call.group_by(PLACE)
        .agg(pl.len().cast(pl.Int64).alias("launches"), in_steps)
        .join(steps, on=PLACE, how="left", nulls_equal=True)
        .with_columns((pl.col("in_steps") / pl.col("steps")).alias("step_launches"))
        .drop("in_steps", "steps")
    )
    kernels = work.filter(pl.col("kind").is_in(["kernel", "graph"]))
    kernels = kernels.with_columns(
        took.gather(kernels["call"]).alias("took"),
        (kernels["start"] - started.gather(kernels["call"]) - took.gather(kernels["call"])).alias(
            "queued"
        ),
    )
    bound = pl.col("duration").sum().over("call") < pl.col("took")
    queued = pl.col("queued")
    figures = (
        kernels.with_columns(bound.alias("bound"))
        .group_by(PLACE)
        .agg(
            pl.col("bound").sum().cast(pl.Int64).alias("launch_bound"),
            pl.col("duration").filter("bound").sum().alias("launch_bound_ns"),
            pl.col("bound").mean().alias("launch_bound_share"),
            queued.quantile(0.5, "lower").cast(pl.Int64).alias("queue_median_ns"),
            queued.quantile(0.95, "lower").cast(pl.Int64).alias("queue_p95_ns"),
        )
    )
    return fed.join(figures, on=PLACE, how="left", nulls_equal=True)
