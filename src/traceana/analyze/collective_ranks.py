"""Collectives by rank: matched across ranks, how long each rank waited, and which was late.

A collective ends on all ranks at about the same time, because none can end before the last one has
arrived. So the rank that arrived last has the shortest duration. The other ranks waited for the
rest of theirs. Neither needs a common clock.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from traceana.analyze.communication import (
    COLLECTIVE,
    MESSAGE_BYTES,
    has_smaller_groups,
    message_size,
    with_messages,
)
from traceana.result import Result, sums
from traceana.settings import TOGETHER_NS
from traceana.table import COUNT, TIME, Column, aggregated, conformed
from traceana.timeline.work import DEVICE_COLUMNS
from traceana.trace import per_trace

if TYPE_CHECKING:
    from traceana.trace import Trace

_WAIT: Final = pl.col("wait")
_IS_MATCHED: Final = _WAIT.null_count() == 0
COLUMNS: Final = (
    COLLECTIVE,
    MESSAGE_BYTES,
    *DEVICE_COLUMNS,
    Column("count", COUNT, "number of collectives", pl.len(), title="calls"),
    Column("time_ns", TIME, "summed durations", pl.col("time_ns").sum()),
    Column(
        "wait_ns",
        TIME,
        "time in which it waited for the last rank: the duration less the shortest one of the same "
        "occurrence over the ranks, so that no clocks are compared; occurrences are matched within "
        "their process group, as by [ranks](ranks.md#collectives-across-ranks); null where one is "
        "not matched",
        pl.when(_IS_MATCHED).then(_WAIT.sum()),
    ),
    Column(
        "last_count",
        COUNT,
        "number of occurrences in which it arrived last: the shortest duration is its own",
        pl.when(_IS_MATCHED).then((_WAIT == 0).sum()),
    ),
    Column(
        "others_wait_ns",
        TIME,
        "waits of the other ranks in these occurrences, added up",
        pl.when(_IS_MATCHED).then(pl.col("of_all").filter(_WAIT == 0).sum()),
    ),
)
"""The columns of :func:`by_rank`."""
_KEYS: Final = ("collective", "message_bytes")
_PARTNER: Final = ("rank", "device")
_UNEVEN: Final = ("all_to_all",)
BETWEEN_TWO: Final = "send_recv"
BY_SEQUENCE: Final = "sequence number"
BY_ORDER: Final = "order"
BY_PAIR: Final = "order between two ranks"
GROUP: Final = ("group_name", "group_ranks", "group_size")
LINE: Final = ("group", "source", "destination")
"""Columns of the ranks whose clocks are compared: a process group, or two ranks that send and
receive."""
_PLACE: Final = ("by", *LINE, "collective", "alike_bytes", "alike_step", "alike_sequence")
AHEAD: Final = pl.col("end_ns") - pl.col("end_ns").median().over("occurrence")
"""How much later a collective ends by the rank's clock than by the median one."""


class Matched(msgspec.Struct, frozen=True):
    """The collectives of several ranks.

    ``each`` has one row per rank and matched collective: ``row`` (in the collectives that were
    given), ``rank``, ``occurrence`` (the collective's number), ``by`` (how it was matched),
    ``group`` (row in ``groups``), ``collective``, ``message_bytes`` (null of an all-to-all, whose
    sizes may differ), ``size_bytes`` (also of these), ``group_size``, ``step``, ``end_ns`` (by the
    rank's own clock), ``time_ns``, ``wait_ns`` (the duration less the shortest of the collective),
    ``last`` (arrived last) and ``delay_ns`` (of the rank that arrived last: how much later it
    arrived than the rank before it; else 0).

    ``groups`` has one row per process group: ``group_name``, ``group_ranks``, ``group_size``,
    ``group``, ``expected`` (ranks that are expected to have its collectives, 0 where that is not
    known), ``paired`` (collectives that all its ranks have) and ``together`` (paired collectives
    that end at about one time on all ranks). ``count`` is the number of collectives of all ranks,
    ``matched`` how many were matched.
    """

    each: pl.DataFrame
    groups: pl.DataFrame
    count: int
    matched: int


