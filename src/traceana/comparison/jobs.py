"""What changed between two distributed jobs: rank by rank, and as a whole."""

from __future__ import annotations

from typing import Final

import msgspec
import polars as pl

from traceana.analyze.run_to_run import relative_spread
from traceana.comparison.verdicts import Criteria, Step, step_verdict
from traceana.job.ranks import Job
from traceana.settings import RUN_TO_RUN_HOST, RUN_TO_RUN_KERNELS, RUN_TO_RUN_PAGEABLE

_SIDES: Final = ("a", "b")
_SPREADS: Final = {
    **{"compute": RUN_TO_RUN_KERNELS, "other work": RUN_TO_RUN_KERNELS},
    "exposed copies": RUN_TO_RUN_PAGEABLE,
}
"""The spread between runs of each part of a rank's time; idle time and collectives: the hosts'."""


class JobDiff(msgspec.Struct, frozen=True):
    """The change from the job ``baseline`` to ``candidate``.

    ``step`` is the verdict on the jobs' step times, null where one has no step that all its ranks
    have. ``rows`` has one row per rank, ``parts`` one per part of the ranks' time.
    """

    baseline: Job
    candidate: Job
    criteria: Criteria
    step: Step | None
    rows: pl.DataFrame
    parts: pl.DataFrame


def compare_jobs(baseline: Job, candidate: Job, criteria: Criteria) -> JobDiff:
    """Return what changed from ``baseline`` to ``candidate``; ranks are paired by their number."""
    a, b = _job_steps(baseline), _job_steps(candidate)
    spreads = _spread(baseline), _spread(candidate)
    known = not (a.is_empty() or b.is_empty())
    step = step_verdict([a], [b], criteria, spreads=spreads) if known else None
    return JobDiff(
        baseline, candidate, criteria, step, _rows(baseline, candidate), _parts(baseline, candidate)
    )


def _job_steps(job: Job) -> pl.Series:
    """Return the wall times of the job's steps: a step takes as long as on its slowest rank."""
    return job.own.group_by("step").agg(pl.col("wall_ns").max()).sort("step")["wall_ns"]


def _spread(job: Job) -> float:
    """Return the relative standard deviation of the job's step time between runs.

    Copies count as pageable: the ranks' summaries have no kind of host memory.
    """
    sums = dict(job.parts.group_by("part").agg(pl.col("step_ns").sum()).iter_rows())
    return relative_spread(
        (time, _SPREADS.get(part, RUN_TO_RUN_HOST)) for part, time in sums.items()
    )


def _rows(baseline: Job, candidate: Job) -> pl.DataFrame:
    """Return the figures of each rank in both jobs, the largest change of own time first.

    ``rank``, ``status_a``, ``status_b``; ``step_a_ns``, ``step_b_ns``, ``delta_ns``, ``relative``:
    the median wall time of its measured steps; ``own_a_ns``, ``own_b_ns``, ``own_delta_ns``: that
    of its own time (without exposed waits for other ranks); ``wait_a_ns`` and ``wait_b_ns``: mean
    wait per measured step; ``straggler_a``, ``straggler_b``.
    """
    sides = [
        _figures(job).rename(lambda name, side=side: _named(name, side))  # type: ignore[misc]
        for side, job in zip(_SIDES, (baseline, candidate), strict=True)
    ]
    paired = sides[0].join(sides[1], on="rank", how="full", coalesce=True)
    step, own = (pl.col(f"{name}_b_ns") - pl.col(f"{name}_a_ns") for name in ("step", "own"))
    return (
        paired.with_columns(
            step.alias("delta_ns"),
            pl.when(pl.col("step_a_ns") > 0).then(step / pl.col("step_a_ns")).alias("relative"),
            own.alias("own_delta_ns"),
        )
        .select(
            *("rank", "status_a", "status_b", "step_a_ns", "step_b_ns", "delta_ns", "relative"),
            *("own_a_ns", "own_b_ns", "own_delta_ns", "wait_a_ns", "wait_b_ns"),
            *("straggler_a", "straggler_b"),
        )
        .sort(pl.col("own_delta_ns").abs(), "rank", descending=[True, False], nulls_last=True)
    )


def _named(name: str, side: str) -> str:
    if name == "rank":
        return name
    return f"{name.removesuffix('_ns')}_{side}_ns" if name.endswith("_ns") else f"{name}_{side}"


def _figures(job: Job) -> pl.DataFrame:
    own = job.own.group_by("rank").agg(
        pl.col("own_ns").median().round().cast(pl.Int64),
        pl.col("wait_ns").mean().round().cast(pl.Int64),
    )
    return (
        job.rows.drop_nulls("rank")
        .select("rank", "status", pl.col("step_median_ns").alias("step_ns"), "straggler")
        .join(own, on="rank", how="left")
    )


def _parts(baseline: Job, candidate: Job) -> pl.DataFrame:
    """Return where the time of the ranks goes, per step of the capture and rank that was read.

    ``part`` and ``cause`` (of idle time), ``time_a_ns``, ``time_b_ns``, ``delta_ns``: the largest
    change first. The parts add up to the time of the devices.
    """
    sides = [
        job.parts.group_by("part", "cause").agg(
            (pl.col("step_ns").sum() / max(job.parts["rank"].n_unique(), 1))
            .round().cast(pl.Int64).alias(f"time_{side}_ns")
        )
        for side, job in zip(_SIDES, (baseline, candidate), strict=True)
    ]  # fmt: skip
    paired = sides[0].join(
        sides[1], on=["part", "cause"], how="full", coalesce=True, nulls_equal=True
    )
    times = pl.col("time_a_ns", "time_b_ns").fill_null(0)
    return (
        paired.with_columns(times)
        .with_columns((pl.col("time_b_ns") - pl.col("time_a_ns")).alias("delta_ns"))
        .sort(
            pl.col("delta_ns").abs(), "part", "cause", descending=[True, False, False],
            nulls_last=True,
        )
    )  # fmt: skip
