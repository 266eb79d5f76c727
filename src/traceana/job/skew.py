"""Waiting and transfer in collectives, apart: how sure the part of waiting is.

By durations a rank waits as long as its collective is longer than the shortest one. By the starts
on a common clock it waits from its own start to the last one. Both agree where the collective ends
at one time on all ranks; where it does not, or clocks are compared too roughly, waiting and
transfer cannot be separated.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.analyze.collective_ranks import LINE, Matched
from traceana.job.clocks import within_groups
from traceana.table import SHARE, TEXT, Column

INCONCLUSIVE: Final = "inconclusive"
_FEWEST: Final = 3
"""Collectives of a group for a comparison of clocks."""
_WIDE: Final = 0.05
"""Width of an interval that is never inconclusive: a part of the time that matters little."""

_WIDTH: Final = pl.col("wait_share_high") - pl.col("wait_share_low")
WAIT_SHARES: Final = (
    Column(
        "wait_share",
        SHARE,
        "`wait_ns` over the time of the matched ones; the rest is transfer",
        value=pl.when(pl.col("wait_ns") + pl.col("transfer_ns") > 0).then(
            pl.col("wait_ns") / (pl.col("wait_ns") + pl.col("transfer_ns"))
        ),
    ),
    Column(
        "wait_share_low",
        SHARE,
        "lower end of its interval: the shorter of the waits by durations and by starts, less the "
        "uncertainty of the clocks; 0 with fewer than 3 matched ones, whose clocks have no spread",
        pl.col("wait_low_ns").sum() / pl.col("time_ns").sum(),
        title="from",
    ),
    Column(
        "wait_share_high",
        SHARE,
        "upper end: the longer one, and the uncertainty; with fewer than 3 matched ones 1",
        pl.col("wait_high_ns").sum() / pl.col("time_ns").sum(),
        title="to",
    ),
    Column(
        "wait_verdict",
        TEXT,
        "`inconclusive` where the interval is wider than the share, and than 5 % of the time: "
        "clocks or durations do not tell waiting from transfer; else null",
        value=pl.when(pl.max_horizontal("wait_share", pl.lit(_WIDE)) < _WIDTH).then(
            pl.lit(INCONCLUSIVE)
        ),
        title="verdict",
    ),
)
"""How much of the matched collectives is waiting."""


def wait_bounds(matched: Matched) -> pl.DataFrame:
    """Return the matched collectives with ``wait_low_ns`` and ``wait_high_ns``, the bounds of the
    wait of each rank; of all its time in a group with fewer than 3 of them.

    The uncertainty is that of the rank's clock within the process group, and the largest of the
    ranks'.
    """
    start = pl.col("end_ns") - pl.col("time_ns") - pl.col("ahead")
    by_starts = pl.col("start").max().over("occurrence") - pl.col("start")
    unsure = pl.col("error") + pl.col("error").max().over("occurrence")
    is_known = pl.col("count") >= _FEWEST
    low = pl.min_horizontal("wait_ns", "by_starts") - pl.col("unsure")
    high = pl.max_horizontal("wait_ns", "by_starts") + pl.col("unsure")
    return (
        matched.each.join(
            within_groups(matched), on=(*LINE, "rank"), how="left", nulls_equal=True,
            maintain_order="left",
        )
        .with_columns(start.alias("start"), unsure.alias("unsure"))
        .with_columns(by_starts.alias("by_starts"))
        .with_columns(
            pl.when(is_known).then(low.clip(lower_bound=0)).otherwise(0).alias("wait_low_ns"),
            pl.when(is_known)
            .then(pl.min_horizontal(high, "time_ns"))
            .otherwise("time_ns")
            .alias("wait_high_ns"),
        )
        .drop("start", "unsure", "by_starts", "ahead", "error", "count")
    )  # fmt: skip
