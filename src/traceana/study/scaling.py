"""Speedup by number of devices, and models of it (Kim et al. 2017, Figure 10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.result import Result
from traceana.study import Name
from traceana.study.recorded_runs import Recorded, command, conditions, labels
from traceana.study.study import Study

MODELS: Final = "models"

STRONG: Final = "strong"
WEAK: Final = "weak"
FLOAT32: Final = 4
SERIES: Final = ("network", "run", "scaling", "batch")
SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "network": pl.String,
    "run": pl.String,
    "framework": pl.String,
    "version": pl.String,
    "device_name": pl.String,
    "scaling": pl.String,
    "batch": pl.Int64,
    "devices": pl.Int64,
    "status": pl.String,
    "timed": pl.String,
    "step_ns": pl.Int64,
    "images_per_s": pl.Float64,
    "speedup": pl.Float64,
    "efficiency": pl.Float64,
    "communication_ns": pl.Int64,
    "communication_share": pl.Float64,
    "exposed_ns": pl.Int64,
    "exposed_share": pl.Float64,
    "reduced_bytes": pl.Int64,
    "parameter_bytes": pl.Int64,
    "of_parameters": pl.Float64,
}
"""One row per run and series. ``scaling`` is ``strong`` (``batch`` is the global batch size, the
same in the whole series) or ``weak`` (``batch`` is the batch size per device).

``speedup`` is images/s divided by those of one device in the series, ``efficiency`` is ``speedup``
divided by ``devices``. ``communication_ns`` to ``reduced_bytes`` are those of
:class:`Communication`. ``parameter_bytes`` is the size of the parameters in float32, which the
workloads use; ``of_parameters`` is ``reduced_bytes`` divided by it."""
Gathering = Literal["O(N-1)", "O(log N)"]
GATHERINGS: Final[tuple[Gathering, ...]] = ("O(N-1)", "O(log N)")
FEWEST_COUNTS: Final = 3
"""With fewer device counts the two parameters are underdetermined."""
Floats = npt.NDArray[np.float64]
FITTED: Final = dict(zip(GATHERINGS, ("linear_ns", "logarithmic_ns"), strict=True))
"""The columns of the models' times."""
MODELS_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "network": pl.String,
    "run": pl.String,
    "scaling": pl.String,
    "batch": pl.Int64,
    "model": pl.String,
    "compute_ns": pl.Int64,
    "gather_ns": pl.Int64,
    "residual_ns": pl.Int64,
    "residual_share": pl.Float64,
    "fits_better": pl.Boolean,
}
"""One row per series and model. ``compute_ns`` is the step time on one device without gathering,
``gather_ns`` the factor of N - 1 or log₂ N. ``residual_ns`` is the root mean square of the
residuals, ``residual_share`` is ``residual_ns`` divided by the mean step time."""


def scaling_study(
    runs: Sequence[Recorded], communications: Sequence[Communication | None]
) -> Study:
    """Return the speedup by number of devices; ``communications`` are those of ``runs``.

    Runs of one series have the same network, framework, options, and batch (global or per device).
    The section ``models`` has the models of :mod:`traceana.study.scaling` for each series.
    """
    names = labels(runs, lambda run: (run.network, run.batch, run.devices))
    frame, models, refusals = with_models(in_series(runs, names, communications))
    notes = []
    if frame.is_empty():
        notes.append("no run with a known batch size")
    if frame["communication_ns"].is_not_null().any():
        notes.append(
            "communication: time per step in collectives, waiting for other ranks included"
        )
    if (models["gather_ns"] < 0).any():
        notes.append("negative gather time: steps are faster than the model allows")
    if (models["compute_ns"] < 0).any():
        notes.append("negative compute time: additional devices only add time")
    return Study(
        Name.SCALING,
        "Speedup by number of devices",
        conditions(runs),
        Result(frame, {}, tuple(notes)),
        {MODELS: Result(models)} if models.height else {},
        tuple(refusals),
    )


