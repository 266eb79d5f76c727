"""Step times of recorded runs: time per image by batch size, and relative speed by framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from traceana.result import Result, ratio
from traceana.study import Name
from traceana.study.recorded_runs import Recorded, command, conditions, labels
from traceana.study.study import Study

BATCH_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "network": pl.String,
    "run": pl.String,
    "framework": pl.String,
    "version": pl.String,
    "device_kind": pl.String,
    "device_name": pl.String,
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
"""One row per run. ``run`` is its series, ``status`` is ``ok`` or the reason for a missing time.

``step_ns`` is the time per step, ``image_ns`` the time per step divided by ``batch``, rounded to
the nanosecond. ``low_ns`` and ``high_ns`` are the quartiles of the steps divided by ``batch``. The
times of a failed run are null.
"""

BATCHES: Final = tuple(2**power for power in range(10))
"""The batch sizes of the paper."""

RATIO_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "network": pl.String,
    "batch": pl.Int64,
    "device_kind": pl.String,
    "run": pl.String,
    "framework": pl.String,
    "version": pl.String,
    "status": pl.String,
    "timed": pl.String,
    "step_ns": pl.Int64,
    "images_per_s": pl.Float64,
    "reference": pl.String,
    "relative_speed": pl.Float64,
}
"""One row per run. ``relative_speed`` is its images/s divided by those of ``reference``, the first
run of the same network, batch and device; null if either is unknown."""


def batch_study(runs: Sequence[Recorded]) -> Study:
    """Return the time per image of ``runs`` by network, series and batch."""
    names = labels(runs, lambda run: (run.network, run.batch))
    rows = [_batch_row(run, name) for run, name in zip(runs, names, strict=True) if run.batch]
    frame = pl.DataFrame(rows, schema=BATCH_SCHEMA).sort("network", "run", "batch", nulls_last=True)
    without = sum(1 for run in runs if not run.batch)
    notes = [f"runs without batch size, excluded: {without}"] if without else []
    notes += limits(frame)
    if frame.is_empty():
        notes.append("no run with a known batch size")
    return Study(
        Name.BATCH,
        "Time per image by batch size",
        conditions(runs),
        Result(frame, {}, tuple(notes)),
        missing=tuple(_missing_batches(frame)),
    )


def limits(frame: pl.DataFrame) -> list[str]:
    """Return a note per series with failed runs: their batches, reasons, and the largest batch."""
    sentences = []
    for (network, run), rows in frame.group_by("network", "run", maintain_order=True):
        failed = rows.filter(pl.col("status") != "ok")
        if failed.is_empty():
            continue
        ran = rows.filter(pl.col("status") == "ok")["batch"].max()
        largest = f"largest batch that ran: {ran!s}" if ran is not None else "no batch ran"
        reasons = failed.group_by("status", maintain_order=True).agg(pl.col("batch").unique())
        failures = "; ".join(
            f"{why} at batch {', '.join(map(str, sorted(at)))}" for why, at in reasons.iter_rows()
        )
        sentences.append(f"{run} on {network or 'unnamed network'}: {failures}; {largest}")
    return sentences


def _batch_row(run: Recorded, name: str) -> dict[str, object]:
    batch = run.batch or 1
    step, half = run.step_ns, run.middle_half_ns
    return {
        "network": run.network,
        "run": name,
        "framework": run.framework,
        "version": run.version,
        "device_kind": run.device_kind,
        "device_name": run.device_name,
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


def _missing_batches(frame: pl.DataFrame) -> list[str]:
    """Return the commands to record more batches of series with a single batch."""
    if frame.is_empty():
        return [f"record: {command(None, None, sweep=('batch', BATCHES))}"]
    commands = []
    for (network, run), rows in frame.group_by("network", "run", maintain_order=True):
        if rows["batch"].n_unique() == 1:
            others = [batch for batch in BATCHES if batch != rows["batch"][0]]
            words = command(rows["framework"][0], network, sweep=("batch", others))
            commands.append(f"{run}: one batch only; record more: {words}")
    return commands


def ratio_study(runs: Sequence[Recorded]) -> Study:
    """Return the speed of each run relative to the first run of its network, batch and device.

    The order of ``runs`` decides which framework is the reference.
    """
    names = labels(runs, lambda run: (run.network, run.batch, run.devices))
    found = [
        _ratio_row(run, name)
        for run, name in zip(runs, names, strict=True)
        if run.batch and run.network is not None
    ]
    frame = pl.DataFrame(found, schema=RATIO_SCHEMA)
    first = frame["run"].first() if frame.height else None
    # The same series is the reference of every network that has it.
    alike = ("network", "batch", "device_kind")
    chosen = (
        frame.with_row_index("_row")
        .sort(pl.col("run").ne_missing(pl.lit(first, pl.String)), "_row")
        .group_by(alike, maintain_order=True)
        .agg(
            pl.col("run").first().alias("reference"),
            pl.col("images_per_s").first().alias("_of_reference"),
        )
    )
    frame = (
        frame.drop("reference", "relative_speed")
        .join(chosen, on=alike, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(
            ratio(pl.col("images_per_s"), pl.col("_of_reference")).alias("relative_speed")
        )
        .select(list(RATIO_SCHEMA))
        .sort("network", "batch", "device_kind", maintain_order=True)
    )
    notes = ["speed: images/s, relative to the first run given"]
    if frame.is_empty():
        notes = ["no run with a known network and batch size"]
    return Study(
        Name.RATIO,
        "Speed relative to the first framework, by network",
        conditions(runs),
        Result(frame, {}, tuple(notes)),
        missing=tuple(_missing_frameworks(frame)),
    )


def _ratio_row(run: Recorded, name: str) -> dict[str, object]:
    return {
        "network": run.network,
        "batch": run.batch,
        "device_kind": run.device_kind,
        "run": name,
        "framework": run.framework,
        "version": run.version,
        "status": run.status,
        "timed": run.timed,
        "step_ns": run.step_ns,
        "images_per_s": run.images_per_s,
    }


def _missing_frameworks(frame: pl.DataFrame) -> list[str]:
    if frame.is_empty():
        both = [command(one, "alexnet", "--batch 32") for one in ("PyTorch", "JAX")]
        return [f"record: {'; '.join(both)}"]
    alone = frame.filter(pl.col("run").n_unique().over("network", "batch", "device_kind") == 1)
    commands = []
    for network, batch, framework in alone.select("network", "batch", "framework").iter_rows():
        other = "JAX" if framework == "PyTorch" else "PyTorch"
        words = command(other, network, f"--batch {batch}")
        commands.append(f"{network}, batch {batch}: one run only; record another: {words}")
    return commands
