"""The steps of a job whose recording has no table of operations, cut where its ranks wait.

A step is cut at the exposed collectives that are matched across their ranks. Between two of them a
rank runs its types of work in turn (:mod:`traceana.job.rank_operations`); in each it waits for the
last rank of the process group. So a rank that waits in several collectives waits several times in
the replay, too. Collectives that other work overlaps on all ranks delay no rank and cut nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import polars as pl

from traceana.columns.nesting import Ints
from traceana.job.rank_operations import TYPES, UNNAMED
from traceana.job.replay import LATE_START, Block, JobSteps, job_steps
from traceana.settings import TOGETHER_NS

_AT: Final = ("rank", "step")
_TIME: Final = pl.col("time_ns")


MOST_TIMES: Final = 1 << 22
"""Times in the array of a job: 32 MiB. Larger jobs are cut where most time is waited."""


class _Pattern(msgspec.Struct, frozen=True):
    """The collectives at which a step is cut: level, type and the positions of their ranks."""

    cuts: tuple[tuple[int, str, tuple[int, ...]], ...]


def steps_of_job(
    operations: pl.DataFrame, times: pl.DataFrame, each: pl.DataFrame, clocks: pl.DataFrame
) -> JobSteps | None:
    """Return the steps of a job, by its table of operations, else by its ranks' types of work.

    ``operations`` are those of all ranks (:func:`traceana.job.rank_operations.operations_of`, with
    ``rank``). ``times`` are the wall time and the waits of each rank in each step that is compared
    (:func:`traceana.job.stragglers.own_times`). ``each`` are the matched collectives
    (:class:`traceana.analyze.collective_ranks.Matched`) with ``piece`` and ``ends_in``, ``clocks``
    has how far each rank's clock is ahead. None where ranks lack steps of others, and for a single
    rank.
    """
    described = operations.drop_nulls("stage")
    if described.height:
        return job_steps(described)
    ranks, numbers = times["rank"].unique().sort(), times["step"].unique().sort()
    if len(ranks) < 2 or times.height != len(ranks) * len(numbers):
        return None
    compared = operations.join(times.select(_AT), on=_AT, how="semi")
    cuts, patterns, pattern_of_step = _levels(_cuts(compared, each, ranks, clocks), ranks, numbers)
    most = max(MOST_TIMES // (times.height * (len(TYPES) + 2)), 1)
    if any(level >= most for pattern in patterns for level, _, _ in pattern.cuts):
        cuts, patterns, pattern_of_step = _levels(_largest(cuts, most), ranks, numbers)
    last = max((level + 1 for pattern in patterns for level, _, _ in pattern.cuts), default=0)
    rows = _in_segments(compared, cuts, last)
    cuts = _with_transfers(cuts, rows)
    times_of_places = pl.concat(
        [
            _late_starts(cuts, patterns, pattern_of_step, ranks, numbers),
            rows.filter(~pl.col("is_cut")).select(*_AT, "segment", "name", "kind", "time_ns"),
            cuts.select(
                *_AT,
                pl.col("level").alias("segment"),
                "name",
                pl.lit(2, pl.Int8).alias("kind"),
                pl.col("transfer_ns").alias("time_ns"),
            ),
        ]
    )
    return _steps(times_of_places, times, patterns, pattern_of_step, ranks, numbers)


def _cuts(
    operations: pl.DataFrame, each: pl.DataFrame, ranks: pl.Series, clocks: pl.DataFrame
) -> pl.DataFrame:
    """Return a row for each rank of the collectives at which steps are cut, in order of time.

    Columns: ``rank``, ``step`` (in which it ends), ``occurrence``, ``name``, ``piece`` of the rank,
    ``exposed_ns`` and ``end_ns``, when it ends on all its ranks.
    """
    exposed = operations.filter(pl.col("collective").is_not_null()).select(
        *_AT, pl.col("sequence").alias("piece"), _TIME.alias("exposed_ns")
    )
    end = pl.col("end_ns") - pl.col("clock_offset_ns")
    together = end.median().over("occurrence").round().cast(pl.Int64)
    tolerance = pl.max_horizontal("clock_uncertainty_ns", pl.lit(TOGETHER_NS))
    of_all = (
        pl.col("rank").is_in(ranks.implode()).all()
        & pl.col("step").is_in(operations["step"].unique().implode()).all()
        & (pl.col("step").n_unique() == 1)
        & (pl.col("piece").null_count() == 0)
        & (pl.col("exposed_ns").max() > 0)
        # Those of different groups can be matched by their order, and end at different times.
        & ((end - pl.col("together_ns")).abs() <= tolerance).all()
    )
    return (
        each.select(
            *("rank", "occurrence", "piece", "end_ns"),
            pl.col("ends_in").alias("step"),
            pl.col("collective").fill_null(UNNAMED).alias("name"),
        )
        .join(exposed, on=[*_AT, "piece"], how="left")
        .join(clocks, on="rank", how="left")
        .with_columns(pl.col("exposed_ns").fill_null(0), together.alias("together_ns"))
        .filter(of_all.over("occurrence"))
        .select("rank", "step", "occurrence", "name", "piece", "exposed_ns", end_ns="together_ns")
        .sort("step", "end_ns", "occurrence", "rank")
        # Collectives of two streams can end in another order on another rank.
        .with_columns(pl.col("piece").cum_max().over(_AT))
    )


def _levels(
    cuts: pl.DataFrame, ranks: pl.Series, numbers: pl.Series
) -> tuple[pl.DataFrame, list[_Pattern], Ints]:
    """Return ``cuts`` with ``level``, the distinct patterns of steps, and the one of each step.

    The level of a collective is one more than the largest of those before it on its ranks, so that
    collectives of one level have different ranks.
    """
    position = {rank: number for number, rank in enumerate(ranks.to_list())}
    occurrences = cuts.group_by("step", "occurrence", maintain_order=True).agg(
        pl.col("name").first(), pl.col("rank")
    )
    reached = np.zeros(len(ranks), dtype=np.int64)
    levels: list[int] = []
    cuts_of_step: dict[int, list[tuple[int, str, tuple[int, ...]]]] = {
        number: [] for number in numbers.to_list()
    }
    before = None
    for step, name, members in occurrences.select("step", "name", "rank").iter_rows():
        if step != before:
            reached[:] = 0
            before = step
        places = [position[rank] for rank in members]
        level = int(reached[places].max())
        reached[places] = level + 1
        levels.append(level)
        cuts_of_step[step].append((level, name, tuple(places)))
    patterns = [_Pattern(tuple(sorted(of_step))) for of_step in cuts_of_step.values()]
    distinct = list(dict.fromkeys(pattern.cuts for pattern in patterns))
    number = {cuts: place for place, cuts in enumerate(distinct)}
    leveled = cuts.join(
        occurrences.select("occurrence", pl.Series("level", levels, dtype=pl.Int64)),
        on="occurrence",
        how="left",
        maintain_order="left",
    )
    of_steps = np.array([number[pattern.cuts] for pattern in patterns], dtype=np.int64)
    return leveled, [_Pattern(cuts) for cuts in distinct], of_steps


def _largest(cuts: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return the ``cuts`` of the ``most`` levels in which ranks wait longest."""
    wait = pl.col("exposed_ns") - pl.col("exposed_ns").min().over("occurrence")
    waits = cuts.with_columns(wait.alias("wait")).group_by("level").agg(pl.col("wait").sum())
    largest = waits.sort("wait", "level", descending=[True, False]).head(most)
    return cuts.join(largest.select("level"), on="level", how="semi", maintain_order="left").drop(
        "level"
    )