def collectives_of(trace: Trace) -> pl.DataFrame:
    """Return one row per collective of ``trace`` that carries a message, in order of time.

    ``message_bytes`` is the size as the NCCL tests define it, ``bytes`` and ``output_bytes`` are
    the rank's input and output, ``process_group`` is the row in that table, ``sends`` whether a
    send or receive sends, ``step`` the number of the step.
    """
    each = with_messages(trace).filter("carries")
    numbers = trace.tables.steps["number"]
    return (
        each.with_columns(numbers.gather(each["step"]).alias("number"))
        .sort("start", maintain_order=True)
        .select(
            *("rank", "device", "collective"),
            message_size().alias("message_bytes"),
            *("bytes", "output_bytes"),
            pl.col("ranks").alias("group_size"),
            "process_group",
            pl.col("collective_sequence").alias("sequence"),
            *("peer", "sends"),
            pl.col("number").alias("step"),
            pl.col("start").alias("start_ns"),
            pl.col("duration").alias("time_ns"),
        )
    )


def match(
    collectives: pl.DataFrame, read: Collection[int], world: int, *, smaller: bool = False
) -> Matched:
    """Return the collectives that can be matched across the ranks ``read``.

    ``collectives`` has ``rank``, ``epoch_ns``, ``group_name``, ``group_ranks`` (JSON text) and
    columns of :func:`collectives_of`, in order of time. A group has the same name and ranks
    everywhere. Where its ranks are not recorded, all of them must have been read. Collectives
    without a recorded group are matched if their size is ``world``, or unknown and the job has no
    ``smaller`` groups.

    - By their sequence number in the group, where it is recorded.
    - By their order among the collectives of one name and message size in a step, if every rank of
      the group has as many. Pairs that do not end at about one time, by clocks compared by all
      pairs of the group, are left out. The sizes of an all-to-all may differ from rank to rank: it
      is matched by its order alone.
    - Sends and receives by their order between two ranks. Their sequence numbers are not used:
      these count the rank's sends and receives with all others.
    """
    # A float holds nanoseconds since the first epoch, not since 1970.
    epoch = (pl.col("epoch_ns") - pl.col("epoch_ns").min()).fill_null(0)
    is_pair = pl.col("collective").eq_missing(BETWEEN_TWO)
    groups = _groups(collectives, frozenset(read), world, smaller=smaller)
    numbered = is_pair.not_() & pl.any_horizontal(pl.col("group_name", "group_ranks").is_not_null())
    numbered &= pl.col("sequence").is_not_null()
    rank, peer = pl.col("rank"), pl.col("peer").cast(pl.Int64)
    is_even = pl.col("collective").is_in(_UNEVEN).fill_null(value=False).not_()
    by_order = pl.col("by") != BY_SEQUENCE
    alike = (
        collectives.with_row_index("row")
        .join(groups, on=GROUP, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(
            (epoch + pl.col("start_ns") + pl.col("time_ns")).alias("end_ns"),
            pl.when(is_pair).then(pl.lit(BY_PAIR)).when(numbered).then(pl.lit(BY_SEQUENCE))
            .otherwise(pl.lit(BY_ORDER)).alias("by"),
            pl.when(is_pair).then(pl.when("sends").then(rank).otherwise(peer)).alias("source"),
            pl.when(is_pair).then(pl.when("sends").then(peer).otherwise(rank)).alias("destination"),
            pl.when(is_pair & (pl.col("expected") > 0)).then(2).otherwise("expected")
            .alias("expected"),
            pl.col("message_bytes").alias("size_bytes"),
            pl.when(is_even).then("message_bytes").alias("message_bytes"),
        )
        .filter(is_pair.not_() | pl.all_horizontal(pl.col("sends", "peer").is_not_null()))
        .with_columns(
            pl.when(by_order).then("message_bytes").alias("alike_bytes"),
            pl.when(by_order).then("step").alias("alike_step"),
            pl.when(by_order.not_()).then("sequence").alias("alike_sequence"),
        )
        .with_columns(
            pl.int_range(pl.len()).over("rank", *_PLACE).alias("nth"),
            pl.len().over("rank", *_PLACE).alias("of_rank"),
        )
    )  # fmt: skip
    on_all = pl.col("rank").n_unique() == pl.col("expected").first()
    on_all &= pl.col("of_rank").n_unique() == 1
    paired = alike.filter((pl.col("expected") > 1) & on_all.over(_PLACE))
    occurrences = paired.select(*_PLACE, "nth").unique(maintain_order=True)
    paired = _ending_together(
        paired.join(
            occurrences.with_row_index("occurrence"),
            on=(*_PLACE, "nth"), how="left", nulls_equal=True, maintain_order="left",
        )
    )  # fmt: skip
    first = paired.unique("occurrence", keep="any")
    counts = first.group_by("group").agg(
        pl.len().cast(pl.Int64).alias("paired"), pl.col("together").sum().cast(pl.Int64)
    )
    shortest = pl.col("time_ns").min().over("occurrence")
    matches = (
        paired.filter(pl.col("together") | ~by_order)
        .sort("occurrence", "rank")
        .with_columns((pl.col("time_ns") - shortest).alias("wait_ns"))
        .with_columns(
            (pl.col("wait_ns") == 0).alias("last"),
            # The second shortest duration is that of the rank that arrived before the last.
            pl.col("wait_ns").bottom_k(2).max().over("occurrence").alias("second"),
        )
        .with_columns(pl.when("last").then("second").otherwise(0).alias("delay_ns"))
        .select(
            *("row", "rank", "occurrence", "by", *LINE, "collective", "message_bytes"),
            *("size_bytes", "group_size", "step", "end_ns", "time_ns", "wait_ns", "last"),
            "delay_ns",
        )
    )
    groups = groups.join(counts, on="group", how="left", maintain_order="left").with_columns(
        pl.col("paired", "together").fill_null(0)
    )
    return Matched(matches, groups, collectives.height, matches.height)


def _groups(
    collectives: pl.DataFrame, read: frozenset[int], world: int, *, smaller: bool
) -> pl.DataFrame:
    """Return the distinct process groups, and how many ranks of each are ``expected`` to have its
    collectives; 0 where that is not known."""
    text = pl.col("group_name", "group_ranks").cast(pl.String)
    groups = (
        collectives.group_by(GROUP)
        .agg(pl.col("rank").unique())
        .sort(text, "group_size", nulls_last=True)
        .with_row_index("group")
    )
    expected = []
    for name, listed, size, having in groups.select(*GROUP, "rank").iter_rows():
        members = set(msgspec.json.decode(listed, type=list[int])) if listed else set()
        if members:
            # A rank outside has a number that is not its own.
            sound = len(members) == size and members.issuperset(having)
            expected.append(len(members & read) if sound else 0)
        elif size == world or (size is None and name is None and not smaller):
            expected.append(len(read))
        else:
            # Several groups may have one name; then more ranks than one has its collectives.
            expected.append(size if name is not None and len(having) == size else 0)
    return groups.select(
        *GROUP,
        pl.col("group").cast(pl.Int64),
        pl.Series("expected", expected, dtype=pl.Int64),
    )


def _ending_together(paired: pl.DataFrame) -> pl.DataFrame:
    """Return ``paired`` with ``together``: whether the collective ends on all ranks at about one
    time.

    Others may be paired wrongly: some are not in the trace of a rank, or belong to several groups.
    Clocks are compared by the ends of collectives with sequence numbers, else with sizes, else of
    all.
    """
    numbered = pl.col("by") == BY_SEQUENCE
    sized = pl.col("message_bytes").is_not_null()
    ends = paired.with_columns(AHEAD.alias("ahead"))
    kinds = ends.group_by(LINE).agg(
        numbered.any().alias("any_numbered"), sized.any().alias("any_sized")
    )
    clocks = (
        ends.join(kinds, on=LINE, how="left", nulls_equal=True)
        .filter(
            pl.when("any_numbered").then(numbered).when("any_sized").then(sized).otherwise(True)
        )
        .group_by("rank", *LINE)
        .agg(pl.col("ahead").median().alias("clock"))
    )
    apart = (pl.col("ahead") - pl.col("clock")).abs().max().over("occurrence")
    shortest = pl.col("time_ns").min().over("occurrence")
    near = apart <= pl.max_horizontal(shortest, pl.lit(TOGETHER_NS))
    return (
        ends.join(clocks, on=("rank", *LINE), how="left", nulls_equal=True, maintain_order="left")
        .with_columns(near.alias("together"))
        .drop("ahead", "clock")
    )


def matched_of(trace: Trace) -> tuple[pl.DataFrame, Matched | None]:
    """Return the collectives of the devices of ``trace``, as :func:`collectives_of` does, and
    those of them that are matched across its ranks; None with one device."""
    each = collectives_of(trace).drop_nulls("device")
    partners = each.select(_PARTNER).unique(maintain_order=True).with_row_index("partner")
    if partners.height < 2:
        return each, None
    of_ranks = partners["rank"].null_count() == 0 and partners["rank"].is_unique().all()
    groups = trace.tables.process_groups.with_row_index("process_group").select(
        "process_group", pl.col("name").alias("group_name"), pl.col("ranks").alias("group_ranks")
    )
    given = (
        each.join(groups, on="process_group", how="left", maintain_order="left")
        .join(partners, on=_PARTNER, how="left", nulls_equal=True, maintain_order="left")
        # Groups are of ranks, not of the devices of a process.
        .with_columns(
            pl.col("rank" if of_ranks else "partner").cast(pl.Int64).alias("rank"),
            *(pl.col(name) if of_ranks else pl.lit(None, pl.String).alias(name)
              for name in ("group_name", "group_ranks")),
            pl.lit(0, pl.Int64).alias("epoch_ns"),
        )
    )  # fmt: skip
    world = max(trace.meta.world_size or 0, partners.height) if of_ranks else partners.height
    read = given["rank"].unique().to_list()
    return each, match(given, read, world, smaller=has_smaller_groups(trace))


@per_trace
def by_rank(trace: Trace) -> Result:
    """Return one row per collective, message size, rank and device; empty with one device.

    The columns are :data:`COLUMNS`.
    """
    each, matched = matched_of(trace)
    if matched is None:
        return Result(conformed(each.clear(), COLUMNS), {}, (), COLUMNS)
    waits = matched.each.select("row", "occurrence", pl.col("wait_ns").alias("wait"))
    of_all = pl.when(_WAIT.is_not_null()).then(_WAIT.sum().over("occurrence")).alias("of_all")
    timed = each.with_row_index("row").join(waits, on="row", how="left", maintain_order="left")
    rows = aggregated(timed.with_columns(of_all), (*_KEYS, *_PARTNER), COLUMNS)
    time = pl.col("time_ns").sum().over(_KEYS)
    frame = rows.sort(time, *_KEYS, *_PARTNER, descending=[True, *[False] * 4], nulls_last=True)
    frame = conformed(frame, COLUMNS)
    unmatched = int(frame.filter(pl.col("wait_ns").is_null())["count"].sum())
    notes = ["wait: duration less the shortest of the occurrence over the ranks, which is the last"]
    if unmatched:
        notes.append(f"wait unknown: {unmatched:,} collectives, not matched across the ranks")
    summed = ("count", "time_ns", "wait_ns", "last_count", "others_wait_ns")
    return Result(frame, sums(frame, *summed), tuple(notes), COLUMNS)
