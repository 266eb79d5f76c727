"""Replay of a training job: how long its steps take if operations take other times.

All data-parallel ranks and all steps run the same operations in the same order. So the graph of
what waits for what is that of one step of one replica of the model, and its replay is one pass over
that graph with replicas, steps and scenarios as axes of arrays. :mod:`traceana.whatif.replay` walks
a node for each event instead, and follows the launches of each process.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.columns.nesting import Ints
from traceana.timeline.operations import placed

_AT_ONCE: Final = 1 << 23
"""Numbers in the arrays of the scenarios that are replayed together: 64 MiB."""


LATE_START: Final = "late start"
"""The type of the first place: how much later than the first rank each begins the step."""
Block = tuple[slice, slice] | tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Replicas and steps, as an index into arrays by replica and step."""
_ALL: Final[Block] = (slice(None), slice(None))


class JobSteps(msgspec.Struct, frozen=True):
    """The steps of a job: a graph of operations, and their times by replica and step.

    ``places`` has a row for each operation of the graph, in an order in which each follows what it
    waits for: ``name`` (its type), ``stage``, ``micro_batch``, ``is_transfer``. An operation begins
    when the places ``before`` it are over. Those of one meeting begin together, when the last of
    them could; the replicas of each block in ``across`` together. ``time`` is the time of each
    operation without the wait for other ranks: a row for each place, then an axis of replicas and
    one of steps. ``ranks`` is the rank of each place and replica; ``dp_ranks`` and ``numbers`` are
    of the replicas and the steps, ``recorded`` is the time of each step as recorded.

    Without ``patterns`` the recorded time differs from the replay by launch delays. With them host
    time is an operation, too, and the first place is how much later than the first rank each rank
    begins the step; a step is as long as that of its slowest rank. ``places`` then has the
    ``segment`` between two waits, and steps of one pattern have the same segments.
    """

    places: pl.DataFrame
    before: list[Ints]
    meetings: list[Ints]
    across: list[list[Block]]
    ranks: Ints
    dp_ranks: Ints
    numbers: Ints
    time: Ints
    recorded: Ints
    patterns: Ints | None = None

    def typical_times(self, *keys: str) -> Ints:
        """Return the typical time of each operation: that of its type over all ranks and steps.

        It is the mean of work and the median of transfers, which have outliers. With ``keys`` work
        has the mean of its type and of these: ``stage``, ``rank``, ``step``. Types of different
        segments and patterns are different.
        """
        of_type, of_transfer = ["name"], ["name"]
        if self.patterns is not None:
            of_type = ["name", "segment", "pattern"]
            # A rank outside the process group has no transfer.
            of_transfer = [*of_type, "takes_part"]
        typical = (
            pl.when("is_transfer")
            .then(pl.col("time").median().over(of_transfer))
            .otherwise(pl.col("time").mean().over(*of_type, *keys))
        )
        values = self.rows().select(typical.round().cast(pl.Int64)).to_series().to_numpy()
        return values.reshape(self.time.shape)

    def rows(self) -> pl.DataFrame:
        """Return a row for each operation, in the order of ``time``: the columns of ``places``,
        ``dp_rank``, ``rank``, ``step`` and ``time``; with patterns ``pattern`` and
        ``takes_part``."""
        shape = self.time.shape
        place, replica, step = (axis.ravel() for axis in np.indices(shape))
        rows = self.places[place].with_columns(
            pl.Series("dp_rank", self.dp_ranks[replica]),
            pl.Series("rank", np.broadcast_to(self.ranks[:, :, None], shape).ravel()),
            pl.Series("step", self.numbers[step]),
            pl.Series("time", self.time.ravel()),
        )
        if self.patterns is None:
            return rows
        pattern = pl.Series("pattern", self.patterns[step])
        return rows.with_columns(pattern, (pl.col("time") > 0).alias("takes_part"))


