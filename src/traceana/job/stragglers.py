"""Stragglers: ranks that the others wait for, step after step, and what they spend the time on.

The own time of a rank in a step is the step's wall time less its exposed waits in matched
collectives. In a job without a straggler each rank has the longest own time of all equally often.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from traceana.settings import STRAGGLER_CAUSE, STRAGGLER_CHANCE, STRAGGLER_SHARE
from traceana.table import (
    COUNT,
    FLAG,
    NUMBER,
    PROBABILITY,
    SHARE,
    TEXT,
    TIME,
    Column,
    aggregated,
    completed,
    conformed,
)

_RANK: Final = Column("rank", NUMBER, "the rank")
EXCESS: Final = (
    Column(
        "excess_ns",
        TIME,
        "median over the steps of the rank's own time less that of the median rank",
        pl.col("excess").median().round(),
    ),
    Column(
        "excess_share",
        SHARE,
        "`excess_ns` over the median own time",
        value=pl.when(pl.col("typical") > 0).then(pl.col("excess_ns") / pl.col("typical")),
        title="own time vs median",
        signed=True,
    ),
    Column(
        "longest",
        COUNT,
        "steps in which the rank had the longest own time of all",
        pl.col("is_longest").sum(),
    ),
    Column(
        "p",
        PROBABILITY,
        "probability that one of the ranks has it as often by chance: the tail of the binomial "
        "distribution with probability 1 / ranks, times the number of ranks; in fewer steps than "
        "that needs, of its mean excess by chance, by Student's t",
    ),
    Column(
        "straggler",
        FLAG,
        "whether `excess_share` is above the setting `straggler_share`, `p` below "
        "`straggler_chance`, and there are several ranks",
    ),
)
"""A rank's own time, without waits, against the median rank's."""
STRAGGLERS: Final = (
    _RANK,
    Column("own_ns", TIME, "mean own time over the steps", pl.col("own_ns").mean().round()),
    *EXCESS[:3],
    Column("steps", COUNT, "steps that are compared", pl.len()),
    *EXCESS[3:],
    Column(
        "cause",
        TEXT,
        "the cause of a straggler, in words; null where nothing explains half of its excess",
    ),
)
STEPS: Final = (
    _RANK,
    Column("step", NUMBER, "number of the step"),
    Column("wall_ns", TIME, "wall time of the step"),
    Column("wait_ns", TIME, "waits in matched collectives"),
    Column("own_ns", TIME, "own time: `wall_ns` less the exposed part of the waits"),
    Column("excess_ns", TIME, "own time less that of the median rank in the step"),
    Column("excess_share", SHARE, "that over the own time of the median rank", signed=True),
)


def comparable(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of ``steps`` by which ranks are compared: the measured steps that all of the
    ranks compared have.

    ``steps`` has ``rank`` and the columns of a summary's table. Ranks with few steps, for example
    of a truncated trace, are left out where that leaves more rows: ranks are added in order of
    their number of steps, as long as the number of ranks times their common steps grows.
    """
    measured = steps.filter(~pl.col("warm_up"))
    having = (
        measured.group_by("rank")
        .agg(pl.col("step").unique())
        .sort(pl.col("step").list.len(), "rank", descending=[True, False])
    )
    common: set[int] = set()
    most = compared = 0
    numbers: set[int] = set()
    for number, (_, steps_of_rank) in enumerate(having.iter_rows(), 1):
        common = common.intersection(steps_of_rank) if number > 1 else set(steps_of_rank)
        if number * len(common) >= most:
            most, compared, numbers = number * len(common), number, common
    ranks = having["rank"].head(compared).to_list()
    return measured.filter(pl.col("rank").is_in(ranks), pl.col("step").is_in(list(numbers)))


def own_times(steps: pl.DataFrame, each: pl.DataFrame) -> pl.DataFrame:
    """Return ``rank``, ``step``, ``wall_ns``, ``wait_ns``, ``own_ns`` of ``steps``.

    ``steps`` are from :func:`comparable`, ``each`` is the table of the collectives that are matched
    across their ranks (:class:`traceana.analyze.collective_ranks.Matched`).
    """
    waits = each.group_by("rank", "step").agg(pl.col("wait_ns").sum())
    return (
        steps.join(waits, on=["rank", "step"], how="left")
        .with_columns(pl.col("wait_ns").fill_null(0))
        # What other work overlaps takes nothing of the step.
        .with_columns(pl.min_horizontal("wait_ns", "exposed_communication_ns").alias("exposed"))
        .select("rank", "step", "wall_ns", "wait_ns", own_ns=pl.col("wall_ns") - pl.col("exposed"))
        .sort("rank", "step")
    )


