"""Time per image by batch size (Trindade and Lima, Figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from traceana.result import Result
from traceana.study.conditions import conditions
from traceana.study.labels import labels
from traceana.study.missing import command
from traceana.study.model import Study
from traceana.study.names import Name
from traceana.study.recorded import Recorded

SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "network": pl.String,
    "run": pl.String,
    "framework": pl.String,
    "version": pl.String,
    "place": pl.String,
    "on": pl.String,
    "batch": pl.Int64,
    "status": pl.String,
    "steps": pl.Int64,
    "timed": pl.String,
    "step_ns": pl.Int64,
    "image_ns": pl.Int64,
    "low_ns": pl.Int64,
    "high_ns": pl.Int64,
    "images_per_s": pl.Float64,
}
"""One row a run. ``run`` names its series, ``status`` is ``ok`` or why there is no figure.

``step_ns`` is the time of one step, ``image_ns`` that over ``batch``, rounded to the nanosecond;
``low_ns`` and ``high_ns`` are the quartiles of the steps over ``batch``. A run that failed has no
times: null, never 0.
"""

BATCHES: Final = tuple(2**power for power in range(10))
"""Those of the paper."""


def batch_study(runs: Sequence[Recorded]) -> Study:
    """Return the time per image of ``runs`` by network, series and batch."""
    names = labels(runs, lambda run: (run.network, run.batch))
    rows = [_row(run, name) for run, name in zip(runs, names, strict=True) if run.batch]
    frame = pl.DataFrame(rows, schema=SCHEMA).sort("network", "run", "batch", nulls_last=True)
    without = sum(1 for run in runs if not run.batch)
    notes = [f"without the number of images a step, and left out: {without}"] if without else []
    notes += limits(frame)
    if frame.is_empty():
        notes.append("no run tells its batch")
    return Study(
        Name.BATCH,
        "Time per image by batch size",
        conditions(runs),
        Result(frame, {}, tuple(notes)),
        missing=tuple(_missing(frame)),
    )


def limits(frame: pl.DataFrame) -> list[str]:
    """Return a sentence a series of which a run failed: where, why, and what ran before it."""
    sentences = []
    for (network, run), rows in frame.group_by("network", "run", maintain_order=True):
        failed = rows.filter(pl.col("status") != "ok")
        if failed.is_empty():
            continue
        ran = rows.filter(pl.col("status") == "ok")["batch"].max()
        largest = f"the largest that ran is {ran!s}" if ran is not None else "none ran"
        reasons = failed.group_by("status", maintain_order=True).agg(pl.col("batch").unique())
        told = "; ".join(
            f"{why} at batch {', '.join(map(str, sorted(at)))}" for why, at in reasons.iter_rows()
        )
        sentences.append(f"{run} on {network or 'an unnamed network'}: {told}; {largest}")
    return sentences


def _row(run: Recorded, name: str) -> dict[str, object]:
    batch = run.batch or 1
    step, half = run.step_ns, run.middle_half_ns
    return {
        "network": run.network,
        "run": name,
        "framework": run.framework,
        "version": run.version,
        "place": run.place,
        "on": run.on,
        "batch": run.batch,
        "status": run.status,
        "steps": len(run.steps_ns),
        "timed": run.timed,
        "step_ns": step,
        "image_ns": None if step is None else round(step / batch),
        "low_ns": None if half is None else round(half[0] / batch),
        "high_ns": None if half is None else round(half[1] / batch),
        "images_per_s": run.images_per_s,
    }


def _missing(frame: pl.DataFrame) -> list[str]:
    """Return the commands for series of a single batch: they have no course."""
    if frame.is_empty():
        return [f"to fill this study: {command(None, None, sweep=('batch', BATCHES))}"]
    told = []
    for (network, run), rows in frame.group_by("network", "run", maintain_order=True):
        if rows["batch"].n_unique() == 1:
            others = [batch for batch in BATCHES if batch != rows["batch"][0]]
            words = command(rows["framework"][0], network, sweep=("batch", others))
            told.append(f"{run} has one batch; for its course: {words}")
    return told
