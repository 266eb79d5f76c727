"""Pictures of ``ranks``: where each rank's time went, and the own time of ranks step by step."""

from __future__ import annotations

from math import inf
from typing import Final

import polars as pl

from traceana.job.stragglers import heat
from traceana.report import numbers
from traceana.report.columns import Kind
from traceana.report.page import Axis, Chart, Marks
from traceana.report.pages.single_table import column

MOST_RANKS: Final = 24
"""Bars: those that differ most."""
MOST_LINES: Final = 5
_PIXELS: Final = 20
_MEDIAN: Final = "median rank"

_MOST_COLUMNS: Final = 100
"""Runs of steps in a heat map."""
_BANDS: Final = (("·", -inf), ("░", 0.02), ("▒", 0.05), ("▓", 0.1), ("█", 0.2))
"""Shade of a terminal -> least excess share."""
SHADES: Final = {
    "below 2 %": "·",
    **{f"from {round(100 * least)} %": shade for shade, least in _BANDS[1:]},
}
"""Band of excess shares -> its shade."""
_COLOURS: Final = ("#d5d9de", "#fdd49e", "#fc8d59", "#d7301f", "#7f0000")

_PARTS: Final = {
    "compute": pl.col("compute_ns"),
    "exposed collectives": pl.col("exposed_communication_ns"),
    "exposed copies": pl.col("exposed_copy_ns"),
    # Memsets, and work of the CPU.
    "other work": pl.col("busy_ns")
    - pl.col("compute_ns")
    - pl.col("exposed_communication_ns")
    - pl.col("exposed_copy_ns"),
    "idle": pl.col("idle_ns"),
}
"""Parts that add up to the capture of a rank."""


def pictures(rows: pl.DataFrame, own: pl.DataFrame) -> list[Chart]:
    """Return the pictures of the ranks ``rows``, with the ``own`` times of their steps."""
    return [*_parts(rows), *_heat(rows, own), *_steps(rows, own)]


def by_steps(
    rows: pl.DataFrame, own: pl.DataFrame, most_ranks: int, most_steps: int
) -> pl.DataFrame:
    """Return the cells of a heat map, ranks in the order of ``rows``: ``rank``, ``first`` and
    ``last`` step, ``excess_share`` and its ``band``; empty with less than two ranks or steps."""
    if own["step"].n_unique() < 2 or own["rank"].n_unique() < 2:
        return pl.DataFrame()
    ranks = rows.join(own.select("rank").unique(), on="rank", how="semi", maintain_order="left")
    shown = ranks.select("rank").head(most_ranks)
    cells = heat(own.join(shown, on="rank", how="semi"), most_steps)
    share = pl.col("excess_share").fill_null(0)
    names = [*SHADES]
    band = pl.lit(names[0])
    for name, (_, least) in zip(names[1:], _BANDS[1:], strict=True):
        band = pl.when(share >= least).then(pl.lit(name)).otherwise(band)
    return shown.join(cells, on="rank", how="left", maintain_order="left").with_columns(
        band.alias("band")
    )


def _heat(rows: pl.DataFrame, own: pl.DataFrame) -> list[Chart]:
    """Return the heat map of own times, rank by step."""
    cells = by_steps(rows, own, MOST_RANKS, _MOST_COLUMNS)
    if cells.is_empty():
        return []
    first, last = pl.col("first"), pl.col("last")
    frame = cells.with_columns(
        pl.format("rank {}", "rank").alias("rank"),
        pl.when(first == last)
        .then(first.cast(pl.String))
        .otherwise(pl.format("{} to {}", first, last))
        .alias("step"),
    ).with_columns(pl.format("{}, step {}", "rank", "step").alias("cell"))
    ranks, of = cells["rank"].n_unique(), own["rank"].n_unique()
    return [
        Chart(
            "Own time of each rank, step by step",
            f"Own time above that of the median rank in the step: {ranks} of "
            f"{numbers.counted(of, 'rank')}, those that differ most first.",
            Axis("step", Kind.TEXT),
            Axis("", Kind.TEXT),
            (
                Marks(
                    frame,
                    "cell",
                    "step",
                    "rank",
                    colour="band",
                    label="cell",
                    shown=(column("excess_share", "above the median rank"),),
                    colours=dict(zip(SHADES, _COLOURS, strict=True)),
                ),
            ),
            height=40 + _PIXELS * ranks,
        )
    ]


def _parts(rows: pl.DataFrame) -> list[Chart]:
    """Return a stacked bar a rank: its capture, by what its devices did."""
    read = rows.filter(pl.col("span_ns") > 0).head(MOST_RANKS)
    if read.is_empty():
        return []
    frame = pl.concat(
        read.select(
            pl.format("rank {}", "rank").alias("rank"),
            pl.lit(name).alias("what"),
            part.alias("time_ns"),
        )
        for name, part in _PARTS.items()
    ).filter(pl.col("time_ns") > 0)
    left_out = rows.filter(pl.col("span_ns") > 0).height - read.height
    summary = f"A bar for each of {numbers.counted(read.height, 'rank')}, those that differ first."
    return [
        Chart(
            "Time of each rank",
            f"{summary[:-1]}; {left_out} more in the table." if left_out else summary,
            Axis("time of the capture, summed over its devices", Kind.TIME),
            Axis("", Kind.TEXT),
            (
                Marks(
                    frame,
                    "bar",
                    "time_ns",
                    "rank",
                    colour="what",
                    label="rank",
                    shown=(column("time_ns"),),
                ),
            ),
            height=40 + _PIXELS * read.height,
        )
    ]


def _steps(rows: pl.DataFrame, own: pl.DataFrame) -> list[Chart]:
    """Return the own time by step: of the ranks that differ most, and the median of all."""
    if own["step"].n_unique() < 2 or own["rank"].n_unique() < 2:
        return []
    named = rows["rank"].drop_nulls().head(MOST_LINES)
    lines = [
        own.filter(pl.col("rank") == rank).select(
            "step", "own_ns", pl.lit(f"rank {rank}").alias("of")
        )
        for rank in named
    ]
    middle = own.group_by("step").agg(pl.col("own_ns").median().round().cast(pl.Int64))
    lines.append(middle.sort("step").with_columns(pl.lit(_MEDIAN).alias("of")))
    frame = pl.concat(lines)
    return [
        Chart(
            "Own time by step",
            f"Step time less exposed waits for other ranks: {len(named)} of "
            f"{numbers.counted(own['rank'].n_unique(), 'rank')}, those that differ most, and the "
            "median of all.",
            Axis("step", Kind.NUMBER, from_zero=False),
            Axis("own time", Kind.TIME, from_zero=False),
            (
                Marks(
                    frame,
                    "line",
                    "step",
                    "own_ns",
                    colour="of",
                    shown=(column("step"), column("own_ns", "own time")),
                ),
            ),
        )
    ]