def job_steps(operations: pl.DataFrame) -> JobSteps | None:
    """Return the steps of a job; None where no step has the operations of the others, or they wait
    for each other in a circle.

    ``operations`` has ``rank`` and the columns of :data:`traceana.timeline.operations.OPERATIONS`.
    Steps without some of the operations that most steps have are left out.
    """
    if operations.is_empty():
        return None
    graph = placed(operations)
    places = graph.template.height
    replicas = operations["dp_rank"].unique().sort()
    whole = graph.rows.group_by("step").len().filter(len=places * len(replicas))
    steps = whole["step"].sort()
    order = _in_order(places, graph.edges, graph.meetings)
    if steps.is_empty() or order is None:
        return None
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    before: list[list[int]] = [[] for _ in order]
    for source, target in graph.edges.iter_rows():
        before[position[target]].append(position[source])
    in_steps = graph.rows.filter(pl.col("step").is_in(steps.implode()))
    dense = in_steps.sort("place", "dp_rank", "step")
    start, duration, rank = (
        dense[name].cast(pl.Int64).to_numpy().reshape(places, len(replicas), len(steps))[order]
        for name in ("start_ns", "time_ns", "rank")
    )
    end = start + duration
    meetings = [np.sort(position[meeting]) for meeting in graph.meetings]
    time = duration.copy()
    for together, of_all in zip(meetings, graph.across, strict=True):
        begun = start[together].max(axis=(0, 1) if of_all else 0)
        # Clocks of ranks differ: a transfer can end before the other rank has begun it.
        time[together] = np.maximum(end[together] - begun, 0)
    return JobSteps(
        graph.template[order].select(
            *("name", "stage", "micro_batch"),
            pl.col("collective").is_not_null().alias("is_transfer"),
        ),
        [np.array(sorted(set(sources)), dtype=np.int64) for sources in before],
        meetings,
        [[_ALL] if of_all else [] for of_all in graph.across],
        rank[:, :, 0],
        replicas.cast(pl.Int64).to_numpy(),
        steps.to_numpy(),
        time,
        end.max(axis=(0, 1)) - start.min(axis=(0, 1)),
    )


def _in_order(places: int, edges: pl.DataFrame, meetings: list[Ints]) -> Ints | None:
    """Return the places in an order in which each follows what it waits for, and what those of its
    meeting wait for; None where places wait for each other in a circle."""
    node = np.arange(places)
    for meeting in meetings:
        node[meeting] = meeting[0]
    members: dict[int, list[int]] = {}
    for place, number in enumerate(node.tolist()):
        members.setdefault(number, []).append(place)
    waiting = dict.fromkeys(members, 0)
    after: dict[int, list[int]] = {}
    for source, target in edges.iter_rows():
        after.setdefault(int(node[source]), []).append(int(node[target]))
        waiting[int(node[target])] += 1
    ready = [number for number in members if not waiting[number]]
    order: list[int] = []
    for number in ready:
        order += members[number]
        for target in after.get(number, ()):
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return np.array(order, dtype=np.int64) if len(order) == places else None


def step_times(job: JobSteps, scenarios: Iterable[Ints]) -> Ints:
    """Return the time of each step (columns) in each scenario: the times of all operations.

    Operations begin as soon as what they wait for is over.
    """
    each = max(_AT_ONCE // max(job.time.size, 1), 1)
    waiting = iter(scenarios)
    times = [np.zeros((0, len(job.numbers)), dtype=np.int64)]
    while batch := list(islice(waiting, each)):
        times.append(_replayed(job, np.stack(batch, axis=-1)))
    return np.concatenate(times)


def _replayed(job: JobSteps, time: Ints) -> Ints:
    """Return the step times of scenarios, the last axis of ``time``: scenario, step."""
    ended = np.zeros_like(time)
    meeting_of = {int(place): number for number, of in enumerate(job.meetings) for place in of}
    arrived: dict[int, int] = {}
    begun = np.zeros_like(time)
    for place, before in enumerate(job.before):
        if len(before):
            begun[place] = ended[before].max(axis=0)
        number = meeting_of.get(place)
        if number is None:
            ended[place] = begun[place] + time[place]
            continue
        places = job.meetings[number]
        arrived[number] = arrived.get(number, 0) + 1
        if arrived[number] == len(places):
            together = begun[places].max(axis=0)
            for block in job.across[number]:
                together[block] = together[block].max(axis=0, keepdims=True)
            ended[places] = together + time[places]
    of_ranks = ended.max(axis=0)
    if job.patterns is not None:
        of_ranks -= ended[0]
    length: Ints = of_ranks.max(axis=0)
    return length.T
