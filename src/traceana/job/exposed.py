"""Exposed communication of each rank by cause: waits by class, and transfers.

Only evidence in the trace decides: the description of the process group, sends and receives, sizes
of all-to-alls, the passes of a step, annotations of FSDP. A wait without such evidence is
unclassified.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import polars as pl

from traceana.analyze.collective_ranks import BETWEEN_TWO
from traceana.job.parallelism import kind_of
from traceana.table import NUMBER, SHARE, STEP, TEXT, TIME, Column, completed, conformed

WARM_UP, STEADY, DRAIN = "bubble: warm-up", "bubble: steady", "bubble: drain"
EXPERTS, UNCLASSIFIED = "expert imbalance", "unclassified wait"
PREFETCH, TRANSFER = "late prefetch", "transfer"
WAITS: Final = (WARM_UP, STEADY, DRAIN, EXPERTS, UNCLASSIFIED)
"""Classes of waits: they add up to the step less the own time."""
CLASSES: Final = (*WAITS, PREFETCH, TRANSFER)

EXPOSED: Final = (
    Column("rank", NUMBER, "the rank"),
    Column(
        "class",
        TEXT,
        "`bubble: warm-up`, `bubble: steady`, `bubble: drain` (waits of a pipeline before the "
        "first backward pass of the rank, between, and after its last forward pass), `expert "
        "imbalance` (waits in all-to-alls of groups of kind EP with unequal sizes), `unclassified "
        "wait`, `late prefetch` (an all-gather of FSDP that could have begun earlier: the links "
        "were idle before), `transfer`",
    ),
    Column(
        "time_ns",
        TIME,
        "exposed time in the steps compared. The classes of waits add up to `wall_ns` less "
        "`own_ns` of section `steps`, all classes to the exposed communication",
    ),
    Column("step_ns", TIME, "its mean per step", scale=STEP),
    Column(
        "share",
        SHARE,
        "of the time of these steps",
        value=pl.when(pl.col("wall_ns") > 0).then(pl.col("time_ns") / pl.col("wall_ns")),
    ),
)
"""The columns of :func:`exposed_by_class`."""
_AT: Final = ("rank", "step")


def exposed_by_class(
    times: pl.DataFrame,
    steps: pl.DataFrame,
    each: pl.DataFrame,
    stages: pl.DataFrame,
    sharded: Collection[int],
) -> pl.DataFrame:
    """Return the exposed communication of each rank by class, in the columns :data:`EXPOSED`.

    ``times`` are of :func:`traceana.job.stragglers.own_times`, ``steps`` the steps compared.
    ``each`` are the matched collectives with the columns of a summary's table, ``description`` and
    ``unused_ns``, the time without any collective before it begins on the rank. ``stages`` has the
    ``stage`` of each rank of a pipeline, ``sharded`` are the ranks with annotations of FSDP.
    """
    totals = times.join(
        steps.select(*_AT, "exposed_communication_ns", "first_backward_ns", "last_forward_ns",
                     "last_backward_ns"),
        on=_AT,
    ).select(
        *_AT, "wall_ns", "first_backward_ns", "last_forward_ns", "last_backward_ns",
        (pl.col("wall_ns") - pl.col("own_ns")).alias("waiting_ns"),
        (pl.col("exposed_communication_ns") - pl.col("wall_ns") + pl.col("own_ns"))
        .alias("moving_ns"),
    )  # fmt: skip
    rows = _classified(totals, each, stages, sharded)
    waits = _within(rows, "waited_ns", "waiting_ns")
    gathers = rows.filter("is_late").with_columns(pl.lit(PREFETCH).alias("class"))
    late = _within(gathers, "late_ns", "moving_ns")
    parts = [
        waits,
        _rest(totals, waits, "waiting_ns", UNCLASSIFIED),
        late,
        _rest(totals, late, "moving_ns", TRANSFER),
    ]
    of_ranks = totals.group_by("rank").agg(pl.col("wall_ns").sum(), pl.len().alias("steps"))
    frame = (
        pl.concat(parts)
        .group_by("rank", "class")
        .agg(pl.col("time_ns").sum())
        .filter(pl.col("time_ns") > 0)
        .join(of_ranks, on="rank")
        .with_columns((pl.col("time_ns") / pl.col("steps")).round().alias("step_ns"))
        .sort("rank", pl.col("class").cast(pl.Enum(CLASSES)))
    )
    return conformed(completed(frame, EXPOSED), EXPOSED)


def _classified(
    totals: pl.DataFrame, each: pl.DataFrame, stages: pl.DataFrame, sharded: Collection[int]
) -> pl.DataFrame:
    """Return the matched collectives of the steps in ``totals`` with their ``class``, the exposed
    wait ``waited_ns``, and of late all-gathers (``is_late``) the time that an earlier launch had
    hidden (``late_ns``); ordered by rank, step and time."""
    described = each["description"].cast(pl.String).unique().to_list()
    kinds = {text: kind_of(text) for text in described if text is not None}
    stage_of = dict(stages.drop_nulls("stage").select("rank", "stage").iter_rows())
    kind = pl.col("description").cast(pl.String).replace_strict(kinds, default=None)
    stage = pl.col("rank").replace_strict(stage_of, default=None, return_dtype=pl.Int64)
    ends = pl.col("start_ns") + pl.col("time_ns")
    size = pl.col("size_bytes")
    unequal = (size.null_count() == 0) & (size.n_unique() > 1)
    rows = (
        each.with_columns(
            kind.cast(pl.String).alias("kind"),
            stage.alias("stage"),
            unequal.over("occurrence").alias("is_unequal"),
        )
        # Of several ranks that arrive last, one.
        .with_columns(
            pl.col("stage").filter("last").first().over("occurrence").alias("last_stage"),
            pl.col("step").alias("launched_in"),
            pl.col("ends_in").alias("step"),
        )
        .join(totals, on=_AT)
        .with_columns(pl.min_horizontal("wait_ns", "exposed_ns").fill_null(0).alias("waited_ns"))
        .sort("rank", "step", "start_ns", "piece")
    )
    # Clocks of passes and of messages differ a little, so the begin of the wait counts.
    begins = ends - pl.col("exposed_ns")
    phase = (
        pl.when(begins < pl.col("first_backward_ns")).then(pl.lit(WARM_UP))
        .when(begins > pl.col("last_forward_ns")).then(pl.lit(DRAIN))
        .when(pl.all_horizontal(pl.col("first_backward_ns", "last_forward_ns").is_not_null()))
        .then(pl.lit(STEADY)).otherwise(pl.lit(UNCLASSIFIED))
    )  # fmt: skip
    # The ranks of other stages are still in their last backward passes.
    is_drain = (pl.col("last_stage") != pl.col("stage")) & (
        pl.col("start_ns") > pl.col("last_backward_ns")
    )
    is_experts = (pl.col("kind") == "EP") & (pl.col("collective") == "all_to_all")
    is_fsdp = pl.col("description").cast(pl.String).str.contains("(?i)fsdp").fill_null(value=False)
    is_fsdp |= pl.col("rank").is_in(list(sharded)) & (pl.col("kind").fill_null("DP") == "DP")
    return rows.with_columns(
        pl.when((pl.col("collective") == BETWEEN_TWO) & (pl.col("kind") == "PP"))
        .then(phase)
        .when(is_experts & pl.col("is_unequal"))
        .then(pl.lit(EXPERTS))
        .when(is_drain)
        .then(pl.lit(DRAIN))
        .otherwise(pl.lit(UNCLASSIFIED))
        .alias("class"),
        (is_fsdp & (pl.col("collective") == "all_gather")).fill_null(value=False).alias("is_late"),
        pl.min_horizontal(pl.col("exposed_ns") - pl.col("waited_ns"), "unused_ns")
        .fill_null(0)
        .alias("late_ns"),
    )


def _within(rows: pl.DataFrame, time: str, most: str) -> pl.DataFrame:
    """Return ``rank``, ``step``, ``class`` and ``time_ns`` of ``rows``, in their order at most
    ``most`` in a step."""
    reached = pl.min_horizontal(pl.col(time).cum_sum().over(_AT), most)
    before = pl.col("reached").shift(1).over(_AT).fill_null(0)
    return rows.with_columns(reached.alias("reached")).select(
        *_AT, "class", (pl.col("reached") - before).alias("time_ns")
    )


def _rest(totals: pl.DataFrame, parts: pl.DataFrame, whole: str, name: str) -> pl.DataFrame:
    """Return the rest of the ``whole`` of each step as of the class ``name``."""
    summed = parts.group_by(_AT).agg(pl.col("time_ns").sum().alias("parts"))
    return totals.join(summed, on=_AT, how="left").select(
        *_AT,
        pl.lit(name).alias("class"),
        (pl.col(whole) - pl.col("parts").fill_null(0)).alias("time_ns"),
    )
