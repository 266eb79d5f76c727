"""Clocks of the ranks of a job, compared by the ends of collectives: they are at about one time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Final, TypeAlias

import polars as pl

from traceana.analyze.collective_ranks import AHEAD, LINE, Matched
from traceana.settings import CLOCK_ERRORS
from traceana.table import TIME, Column, names_of
from traceana.timeline.steps import MEDIAN_ERROR

CLOCKS: Final = (
    Column(
        "clock_offset_ns",
        TIME,
        "how far its clock is ahead of the median rank's, by the ends of collectives",
        title="clock ahead",
        scale="clocks",
    ),
    Column("clock_uncertainty_ns", TIME, "uncertainty of that", scale="clocks"),
)

_RESOLUTION_NS: Final = 1_000
"""Kineto rounds times to microseconds in many versions."""

_Clocks: TypeAlias = Mapping[int, tuple[float, float]]
"""Rank -> (offset, uncertainty)."""


def within_groups(matched: Matched) -> pl.DataFrame:
    """Return how far each rank's clock is ahead of the median one of each process group.

    The columns identify the group; ``rank``; ``ahead``: the median over the collectives of the
    rank's end less the median end, ``error``: three standard errors of that median, by the median
    absolute deviation, and a microsecond for the resolution, and the number of them (``count``).
    """
    ahead = pl.col("ahead")
    spread = (ahead - ahead.median()).abs().median()
    error = CLOCK_ERRORS * MEDIAN_ERROR * spread / pl.len().sqrt()
    return (
        matched.each.with_columns(AHEAD.alias("ahead"))
        .group_by(*LINE, "rank")
        .agg(ahead.median(), (error + _RESOLUTION_NS).alias("error"), pl.len().alias("count"))
        .sort(*LINE, "rank", nulls_last=True)
    )


def offsets(matched: Matched) -> pl.DataFrame:
    """Return how far each rank's clock is ahead, by the ends of the matched collectives.

    The columns are ``rank`` and :data:`CLOCKS`. Within a process group the
    offset is the median over its collectives of the rank's end less the median end of the group's
    ranks; its uncertainty three standard errors of that median, by the median absolute deviation,
    and a microsecond for the resolution. Ranks that are in two groups carry offsets from one to the
    other, the largest group first, and uncertainties add up. The offset is that from the median of
    all ranks that groups connect; of several groups its uncertainty is added, too. A drift
    within the capture widens the uncertainty.
    """
    within = within_groups(matched)
    groups = [
        {rank: (offset, unsure) for rank, offset, unsure in rows.iter_rows()}
        for part in within.partition_by(*LINE, maintain_order=True)
        for rows in [part.select("rank", "ahead", "error")]
    ]
    rows = [
        (rank, round(offset), math.ceil(unsure))
        for connected in _connected(sorted(groups, key=len, reverse=True))
        for rank, (offset, unsure) in connected.items()
    ]
    names = ("rank", *names_of(CLOCKS))
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64), orient="row").sort("rank")


def _connected(groups: list[_Clocks]) -> Iterator[_Clocks]:
    """Yield the clocks of all ranks that groups connect, for each set of such ranks."""
    of_rank: dict[int, list[int]] = {}
    for number, group in enumerate(groups):
        for rank in group:
            of_rank.setdefault(rank, []).append(number)
    done: set[int] = set()
    for first in range(len(groups)):
        if first in done:
            continue
        clocks: dict[int, tuple[float, float]] = {}
        waiting = [first]
        done.add(first)
        several = False
        while waiting:
            # In the order in which they are reached: few steps from the first, which is largest.
            reached: set[int] = set()
            for group in (groups[number] for number in waiting):
                shared = [rank for rank in group if rank in clocks]
                shift = median([clocks[rank][0] - group[rank][0] for rank in shared] or [0.0])
                unsure = min((clocks[rank][1] + group[rank][1] for rank in shared), default=0.0)
                for rank in [rank for rank in group if rank not in clocks]:
                    offset, error = group[rank]
                    clocks[rank] = (offset + shift, error + unsure)
                    reached.update(of_rank[rank])
            waiting = sorted(reached - done)
            done.update(waiting)
            several |= bool(waiting)
        middle = median(offset for offset, _ in clocks.values())
        # The median of a single group is what its offsets are from; that of several is as
        # uncertain as they are.
        also = median(unsure for _, unsure in clocks.values()) if several else 0.0
        yield {rank: (offset - middle, unsure + also) for rank, (offset, unsure) in clocks.items()}
