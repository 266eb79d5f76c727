"""The changes between two distributed jobs: rank by rank, and as a whole."""

from __future__ import annotations

from typing import Final

import msgspec
import polars as pl
from msgspec.structs import replace

from traceana.analyze.run_to_run import relative_spread
from traceana.comparison.columns import CHANGE, FIGURE, in_both
from traceana.comparison.verdicts import Criteria, Step, step_verdict
from traceana.job.ranks import Job
from traceana.settings import RUN_TO_RUN_HOST, RUN_TO_RUN_KERNELS, RUN_TO_RUN_PAGEABLE
from traceana.table import FLAG, NUMBER, PART, TEXT, TIME, Column, completed, conformed, laid_out

_STEP, _OWN = (pl.col(f"{name}_b_ns") - pl.col(f"{name}_a_ns") for name in ("step", "own"))
RANKS: Final = laid_out(
    (
        Column("rank", NUMBER, "the rank"),
        *in_both(
            Column("status", TEXT, "as in `ranks`"),
            Column("step_ns", TIME, "median wall time of its measured steps"),
        ),
        replace(
            FIGURE["relative"],
            meaning="`delta_ns` over `step_a_ns`",
            title="change",
            value=pl.when(pl.col("step_a_ns") > 0).then(_STEP / pl.col("step_a_ns")),
        ),
        *in_both(
            Column(
                "own_ns",
                TIME,
                "median of its own time: the step less exposed waits for other ranks",
                title="own time",
            )
        ),
        Column(
            "own_delta_ns",
            TIME,
            "change of the own time",
            value=_OWN,
            title="change of own time",
        ),
        *in_both(Column("wait_ns", TIME, "mean wait per measured step", title="waiting")),
        replace(CHANGE, value=_STEP, meaning="change of the median step"),
        *in_both(Column("straggler", FLAG, "as in `ranks`")),
    ),
    hidden="delta_ns straggler_a straggler_b",
    dropped="wait_a_ns wait_b_ns status_a status_b relative",
)
PARTS: Final = (
    Column("part", PART, "part of the ranks' time", title="time of the devices"),
    Column("cause", PART, "cause of idle time; else null", title="idle cause"),
    *in_both(Column("time_ns", TIME, "time per step of the capture and rank", title="")),
    replace(CHANGE, value=pl.col("time_b_ns") - pl.col("time_a_ns")),
)
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
    timed = not (a.is_empty() or b.is_empty())
    step = step_verdict([a], [b], criteria, spreads=spreads) if timed else None
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

    The columns are :data:`RANKS`.
    """
    sides = [
        _figures(job).rename(lambda name, side=side: _named(name, side))  # type: ignore[misc]
        for side, job in zip(_SIDES, (baseline, candidate), strict=True)
    ]
    paired = sides[0].join(sides[1], on="rank", how="full", coalesce=True)
    return conformed(completed(paired, RANKS), RANKS).sort(
        pl.col("own_delta_ns").abs(), "rank", descending=[True, False], nulls_last=True
    )


def _named(name: str, side: str) -> str:
    if name == "rank":
        return name
    return f"{name.removesuffix('_ns')}_{side}_ns" if name.endswith("_ns") else f"{name}_{side}"


def _figures(job: Job) -> pl.DataFrame:
    times = job.own.group_by("rank").agg(
        pl.col("own_ns").median().round().cast(pl.Int64),
        pl.col("wait_ns").mean().round().cast(pl.Int64),
    )
    return (
        job.rows.drop_nulls("rank")
        .select("rank", "status", pl.col("step_median_ns").alias("step_ns"), "straggler")
        .join(times, on="rank", how="left")
    )


def _parts(baseline: Job, candidate: Job) -> pl.DataFrame:
    """Return where the time of the ranks goes, per step of the capture and rank that was read.

    The columns are :data:`PARTS`, the largest change first. The parts add up to the time of the
    devices.
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
    return conformed(completed(paired.with_columns(times), PARTS), PARTS).sort(
        *(pl.col("delta_ns").abs(), "part", "cause"),
        descending=[True, False, False],
        nulls_last=True,
    )
