"""The picture of speed-up: a panel a network and framework, a line a batch."""

from __future__ import annotations

import polars as pl

from traceana.report.plots.picture import Axis, Failure, Line, Panel, Picture
from traceana.study.model import Study
from traceana.study.scaling.models import FITTED
from traceana.study.scaling.series import SERIES, SHARED
from traceana.study.scaling.table import MODELS

_IDEAL = "as many times as devices"
_DASHES = dict(zip(FITTED, ("--", "-."), strict=True))


def picture(study: Study) -> Picture:
    """Return the speed-up of ``study`` by number of devices, and communication's share of the step.

    Beside each line of points is the model that leaves less of them.
    """
    frame = study.result.frame
    models = study.sections[MODELS].frame if MODELS in study.sections else None
    panels: list[Panel] = []
    shares: list[Panel] = []
    devices = Axis("devices", log=2)
    for (network, run), rows in frame.group_by("network", "run", maintain_order=True):
        title = f"{run}, {network}" if network else str(run)
        counts = [float(count) for count in sorted(set(rows["devices"]))]
        lines = [Line(_IDEAL, counts, counts, dash=":")]
        told = []
        for keys, series in rows.group_by("scaling", "batch", maintain_order=True):
            label = f"batch {keys[1]}" if keys[0] == SHARED else f"batch {keys[1]} a device"
            lines += [_points(label, series), *_model(models, series)]
            told.append(_shares(label, series))
        panels.append(Panel(title, devices, Axis("speed-up over one device", log=2), lines=lines))
        if any(line.x for line in told):
            share = Axis("communication (% of the step)")
            shares.append(Panel(title, devices, share, lines=[line for line in told if line.x]))
    columns = 2 if len(panels) == 1 else min(3, len(panels))
    return Picture(study.title, study.on, [*panels, *shares], columns)


def _points(label: str, series: pl.DataFrame) -> Line:
    ran = series.drop_nulls("speed_up")
    failed = series.filter(pl.col("status") != "ok").select("devices", "status")
    crosses = [Failure(count, why) for count, why in failed.iter_rows()]
    return Line(label, ran["devices"].to_list(), ran["speed_up"].to_list(), failures=crosses)


def _model(models: pl.DataFrame | None, series: pl.DataFrame) -> list[Line]:
    """Return the speed-up by the better model of ``series`` in place of the measured times."""
    if models is None:
        return []
    own = models.join(series, on=SERIES, how="semi", nulls_equal=True).filter("fits_better")
    ran = series.drop_nulls("speed_up")
    return [
        Line(
            f"model {name}",
            ran["devices"].to_list(),
            (ran["speed_up"] * ran["step_ns"] / ran[FITTED[name]]).to_list(),
            dash=_DASHES[name],
        )
        for name in own["model"]
    ]


def _shares(label: str, series: pl.DataFrame) -> Line:
    told = series.drop_nulls("communication_share")
    shares = (told["communication_share"] * 100).to_list()
    return Line(label, told["devices"].to_list(), shares)