def _in_segments(operations: pl.DataFrame, cuts: pl.DataFrame, last: int) -> pl.DataFrame:
    """Return the time of ``operations`` by rank, step, ``segment`` and ``name``.

    The segment is the level of the cut that ends it, after all cuts ``last``. ``kind`` is 0 for
    work, 1 for exposed transfers; ``is_cut``: the exposed part of the collective that cuts.
    """
    ending = cuts.select(*_AT, "piece", "level").unique([*_AT, "piece"], keep="first")
    return (
        operations.select(*_AT, "sequence", "name", "collective", "time_ns")
        .sort("sequence")
        .join_asof(
            ending.sort("piece"),
            left_on="sequence",
            right_on="piece",
            by=list(_AT),
            strategy="forward",
            check_sortedness=False,
        )
        .with_columns(
            pl.col("level").fill_null(last).alias("segment"),
            pl.col("collective").is_not_null().cast(pl.Int8).alias("kind"),
            (pl.col("collective").is_not_null() & (pl.col("sequence") == pl.col("piece")))
            .fill_null(value=False)
            .alias("is_cut"),
        )
        .group_by(*_AT, "segment", "name", "kind", "is_cut")
        .agg(_TIME.sum())
    )


def _with_transfers(cuts: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return ``cuts`` with ``transfer_ns``, the time from the arrival of the last rank to the end,
    and ``start_ns``, when the rank begins its step.

    A rank arrives when its own work since the collective before is over.
    """
    own = rows.filter(~pl.col("is_cut")).group_by(*_AT, pl.col("segment").alias("level"))
    before = pl.col("end_ns").shift(1).over(_AT)
    arrives = (before + pl.col("own_ns")).fill_null(pl.col("end_ns") - pl.col("exposed_ns"))
    transfer = pl.col("end_ns") - pl.col("arrival_ns").max().over("occurrence")
    begins = (pl.col("arrival_ns") - pl.col("own_ns")).first().over(_AT)
    return (
        cuts.join(
            own.agg(_TIME.sum().alias("own_ns")),
            on=[*_AT, "level"],
            how="left",
            maintain_order="left",
        )
        .with_columns(pl.col("own_ns").fill_null(0))
        .with_columns(arrives.alias("arrival_ns"))
        # The ends on the ranks differ a little.
        .with_columns(transfer.clip(lower_bound=0).alias("transfer_ns"), begins.alias("start_ns"))
    )


def _late_starts(
    cuts: pl.DataFrame,
    patterns: list[_Pattern],
    pattern_of_step: Ints,
    ranks: pl.Series,
    numbers: pl.Series,
) -> pl.DataFrame:
    """Return how much later each rank begins a step than the first of the ranks that meet.

    Ranks that no chain of process groups connects have no common clock.
    """
    connected = [_connected(pattern, len(ranks)) for pattern in patterns]
    parts = pl.concat(
        pl.DataFrame({"rank": ranks, "step": number, "part": connected[pattern]})
        for number, pattern in zip(numbers.to_list(), pattern_of_step.tolist(), strict=True)
    )
    first = pl.col("start_ns").min().over("step", "part")
    return (
        cuts.unique(_AT, keep="first")
        .select(*_AT, "start_ns")
        .join(parts, on=_AT)
        .select(
            *_AT,
            pl.lit(-1, pl.Int64).alias("segment"),
            pl.lit(LATE_START).alias("name"),
            pl.lit(0, pl.Int8).alias("kind"),
            (pl.col("start_ns") - first).alias("time_ns"),
        )
    )


def _connected(pattern: _Pattern, ranks: int) -> Ints:
    """Return a number for each rank, equal for those that the collectives connect."""
    part = np.arange(ranks)
    for _, _, members in pattern.cuts:
        joined = np.isin(part, part[list(members)])
        part[joined] = part[joined].min()
    return part


def _steps(
    rows: pl.DataFrame,
    times: pl.DataFrame,
    patterns: list[_Pattern],
    pattern_of_step: Ints,
    ranks: pl.Series,
    numbers: pl.Series,
) -> JobSteps:
    """Return the steps whose operations are ``rows``, in places by segment, kind and type."""
    order = {name: number for number, name in enumerate(TYPES)}
    always = pl.DataFrame(
        {"segment": [-1] + [0] * len(TYPES), "name": [LATE_START, *TYPES]}
    ).with_columns(pl.lit(0, pl.Int8).alias("kind"))
    cuts = {(level, name) for pattern in patterns for level, name, _ in pattern.cuts}
    met = pl.DataFrame(
        sorted(cuts), schema={"segment": pl.Int64, "name": pl.String}, orient="row"
    ).with_columns(pl.lit(2, pl.Int8).alias("kind"))
    key = ["segment", "kind", "name"]
    places = (
        pl.concat([always.select(key), met.select(key), rows.filter(_TIME > 0).select(key)])
        .unique()
        .sort("segment", "kind", pl.col("name").replace_strict(order, default=len(order)), "name")
        .with_row_index("place")
    )
    time = np.zeros((places.height, len(ranks), len(numbers)), dtype=np.int64)
    placed = rows.join(places, on=key)
    time[
        placed["place"].to_numpy(),
        np.searchsorted(ranks.to_numpy(), placed["rank"].to_numpy()),
        np.searchsorted(numbers.to_numpy(), placed["step"].to_numpy()),
    ] = placed["time_ns"].to_numpy()
    place_of = {(level, name): place for place, level, kind, name in places.rows() if kind == 2}
    transfers = places.filter(pl.col("kind") > 0)["place"].to_list()
    across: dict[int, list[Block]] = {place: [] for place in transfers}
    for number, pattern in enumerate(patterns):
        steps = np.flatnonzero(pattern_of_step == number)
        for level, name, members in pattern.cuts:
            across[place_of[level, name]].append(np.ix_(np.array(members), steps))  # type: ignore[arg-type]
    return JobSteps(
        places.select(
            "name",
            pl.lit(0).alias("stage"),
            pl.lit(None, pl.Int32).alias("micro_batch"),
            (pl.col("kind") > 0).alias("is_transfer"),
            "segment",
        ),
        [np.array([place - 1] if place else [], dtype=np.int64) for place in range(places.height)],
        [np.array([place], dtype=np.int64) for place in transfers],
        list(across.values()),
        np.tile(ranks.to_numpy(), (places.height, 1)),
        ranks.to_numpy(),
        numbers.to_numpy(),
        time,
        times.group_by("step").agg(pl.col("wall_ns").max()).sort("step")["wall_ns"].to_numpy(),
        pattern_of_step,
    )
