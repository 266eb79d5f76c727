"""Steps of a trace without step markers, from the period of its device work."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceana.columns.nesting import Ints
from traceana.settings import (
    FEWEST_PERIODS,
    LONGER_STRETCH,
    PERIOD_CANDIDATES,
    PERIOD_COVERAGE,
    PERIOD_SIMILARITY,
    SHORTEST_PERIOD,
)
from traceana.trace.schema import PERIOD, conform, empty

_FORWARD: Final = r"(?i)forward|fwd|fprop|_fw_|inference"
_BACKWARD: Final = r"(?i)backward|bwd|bprop|dgrad|wgrad|_bw_|_grad|grad_"
"""Words in the names of kernels that belong to one pass only."""
_KINDS: Final = ("kernel", "memcpy", "memset")


def periods(activities: pl.DataFrame, names: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the ``steps`` table of the training iterations that repeat in each process.

    It is empty without a period, and if the repeated kernels' names do not show both a forward and
    a backward pass, because then the blocks of one pass may repeat.

    ``activities`` have their calls. The sequence is the names and sizes of the work on the stream
    with most work of each process. The period is the shortest one that holds over the longest
    stretch of the sequence: the blocks of a network repeat too, but only up to the end of the
    iteration. The stretch must cover half of the sequence and three periods. An iteration starts
    after the longest pause of the launching thread, by the median over all iterations. Times are
    those of the launches, or of the work if its launch is not in the trace.
    """
    work = activities.filter(pl.col("kind").is_in(_KINDS))
    launched = calls["start"].gather(work["call"])
    work = work.select(
        "process",
        "rank",
        "start",
        pl.struct("device", "context", "stream").alias("stream"),
        pl.struct("name_id", "grid_x", "grid_y", "grid_z", "bytes").rank("dense").alias("symbol"),
        "name_id",
        pl.coalesce(launched, "start").alias("time"),
        pl.col("start").add(pl.col("duration")).alias("end"),
    )
    marked = (set(names["name"].str.contains(word).arg_true()) for word in (_FORWARD, _BACKWARD))
    passes = tuple(marked)
    tables = [
        _steps_of_process(part, passes)
        for part in work.partition_by("process", "rank", maintain_order=True)
    ]
    return pl.concat([empty("steps"), *(t for t in tables if t is not None)])


def _steps_of_process(work: pl.DataFrame, passes: tuple[set[int], ...]) -> pl.DataFrame | None:
    busiest = work["stream"].value_counts(sort=True).row(0)[0]
    stream = work.filter(pl.col("stream") == pl.lit(busiest, dtype=work["stream"].dtype)).sort(
        "start", maintain_order=True
    )
    symbol = stream["symbol"].to_numpy().astype(np.int64)
    # The stretch ``symbol[first:last]`` repeats with ``period``.
    period = first = last = 0
    for candidate in _candidate_periods(symbol):
        begin, end_of_stretch = _longest_stretch(symbol, candidate)
        if end_of_stretch - begin > LONGER_STRETCH * (last - first):
            period, first, last = candidate, begin, end_of_stretch
    if not period or last - first < max(PERIOD_COVERAGE * len(symbol), FEWEST_PERIODS * period):
        return None
    repeated = set(stream["name_id"][first : first + period])
    if not all(repeated & marked for marked in passes):
        return None
    time = np.maximum.accumulate(stream["time"].to_numpy())
    # An iteration starts after the longest pause of the period.
    pause = np.diff(time, prepend=time[:1])
    whole = (last - first) // period
    by_phase = pause[first : first + whole * period].reshape(whole, period)
    phase = int(np.argmax(np.median(by_phase, axis=0)))
    starts = np.arange(first + phase, last, period)
    # The end of the stretch may cut the last iteration.
    whole_iterations = starts[: len(starts) - 1] if starts[-1] + period > last else starts
    if len(whole_iterations) < FEWEST_PERIODS:
        return None
    end = np.where(
        whole_iterations + period < len(time),
        time[np.minimum(whole_iterations + period, len(time) - 1)],
        stream["end"][-1],
    )
    steps = pl.DataFrame(
        {
            "number": np.arange(len(whole_iterations)),
            "start": time[whole_iterations],
            "duration": end - time[whole_iterations],
            "process": work["process"][0],
            "source": PERIOD,
            "rank": work["rank"][0],
        }
    )
    return conform("steps", steps)


def _candidate_periods(symbol: Ints) -> list[int]:
    """Return the most frequent distances between equal activities, in ascending order.

    Rare activities repeat once per step, frequent ones once per block. Each symbol has one vote,
    for its most frequent distance.
    """
    order = np.argsort(symbol, kind="stable")
    same = symbol[order][1:] == symbol[order][:-1]
    distances = pl.DataFrame({"symbol": symbol[order][1:][same], "distance": np.diff(order)[same]})
    votes = (
        distances.group_by("symbol", "distance")
        .len()
        .sort("len", "distance", descending=[True, False])
        .unique("symbol", keep="first", maintain_order=True)
        .filter(pl.col("distance") >= SHORTEST_PERIOD)
        .group_by("distance")
        .len("votes")
        .sort("votes", "distance", descending=[True, False])
        .head(PERIOD_CANDIDATES)
    )
    return sorted(votes["distance"].to_list())


def _longest_stretch(symbol: Ints, period: int) -> tuple[int, int]:
    """Return the longest stretch in which each period is similar to the next."""
    repeats = symbol[period:] == symbol[:-period]
    if len(repeats) < period:
        return 0, 0
    total = np.concatenate([[0], np.cumsum(repeats)])
    similar = (total[period:] - total[:-period]) >= PERIOD_SIMILARITY * period
    edges = np.flatnonzero(np.diff(np.concatenate([[0], similar.astype(np.int8), [0]])))
    if not len(edges):
        return 0, 0
    begins, ends = edges[::2], edges[1::2]
    longest = int(np.argmax(ends - begins))
    # The last similar window spans one period, and the period after it belongs to the stretch.
    return int(begins[longest]), int(ends[longest]) - 1 + 2 * period
