"""Collectives matched across ranks: waits, the last to arrive, and the offsets of the clocks.

A collective ends on all ranks at about the same time, because none can end before the last one has
arrived. So its shortest duration is that of the rank that arrived last, and the other ranks waited
for as long as theirs is longer. Neither needs a common clock.
"""

from __future__ import annotations

from typing import Final

import msgspec
import polars as pl

_KEYS: Final = ("collective", "message_bytes", "group_size")
_UNEVEN: Final = ("all_to_all",)
_BETWEEN_TWO: Final = "send_recv"
_OCCURRENCE: Final = ("step", *_KEYS, "nth")
_AHEAD: Final = pl.col("end_ns") - pl.col("end_ns").median().over(_OCCURRENCE)
"""How much later a collective ends by the rank's clock than by the median one."""
_NORMAL: Final = 1.4826
"""Standard deviation over median absolute deviation, of normal errors."""
_OF_MEDIAN: Final = 1.2533
"""Standard error of a median over that of a mean, of normal errors: sqrt(pi / 2)."""
_SPREADS: Final = 3
_TOGETHER_NS: Final = 1_000_000
"""Ends that are this near are of one collective, however short: clocks drift within a capture."""
_RESOLUTION_NS: Final = 1_000
"""Kineto rounds times to microseconds in many versions."""


class Matched(msgspec.Struct, frozen=True):
    """The collectives of a job.

    ``each`` has one row per rank and matched collective: ``rank``, the keys (``step``,
    ``collective``, ``message_bytes``, ``group_size``, ``nth`` in its step), ``end_ns`` (by the
    rank's own clock), ``time_ns``, ``wait_ns`` (the duration less the shortest of the collective),
    ``last`` (arrived last) and ``delay_ns`` (of the rank that arrived last: how much later it
    arrived than the rank before it; else 0). ``count`` is the number of collectives on the rank
    with most, ``matched`` the number of those that were matched across all ranks.
    """

    each: pl.DataFrame
    count: int
    matched: int


def match(collectives: pl.DataFrame, ranks: int, world: int) -> Matched:
    """Return the collectives of all ``ranks`` that can be matched.

    ``collectives`` has ``rank``, ``epoch_ns`` and the columns of a summary's table. Collectives of
    the group of the whole ``world`` (or of an unknown one) with one name and message size are
    matched in the order of their step, in steps in which all ranks have as many of them. ``ranks``
    is the number of those that were read, which may be some of the world. Pairs that do not end at
    about one time, by clocks compared by all of them, are left out. The sizes of an
    all-to-all may differ from rank to rank: it is matched by its order alone, and
    ``message_bytes`` is null. Sends and receives are between two ranks, and never matched.
    """
    # A float holds nanoseconds since the first epoch, not since 1970.
    epoch = (pl.col("epoch_ns") - pl.col("epoch_ns").min()).fill_null(0)
    kind = pl.col("collective")
    sized = pl.when(kind.is_in(_UNEVEN).not_()).then("message_bytes").otherwise(None)
    each = collectives.with_columns(sized.alias("message_bytes")).with_columns(
        pl.int_range(pl.len()).over("rank", "step", *_KEYS).alias("nth"),
        (epoch + pl.col("start_ns") + pl.col("time_ns")).alias("end_ns"),
    )
    counts = each.group_by("rank").len()
    most = int(counts["len"].max() or 0)  # type: ignore[arg-type]
    of_all = each.filter(kind.ne_missing(_BETWEEN_TWO))
    whole = of_all.filter((pl.col("group_size") == world) | pl.col("group_size").is_null())
    alike = whole.with_columns(pl.len().over("rank", "step", *_KEYS).alias("of_rank"))
    on_all = (pl.col("rank").n_unique() == ranks) & (pl.col("of_rank").n_unique() == 1)
    comparable = on_all.over("step", *_KEYS) & (ranks > 1)
    shortest = pl.col("time_ns").min().over(_OCCURRENCE)
    found = (
        _ending_together(alike.filter(comparable))
        .sort(*_OCCURRENCE, "rank", nulls_last=True)
        .with_columns((pl.col("time_ns") - shortest).alias("wait_ns"))
        .with_columns(
            (pl.col("wait_ns") == 0).alias("last"),
            # The second shortest duration is that of the rank that arrived before the last.
            pl.col("wait_ns").bottom_k(2).max().over(_OCCURRENCE).alias("second"),
        )
        .with_columns(pl.when("last").then("second").otherwise(0).alias("delay_ns"))
        .select("rank", *_OCCURRENCE, "end_ns", "time_ns", "wait_ns", "last", "delay_ns")
    )
    return Matched(found, most, found.height // max(ranks, 1))


def _ending_together(paired: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives of ``paired`` that end on all ranks at about one time.

    Others are paired wrongly: some are not in the trace of a rank, or belong to several groups.
    Clocks are compared by the ends of those with equal sizes, if there are any.
    """
    sized = pl.col("message_bytes").is_not_null()
    ends = paired.with_columns(_AHEAD.alias("ahead"))
    sure = ends.filter(sized) if ends.select(sized.any()).item() else ends
    clocks = sure.group_by("rank").agg(pl.col("ahead").median().alias("clock"))
    apart = (pl.col("ahead") - pl.col("clock")).abs().max().over(_OCCURRENCE)
    shortest = pl.col("time_ns").min().over(_OCCURRENCE)
    return (
        ends.join(clocks, on="rank", maintain_order="left")
        .filter(apart <= pl.max_horizontal(shortest, pl.lit(_TOGETHER_NS)))
        .drop("ahead", "clock")
    )


def offsets(matched: Matched) -> pl.DataFrame:
    """Return how far each rank's clock is ahead, by the ends of the matched collectives.

    Columns: ``rank``, ``clock_offset_ns`` (the median over the collectives of the rank's end less
    the median end of all ranks) and ``clock_uncertainty_ns``: three standard errors of that median
    by the median absolute deviation of the ends, and a microsecond for their resolution. A drift
    within the capture widens it.
    """
    ends = matched.each.with_columns(_AHEAD.alias("ahead"))
    ahead = pl.col("ahead")
    spread = (ahead - ahead.median()).abs().median()
    error = _SPREADS * _NORMAL * _OF_MEDIAN * spread / pl.len().sqrt()
    return (
        ends.group_by("rank")
        .agg(
            ahead.median().round().cast(pl.Int64).alias("clock_offset_ns"),
            (error + _RESOLUTION_NS).ceil().cast(pl.Int64).alias("clock_uncertainty_ns"),
        )
        .sort("rank")
    )