def arrivals(each: pl.DataFrame, steps: pl.Series) -> pl.DataFrame:
    """Return ``rank``, ``count`` of its collectives, in how many of them it arrived last
    (``last_count``), and the mean wait of another rank for it, added up (``others_wait_ns``).

    ``each`` is the table of the matched collectives. Without ``steps`` all count, else only theirs.
    """
    others = pl.col("wait_ns").sum().over("occurrence") / (pl.len().over("occurrence") - 1)
    return (
        each.filter(pl.col("step").is_in(steps.implode()) | steps.is_empty())
        .with_columns(others.alias("others"))
        .group_by("rank")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("last").sum().cast(pl.Int64).alias("last_count"),
            pl.col("others").filter("last").sum().round().cast(pl.Int64).alias("others_wait_ns"),
        )
        .sort("others_wait_ns", "rank", descending=[True, False])
    )


def stragglers(times: pl.DataFrame) -> pl.DataFrame:
    """Return one row per rank, the longest own time first.

    The columns are :data:`STRAGGLERS`, without causes.
    """
    ranks = times["rank"].n_unique()
    middle = pl.col("own_ns").median().over("step")
    of_all = times.with_columns(
        (pl.col("own_ns") - middle).alias("excess"),
        (pl.col("own_ns") == pl.col("own_ns").max().over("step")).alias("is_longest"),
        middle.alias("middle"),
    )
    typical = of_all.group_by("rank").agg(pl.col("middle").median().alias("typical"))
    rows = aggregated(of_all, ["rank"], STRAGGLERS).join(typical, on="rank")
    # scipy.stats takes three times as long to import.
    from scipy.special import bdtrc

    means = of_all.group_by("rank").agg(
        pl.col("excess").mean().alias("mean"), pl.col("excess").std().alias("deviation")
    )
    rows = rows.join(means, on="rank")
    few = ranks > 1 and times["step"].n_unique() < steps_needed(ranks)
    chances = [
        min(1.0, ranks * (chance_of_mean(mean, deviation, steps) if few else by_count))
        for steps, longest, mean, deviation in rows.select(
            "steps", "longest", "mean", "deviation"
        ).iter_rows()
        for by_count in [float(bdtrc(longest - 1, steps, 1 / ranks))]
    ]
    rows = completed(rows.with_columns(pl.Series("p", chances, dtype=pl.Float64)), STRAGGLERS)
    slow = (pl.col("excess_share") > STRAGGLER_SHARE) & (pl.col("p") < STRAGGLER_CHANCE)
    rows = rows.with_columns(straggler=(slow & (ranks > 1)).fill_null(value=False))
    return conformed(rows, STRAGGLERS).sort("excess_ns", "rank", descending=[True, False])


FEWEST_STEPS: Final = 3
"""Steps for a test of their mean: two differ little too often."""


def chance_of_mean(mean: float, deviation: float | None, steps: int) -> float:
    """Return the probability that so many steps have at least this mean by chance, by Student's t.

    ``deviation`` is their standard deviation. 1 with fewer than :data:`FEWEST_STEPS`. In 2,000 jobs
    each of 2, 4 and 8 ranks, 3 to 7 steps and normal, lognormal or heavy-tailed times, independent
    from step to step, a straggler was claimed in 1.1 % at most; where neighbouring steps correlate
    by 0.5, in up to 8 %.
    """
    from scipy.special import stdtr

    if steps < FEWEST_STEPS or not mean > 0:
        return 1.0
    # Times are whole nanoseconds: none is known better.
    error = max(deviation or 0.0, 1e-9 * mean) / float(steps) ** 0.5
    return float(stdtr(steps - 1, -mean / error))


def steps_needed(ranks: int) -> int:
    """Return how many steps in a row a rank has to take longest to be a straggler: the chance of
    it, times the number of ``ranks``, is below ``STRAGGLER_CHANCE``."""
    return next(n for n in range(1, 1000) if float(ranks) ** (1 - n) < STRAGGLER_CHANCE)


def by_step(times: pl.DataFrame) -> pl.DataFrame:
    """Return ``times``, the result of :func:`own_times`, in the columns :data:`STEPS`."""
    middle = pl.col("own_ns").median().over("step")
    excess = pl.col("own_ns") - middle
    rows = times.with_columns(
        excess.round().alias("excess_ns"),
        pl.when(middle > 0).then(excess / middle).alias("excess_share"),
    )
    return conformed(rows, STEPS)


