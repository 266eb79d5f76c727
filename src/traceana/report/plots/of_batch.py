"""The picture of time per image by batch: a panel a network, both axes logarithmic."""

from __future__ import annotations

import polars as pl

from traceana.report.plots.picture import Axis, Failure, Line, Panel, Picture
from traceana.report.plots.units import time_axis
from traceana.study.model import Study

_UNNAMED = "network not recorded"


def picture(study: Study) -> Picture:
    """Return the lines of ``study``, a point a batch, with the quartiles of the steps behind them.

    A run that failed is a cross at its batch.
    """
    frame = study.result.frame.filter(pl.col("batch").is_not_null())
    y, unit = time_axis("time per image", frame["image_ns"], log=10)
    panels = [
        Panel(
            str(network or _UNNAMED),
            Axis("batch (images a step)", log=2),
            y,
            lines=[_line(str(run), rows, unit) for (run,), rows in _by_run(of_network)],
        )
        for (network,), of_network in frame.group_by("network", maintain_order=True)
    ]
    on = [*study.on, "shaded: the middle half of the steps"] if _spread(frame) else [*study.on]
    return Picture(f"{study.title}, training", on, panels)


def _by_run(frame: pl.DataFrame) -> list[tuple[tuple[object, ...], pl.DataFrame]]:
    return list(frame.group_by("run", maintain_order=True))


def _spread(frame: pl.DataFrame) -> bool:
    return bool(frame["low_ns"].is_not_null().any())


def _line(run: str, rows: pl.DataFrame, unit: int) -> Line:
    ran = rows.filter(pl.col("image_ns").is_not_null()).sort("batch")
    failed = rows.filter(pl.col("status") != "ok").select("batch", "status")
    low, high = (
        None if ran[name].null_count() or ran.is_empty() else (ran[name] / unit).to_list()
        for name in ("low_ns", "high_ns")
    )
    return Line(
        run,
        ran["batch"].to_list(),
        (ran["image_ns"] / unit).to_list(),
        low,
        high,
        [Failure(batch, why) for batch, why in failed.iter_rows()],
    )
