"""The picture of relative speed: a group of bars a network."""

from __future__ import annotations

import polars as pl

from traceana.report.plots.picture import Axis, Bars, Panel, Picture
from traceana.study.model import Study


def picture(study: Study) -> Picture:
    """Return the bars of ``study``; the dashed line is the reference."""
    frame = study.result.frame.filter(pl.col("network").is_not_null())
    named = frame.with_columns(
        pl.format("{}, batch {}, {}", "network", "batch", "place").alias("_row")
    )
    rows = named["_row"].unique(maintain_order=True).to_list()
    bars = [
        _bars(str(run), rows, own) for (run,), own in named.group_by("run", maintain_order=True)
    ]
    references = ", ".join(frame["reference"].drop_nulls().unique(maintain_order=True))
    axis = Axis(f"images a second, over those of {references}")
    return Picture(study.title, study.on, [Panel("", axis, rows=rows, bars=bars, mark=1.0)])


def _bars(run: str, rows: list[str], own: pl.DataFrame) -> Bars:
    found = {row: (speed, why) for row, speed, why in
             own.select("_row", "relative_speed", "status").iter_rows()}  # fmt: skip
    speeds = [found.get(row, (None, None))[0] for row in rows]
    notes = [why if why != "ok" else None for why in (found.get(row, (0, None))[1] for row in rows)]
    return Bars(run, speeds, notes)
