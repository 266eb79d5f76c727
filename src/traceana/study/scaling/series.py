"""Runs in series by what stays the same as devices are added, and their speed-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from traceana.study.recorded import Recorded
from traceana.study.scaling.communication import Communication

SHARED: Final = "shared batch"
OWN: Final = "batch a device"
FLOAT32: Final = 4
SERIES: Final = ("network", "run", "scaling", "batch")

SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "network": pl.String,
    "run": pl.String,
    "framework": pl.String,
    "version": pl.String,
    "on": pl.String,
    "scaling": pl.String,
    "batch": pl.Int64,
    "devices": pl.Int64,
    "status": pl.String,
    "timed": pl.String,
    "step_ns": pl.Int64,
    "images_per_s": pl.Float64,
    "speed_up": pl.Float64,
    "efficiency": pl.Float64,
    "communication_ns": pl.Int64,
    "communication_share": pl.Float64,
    "exposed_ns": pl.Int64,
    "exposed_share": pl.Float64,
    "reduced_bytes": pl.Int64,
    "parameter_bytes": pl.Int64,
    "of_parameters": pl.Float64,
}
"""One row a run and series. ``scaling`` tells what stays the same in the series as devices are
added, and is ``batch`` images: those of all devices together (``shared batch``) or of each.

``speed_up`` is images a second over those of one device in the series, ``efficiency`` that over
``devices``. ``communication_ns`` to ``reduced_bytes`` are those of
:class:`traceana.study.scaling.communication.Communication`; ``parameter_bytes`` are the model's in
float32, as all weights of the workloads are, ``of_parameters`` is ``reduced_bytes`` over it."""


def in_series(
    runs: Sequence[Recorded], names: Sequence[str], communications: Sequence[Communication | None]
) -> pl.DataFrame:
    """Return one row a run and series it is in (:data:`SCHEMA`); those without a batch are in none.

    Of the two series that a run could be in, the one of more numbers of devices counts, and all
    of its runs with it; of two equally long ones that of the shared batch.
    """
    rows = [
        _row(run, name, told, scaling)
        for run, name, told in zip(runs, names, communications, strict=True)
        if run.batch
        for scaling in (SHARED, OWN)
        if scaling == SHARED or run.batch % run.devices == 0
    ]
    frame = pl.DataFrame(rows, schema={**SCHEMA, "_folder": pl.String})
    # A half more: of two equally long series the shared batch's is the longer.
    length = 2 * pl.col("devices").n_unique().over(SERIES) + (pl.col("scaling") == SHARED)
    longest = pl.col("_length") == pl.col("_length").max().over("_folder")
    frame = (
        frame.with_columns(length.alias("_length"))
        .with_columns(longest.alias("_longest"))
        .filter(pl.col("_longest").any().over(SERIES))
        .select(list(SCHEMA))
    )
    return _sped_up(frame).sort(*SERIES, "devices", nulls_last=True, maintain_order=True)


def _row(run: Recorded, name: str, told: Communication | None, scaling: str) -> dict[str, object]:
    batch = run.batch or 0
    several = told if run.devices > 1 else None
    reduced = None if several is None else several.reduced_bytes
    parameters = None if run.parameters is None else FLOAT32 * run.parameters
    return {
        "network": run.network,
        "run": name,
        "framework": run.framework,
        "version": run.version,
        "on": run.on,
        "scaling": scaling,
        "batch": batch if scaling == SHARED else batch // run.devices,
        "devices": run.devices,
        "status": run.status,
        "timed": run.timed,
        "step_ns": run.step_ns,
        "images_per_s": run.images_per_s,
        "communication_ns": None if several is None else several.time_ns,
        "communication_share": None if several is None else several.share,
        "exposed_ns": None if several is None else several.exposed_ns,
        "exposed_share": None if several is None else several.exposed_share,
        "reduced_bytes": reduced,
        "parameter_bytes": parameters,
        "of_parameters": reduced / parameters if reduced is not None and parameters else None,
        "_folder": run.folder,
    }


def _sped_up(frame: pl.DataFrame) -> pl.DataFrame:
    one = pl.col("images_per_s").filter(pl.col("devices") == 1).mean().over(SERIES)
    speed_up = pl.col("images_per_s") / one
    return frame.with_columns(
        speed_up.alias("speed_up"), (speed_up / pl.col("devices")).alias("efficiency")
    )