def in_series(
    runs: Sequence[Recorded], names: Sequence[str], communications: Sequence[Communication | None]
) -> pl.DataFrame:
    """Return one row per run and series (:data:`SCHEMA`), for runs with a batch.

    A run could be in a strong-scaling and a weak-scaling series. The series with more device counts
    is used, with all of its runs; of equal ones the strong-scaling series.
    """
    rows = [
        _row(run, name, communication, scaling)
        for run, name, communication in zip(runs, names, communications, strict=True)
        if run.batch
        for scaling in (STRONG, WEAK)
        if scaling == STRONG or run.batch % run.devices == 0
    ]
    frame = pl.DataFrame(rows, schema={**SCHEMA, "_folder": pl.String})
    # The added 1 prefers the strong-scaling series of two equally long ones.
    length = 2 * pl.col("devices").n_unique().over(SERIES) + (pl.col("scaling") == STRONG)
    longest = pl.col("_length") == pl.col("_length").max().over("_folder")
    frame = (
        frame.with_columns(length.alias("_length"))
        .with_columns(longest.alias("_longest"))
        .filter(pl.col("_longest").any().over(SERIES))
        .select(list(SCHEMA))
    )
    return _sped_up(frame).sort(*SERIES, "devices", nulls_last=True, maintain_order=True)


