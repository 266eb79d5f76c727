"""Steps of a trace that marks none: the period in its sequence of device work."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceana.enrich.nesting import Ints
from traceana.settings import (
    FEWEST_PERIODS,
    LONGER_STRETCH,
    PERIOD_COVERAGE,
    PERIOD_SIMILARITY,
    SHORTEST_PERIOD,
)
from traceana.trace.schema import PERIOD, empty

_FORWARD: Final = r"(?i)forward|fwd|fprop|_fw_|inference"
_BACKWARD: Final = r"(?i)backward|bwd|bprop|dgrad|wgrad|_bw_|_grad|grad_"
"""Words in the names of kernels that are of one pass alone."""
_CANDIDATES: Final = 64
_KINDS: Final = ("kernel", "memcpy", "memset")


def periods(activities: pl.DataFrame, names: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the ``steps`` table of the training iterations that repeat in each process.

    Empty where none do, or where the names of the repeated kernels are not of both a forward
    and a backward pass: what repeats may then be the blocks of one pass.
    ``activities`` have their calls. Of each process the stream with most work is taken as a
    sequence of names and sizes. The period is the shortest of those that hold over the longest
    stretch of it: a network of like blocks repeats its blocks too, but only as far as the
    iteration's end. The stretch must cover half of the sequence and three periods. An iteration
    begins behind the longest pause of the launching thread, as the median of all iterations has it.
    Times are of the launches, or of the work itself where its launch is not in the trace.
    """
    work = activities.filter(pl.col("kind").is_in(_KINDS))
    if work.height < FEWEST_PERIODS * SHORTEST_PERIOD:
        return empty("steps")
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
        _of_process(part, passes)
        for part in work.partition_by("process", "rank", maintain_order=True)
    ]
    return pl.concat([empty("steps"), *(t for t in tables if t is not None)])


def _of_process(work: pl.DataFrame, passes: tuple[set[int], ...]) -> pl.DataFrame | None:
    busiest = work["stream"].value_counts(sort=True).row(0)[0]
    stream = work.filter(pl.col("stream") == pl.lit(busiest, dtype=work["stream"].dtype)).sort(
        "start", maintain_order=True
    )
    symbol = stream["symbol"].to_numpy().astype(np.int64)
    found = _period(symbol)
    if found is None:
        return None
    period, first, last = found
    repeated = set(stream["name_id"][first : first + period])
    if not all(repeated & marked for marked in passes):
        return None
    time = np.maximum.accumulate(stream["time"].to_numpy())
    cuts = _cuts(time, period, first, last)
    whole = cuts[: len(cuts) - 1] if cuts[-1] + period > last else cuts
    if len(whole) < FEWEST_PERIODS:
        return None
    end = np.where(
        whole + period < len(time),
        time[np.minimum(whole + period, len(time) - 1)],
        stream["end"][-1],
    )
    return pl.DataFrame(
        {
            "number": np.arange(len(whole)),
            "start": time[whole],
            "duration": end - time[whole],
            "process": work["process"][0],
            "source": PERIOD,
            "rank": work["rank"][0],
        },
        schema=empty("steps").schema,
    )


def _period(symbol: Ints) -> tuple[int, int, int] | None:
    """Return (period, first, last): the stretch ``symbol[first:last]`` repeats with the period."""
    best: tuple[int, int, int] | None = None
    for period in _candidates(symbol):
        first, last = _stretch(symbol, period)
        longest = 0 if best is None else best[2] - best[1]
        if last - first > LONGER_STRETCH * longest:
            best = (period, first, last)
    if best is None:
        return None
    needed = max(PERIOD_COVERAGE * len(symbol), FEWEST_PERIODS * best[0])
    return best if best[2] - best[1] >= needed else None


def _candidates(symbol: Ints) -> list[int]:
    """Return the distances between like activities that are most frequent, in rising order.

    Rare activities repeat with the step, frequent ones with its blocks: each symbol has one vote,
    for the distance that most of its neighbours have.
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
        .head(_CANDIDATES)
    )
    return sorted(votes["distance"].to_list())


def _stretch(symbol: Ints, period: int) -> tuple[int, int]:
    """Return the longest stretch in which each period is like the next."""
    alike = symbol[period:] == symbol[:-period]
    if len(alike) < period:
        return 0, 0
    total = np.concatenate([[0], np.cumsum(alike)])
    enough = (total[period:] - total[:-period]) >= PERIOD_SIMILARITY * period
    edges = np.flatnonzero(np.diff(np.concatenate([[0], enough.astype(np.int8), [0]])))
    if not len(edges):
        return 0, 0
    begins, ends = edges[::2], edges[1::2]
    longest = int(np.argmax(ends - begins))
    # The last window that holds spans one period, and is like the period behind it.
    return int(begins[longest]), int(ends[longest]) - 1 + 2 * period


def _cuts(time: Ints, period: int, first: int, last: int) -> Ints:
    """Return where the iterations of a stretch begin, at most one of them cut by its end."""
    pause = np.diff(time, prepend=time[:1])
    whole = (last - first) // period
    by_phase = pause[first : first + whole * period].reshape(whole, period)
    phase = int(np.argmax(np.median(by_phase, axis=0)))
    return np.arange(first + phase, last, period)
