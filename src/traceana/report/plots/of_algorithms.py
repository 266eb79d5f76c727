"""Pictures of convolution algorithms: lines by batch, and bars by layer."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.report import words
from traceana.report.plots.picture import Axis, Line, Panel, Picture
from traceana.report.plots.summed import summed
from traceana.report.plots.units import bytes_axis, flops_axis, time_axis
from traceana.study.convolutions.sources import DIRECTIONS
from traceana.study.model import Study

_CALLED: Final = {
    "fprop": "forward",
    "dgrad": "data gradient",
    "wgrad": "weight gradient",
    None: "either direction",
}
_BATCH: Final = Axis("batch (images)", log=2)


def by_batch(study: Study) -> Picture:
    """Return time and workspace of each algorithm by batch, a column a direction, axes logarithmic.

    An algorithm that ran on some of the layers only says so. Of traces that tell no batch the times
    are bars.
    """
    frame = study.result.frame.filter(pl.col("batch").is_not_null())
    if frame.is_empty():
        return _without_batch(study)
    several = frame["run"].n_unique() > 1
    time, time_unit = time_axis("time", frame["time_ns"], log=10)
    held = frame.filter(pl.col("workspace_bytes") > 0)
    size, size_unit = bytes_axis("workspace", held["workspace_bytes"], log=10)
    times, sizes = [], []
    for direction, own in _by_direction(frame):
        title = _CALLED.get(direction, str(direction))
        times.append(Panel(title, _BATCH, time, _lines(own, "time_ns", time_unit, several)))
        own = own.filter(pl.col("workspace_bytes") > 0)
        lines = _lines(own, "workspace_bytes", size_unit, several)
        sizes.append(Panel(f"{title}: workspace", _BATCH, size, lines))
    panels = times if held.is_empty() else [*times, *sizes]
    return Picture(study.title, study.on, panels, min(3, len(times)), share="row")


def _without_batch(study: Study) -> Picture:
    frame = study.result.frame.with_columns(
        pl.col("algorithm").fill_null("unknown").alias("layer"), pl.col("run").alias("_s")
    )
    rows = frame["layer"].unique(maintain_order=True).to_list()
    panels = _timed(frame, rows, [words.part(row) for row in rows])
    return Picture("Time of convolution algorithms", study.on, panels, 3, share="all")


def by_layer(study: Study) -> Picture:
    """Return time by direction and operations forward of each layer, at the largest batch."""
    whole = study.result.frame
    batch = whole["batch"].max()
    frame = whole if batch is None else whole.filter(pl.col("batch") == batch)
    several = frame["run"].n_unique() > 1
    known = frame["algorithm"].drop_nulls().unique()
    called = pl.col("algorithm").replace({name: words.part(name) for name in known})
    frame = frame.with_columns(
        pl.when(pl.lit(not several))
        .then(called)
        .when(pl.col("algorithm") == "unknown")
        .then("run")
        .otherwise(pl.format("{}, {}", "run", called))
        .alias("_s")
    )
    rows = frame["layer"].unique(maintain_order=True).to_list()
    panels = _timed(frame, rows, rows)
    forward = frame.filter(
        pl.col("direction").is_in(["fprop", "forward"]), pl.col("status") == "ok"
    )
    if forward["executed_flops"].is_not_null().any():
        axis, unit = flops_axis("operations", forward["executed_flops"])
        bars = summed(forward, "_s", "layer", rows, "executed_flops", unit)
        panels.append(Panel("forward: operations executed", axis, rows=rows, bars=bars))
    title = study.title if batch is None else f"{study.title}, batch {batch!s}"
    return Picture(title, study.on, panels, min(2, len(panels)), share="all")


def _timed(frame: pl.DataFrame, rows: list[str], names: list[str]) -> list[Panel]:
    """Return bars of the times of ``rows``, which are called ``names``: a panel a direction."""
    time, unit = time_axis("time", frame["time_ns"])
    return [
        Panel(
            _CALLED.get(direction, str(direction)),
            time,
            rows=names,
            bars=summed(own, "_s", "layer", rows, "time_ns", unit),
        )
        for direction, own in _by_direction(frame)
    ]


def _by_direction(frame: pl.DataFrame) -> list[tuple[str | None, pl.DataFrame]]:
    found = frame.partition_by("direction", as_dict=True, maintain_order=True)
    known = [(one, found.pop((one,))) for one in DIRECTIONS if (one,) in found]
    return [*known, *((one, rows) for (one,), rows in found.items())]


def _lines(frame: pl.DataFrame, column: str, unit: int, several: bool) -> list[Line]:
    lines = []
    for (run, algorithm), own in frame.group_by("run", "algorithm", maintain_order=True):
        rows = own.drop_nulls(column).sort("batch")
        label = words.part(str(algorithm or "unknown"))
        label = f"{run}, {label}" if several else label
        if (own["layers"] < own["of_layers"]).any():
            label += " (not on all layers)"
        lines.append(Line(label, rows["batch"].to_list(), (rows[column] / unit).to_list()))
    return lines