def _row(
    run: Recorded, name: str, communication: Communication | None, scaling: str
) -> dict[str, object]:
    batch = run.batch or 0
    several = communication if run.devices > 1 else None
    reduced = None if several is None else several.reduced_bytes
    parameters = None if run.parameters is None else FLOAT32 * run.parameters
    return {
        "network": run.network,
        "run": name,
        "framework": run.framework,
        "version": run.version,
        "device_name": run.device_name,
        "scaling": scaling,
        "batch": batch if scaling == STRONG else batch // run.devices,
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
    speedup = pl.col("images_per_s") / one
    return frame.with_columns(
        speedup.alias("speedup"), (speedup / pl.col("devices")).alias("efficiency")
    )


class Communication(msgspec.Struct, frozen=True):
    """Means over the measured steps and ranks of a run.

    ``time_ns`` is the union of a rank's collectives in a step, including the wait for other ranks.
    ``exposed_ns`` is the part that is not overlapped with compute. ``share`` and ``exposed_share``
    are their parts of the step in the trace. ``reduced_bytes`` are a rank's input bytes of
    reductions, null if the trace does not record all of them.
    """

    time_ns: int
    exposed_ns: int
    share: float
    exposed_share: float
    reduced_bytes: int | None


def communicated(steps: pl.DataFrame) -> Communication | None:
    """Return the means of a frame of :func:`traceana.analyze.communication.communication`.

    None without measured steps of a duration above 0.
    """
    measured = steps.filter(~pl.col("warm_up"))
    available = int(measured["available_ns"].sum())
    if not available:
        return None
    time, exposed = (int(measured[name].sum()) for name in ("communication_ns", "exposed_ns"))
    reduced = measured["reduced_bytes"]
    count = measured.height
    return Communication(
        time // count,
        exposed // count,
        time / available,
        exposed / available,
        None if reduced.null_count() else int(reduced.sum()) // count,
    )


class Fit(msgspec.Struct, frozen=True):
    """A fitted model: its two times (ns) and its residual.

    ``residual_ns`` is the root mean square of measured minus fitted time, ``residual_share`` is
    ``residual_ns`` divided by the mean of the measured times.
    """

    gathering: Gathering
    shared_batch: bool
    compute_ns: float
    gather_ns: float
    residual_ns: float
    residual_share: float

    def step_ns(self, devices: Sequence[int] | Floats) -> Floats:
        """Return the fitted step time for each number of ``devices``."""
        design = _design(self.gathering, devices, self.shared_batch)
        return np.asarray(design @ np.array([self.compute_ns, self.gather_ns]), dtype=np.float64)


def fits(
    devices: Sequence[int], step_ns: Sequence[float], *, shared_batch: bool
) -> tuple[Fit, ...] | None:
    """Return both models fitted to the step times, the one with the smaller residual first.

    None with fewer than three distinct device counts. Raises ``ValueError`` on lists of different
    lengths and on device counts below 1.
    """
    if len(devices) != len(step_ns):
        raise ValueError(f"{len(devices)} device counts and {len(step_ns)} step times")
    if any(count < 1 for count in devices):
        raise ValueError("a device count below 1")
    if len(set(devices)) < FEWEST_COUNTS:
        return None
    measured = np.asarray(step_ns, dtype=np.float64)
    found = [_fit(gathering, devices, measured, shared_batch) for gathering in GATHERINGS]
    return tuple(sorted(found, key=lambda fit: fit.residual_ns))


def _fit(gathering: Gathering, devices: Sequence[int], measured: Floats, shared_batch: bool) -> Fit:
    design = _design(gathering, devices, shared_batch)
    (compute, gather), *_ = np.linalg.lstsq(design, measured, rcond=None)
    residual = float(np.sqrt(np.mean((measured - design @ np.array([compute, gather])) ** 2)))
    mean = float(measured.mean())
    return Fit(
        gathering,
        shared_batch,
        float(compute),
        float(gather),
        residual,
        residual / mean if mean else 0.0,
    )


def _design(gathering: Gathering, devices: Sequence[int] | Floats, shared_batch: bool) -> Floats:
    count = np.asarray(devices, dtype=np.float64)
    computing = 1 / count if shared_batch else np.ones_like(count)
    return np.column_stack([computing, count - 1 if gathering == GATHERINGS[0] else np.log2(count)])


def with_models(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, list[str]]:
    """Return the rows of series with the columns of :data:`FITTED`, the models, and notes.

    A series with fewer than three device counts has no models, but a note.
    """
    parts, rows, refusals = [], [], []
    for keys, series in frame.group_by(SERIES, maintain_order=True):
        timed = series.drop_nulls("step_ns")
        shared = series["scaling"][0] == STRONG
        found = fits(timed["devices"].to_list(), timed["step_ns"].to_list(), shared_batch=shared)
        if found is None:
            refusals.append(_refusal(series, timed["devices"].n_unique()))
        parts.append(_predicted(series, found or ()))
        rows += [
            _model_row(dict(zip(SERIES, keys, strict=True)), fit, found) for fit in found or ()
        ]
    if not parts:
        return _predicted(frame, ()), pl.DataFrame(schema=MODELS_SCHEMA), []
    return pl.concat(parts), pl.DataFrame(rows, schema=MODELS_SCHEMA), refusals


def _predicted(series: pl.DataFrame, found: Sequence[Fit]) -> pl.DataFrame:
    columns = {column: pl.Series([None] * series.height, dtype=pl.Int64)
               for column in FITTED.values()}  # fmt: skip
    for fit in found:
        times = fit.step_ns(series["devices"].to_list()).round()
        columns[FITTED[fit.gathering]] = pl.Series(times).cast(pl.Int64)
    return series.with_columns(values.alias(name) for name, values in columns.items())


def _model_row(series: dict[str, Any], fit: Fit, found: Sequence[Fit] | None) -> dict[str, Any]:
    first, second = found or (fit, fit)
    return {
        **series,
        "model": fit.gathering,
        "compute_ns": round(fit.compute_ns),
        "gather_ns": round(fit.gather_ns),
        "residual_ns": round(fit.residual_ns),
        "residual_share": fit.residual_share,
        "fits_better": fit is first and first.residual_ns < second.residual_ns,
    }


def _refusal(series: pl.DataFrame, counts: int) -> str:
    name, network, batch, kind = (series[key][0] for key in ("run", "network", "batch", "scaling"))
    wanted = ("processes", (1, 2, 4))
    words = command(series["framework"][0], network, f"--batch {batch}", sweep=wanted)
    return (
        f"{name} on {network or 'unnamed network'}, {kind} scaling, batch {batch}: no model, "
        f"{counts} device {'count' if counts == 1 else 'counts'} and at least {FEWEST_COUNTS} "
        f"needed; record: {words}"
    )