def in_runs(numbers: pl.Series, most: int, name: str) -> pl.DataFrame:
    """Return the distinct ``numbers`` in at most ``most`` runs of equally many.

    The columns are that of ``numbers``, ``first_<name>`` and ``last_<name>`` of its run.
    """
    distinct = numbers.unique().sort()
    each = -(-len(distinct) // most) or 1
    number = pl.col(numbers.name)
    run = pl.int_range(pl.len()) // each
    return distinct.to_frame().with_columns(
        number.min().over(run).alias(f"first_{name}"), number.max().over(run).alias(f"last_{name}")
    )


RANKS: Final = ("first_rank", "last_rank")
RUN: Final = ("first_step", "last_step")


def heat(steps: pl.DataFrame, most_ranks: int, most_steps: int) -> pl.DataFrame:
    """Return the rows of :func:`by_step` by runs of consecutive ranks and of consecutive steps.

    The columns are :data:`RANKS`, :data:`RUN`, the largest ``excess_share``, and the ``rank`` that
    has it: a slow rank is not lost among those beside it.
    """
    return (
        steps.join(in_runs(steps["rank"], most_ranks, "rank"), on="rank")
        .join(in_runs(steps["step"], most_steps, "step"), on="step")
        .sort("excess_share", "rank", descending=[True, False], nulls_last=True)
        .group_by(*RANKS, *RUN)
        .agg(pl.col("excess_share", "rank").first())
        .sort(*RANKS, *RUN)
    )


def cause(rank: int, spent: pl.DataFrame, kernels: pl.DataFrame, excess_ns: float) -> str:
    """Return why ``rank`` takes longer, in words; empty where nothing explains half of it.

    ``spent`` has ``rank``, ``what`` and ``step_ns`` (a mean per step): the time of each rank by
    ``compute`` and the causes of idle time. ``kernels`` has ``rank``, ``name``, ``calls`` and
    ``time_ns`` of the computing kernels. ``excess_ns`` is the rank's excess in a step.
    """
    typical = spent.filter(pl.col("rank") != rank).group_by("what").agg(pl.col("step_ns").median())
    of_rank = spent.filter(pl.col("rank") == rank)
    more = of_rank.join(typical, on="what", how="full", suffix="_typical", coalesce=True).select(
        "what", (pl.col("step_ns").fill_null(0) - pl.col("step_ns_typical").fill_null(0)).alias("d")
    )
    largest = more.sort("d", "what", descending=[True, False]).head(1)
    if largest.is_empty() or excess_ns <= 0 or largest["d"].item() < STRAGGLER_CAUSE * excess_ns:
        return ""
    what = largest["what"].item()
    if what != COMPUTE:
        return f"idle: {what}"
    others = (
        kernels.filter(pl.col("rank") != rank)
        .group_by("name")
        .agg(pl.col("calls").median(), pl.col("time_ns").median())
    )
    both = kernels.filter(pl.col("rank") == rank).join(
        others, on="name", how="left", suffix="_typical"
    )
    alike = both.filter(pl.col("calls") == pl.col("calls_typical"))
    slower = int((alike["time_ns"] - alike["time_ns_typical"]).sum())
    whole = int((both["time_ns"] - both["time_ns_typical"].fill_null(0)).sum())
    if whole > 0 and slower >= STRAGGLER_CAUSE * whole:
        times = float(alike["time_ns"].sum()) / float(alike["time_ns_typical"].sum())
        return f"compute: kernels of equal number take {times:.2f} times as long"
    return "compute: other kernels, or more of them"


COMPUTE: Final = "compute"


def spent_per_step(
    compute: Mapping[int, int], idle: pl.DataFrame, steps: Mapping[int, int]
) -> pl.DataFrame:
    """Return what each rank spends time on, per step: ``rank``, ``what``, ``step_ns``.

    ``compute`` is its time in computing kernels, ``idle`` has ``rank``, ``cause`` and ``time_ns``,
    ``steps`` is the number of steps in its capture.
    """
    rows = [(rank, COMPUTE, time) for rank, time in compute.items()]
    rows += idle.select("rank", "cause", "time_ns").rows()
    schema = {"rank": pl.Int64, "what": pl.String, "time_ns": pl.Int64}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    number = pl.Series([steps.get(rank, 0) for rank in frame["rank"]], dtype=pl.Int64)
    return frame.with_columns(number=number).select(
        "rank",
        "what",
        pl.when(pl.col("number") > 0)
        .then(pl.col("time_ns") / pl.col("number"))
        .otherwise(pl.col("time_ns").cast(pl.Float64))
        .alias("step_ns"),
    )
