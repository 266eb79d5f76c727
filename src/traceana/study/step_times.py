"""Studies of the step times of recorded runs: by batch size, by framework, by number of devices.

The speedup by number of devices, and models of it, are those of Kim et al. 2017, Figure 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
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
"""One row per run (:meth:`Recorded.row`), ``run`` being its series."""

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
    rows = [run.row(name) for run, name in zip(runs, names, strict=True) if run.batch]
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
        run.row(name)
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
    elif without := len(runs) - frame.height:
        notes.append(f"runs without network or batch size, excluded: {without}")
    return Study(
        Name.RATIO,
        "Speed relative to the first framework, by network",
        conditions(runs),
        Result(frame, {}, tuple(notes)),
        missing=tuple(_missing_frameworks(frame)),
    )


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


MODELS: Final = "models"

STRONG: Final = "strong"
WEAK: Final = "weak"
FLOAT32: Final = 4
SERIES: Final = ("network", "run", "scaling", "batch")
SCALING_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
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
    The section ``models`` has the models of each series (:class:`Fit`).
    """
    names = labels(runs, lambda run: (run.network, run.batch, run.devices))
    frame, models, refusals = with_models(in_series(runs, names, communications))
    notes = []
    without = sum(1 for run in runs if not run.batch)
    if without:
        notes.append(f"runs without batch size, excluded: {without}")
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
    """Return one row per run and series (:data:`SCALING_SCHEMA`), for runs with a batch.

    A run could be in a strong-scaling and a weak-scaling series. The series with more device counts
    is used, with all of its runs; of equal ones the strong-scaling series.
    """
    rows: list[dict[str, object]] = []
    for run, name, exchanged in zip(runs, names, communications, strict=True):
        if not run.batch:
            continue
        of_run = {**run.row(name), "_folder": run.folder}
        parameters = None if run.parameters is None else FLOAT32 * run.parameters
        of_run["parameter_bytes"] = parameters
        if exchanged is not None and run.devices > 1:
            of_run["communication_ns"] = exchanged.time_ns
            of_run["communication_share"] = exchanged.share
            of_run["exposed_ns"] = exchanged.exposed_ns
            of_run["exposed_share"] = exchanged.exposed_share
            reduced = of_run["reduced_bytes"] = exchanged.reduced_bytes
            if reduced is not None and parameters:
                of_run["of_parameters"] = reduced / parameters
        rows.append({**of_run, "scaling": STRONG})
        if run.batch % run.devices == 0:
            rows.append({**of_run, "scaling": WEAK, "batch": run.batch // run.devices})
    # The added 1 prefers the strong-scaling series of two equally long ones.
    length = 2 * pl.col("devices").n_unique().over(SERIES) + (pl.col("scaling") == STRONG)
    longest = pl.col("_length") == pl.col("_length").max().over("_folder")
    one = pl.col("images_per_s").filter(pl.col("devices") == 1).mean().over(SERIES)
    speedup = pl.col("images_per_s") / one
    return (
        pl.DataFrame(rows, schema={**SCALING_SCHEMA, "_folder": pl.String})
        .with_columns(length.alias("_length"))
        .with_columns(longest.alias("_longest"))
        .filter(pl.col("_longest").any().over(SERIES))
        .select(list(SCALING_SCHEMA))
        .with_columns(speedup.alias("speedup"), (speedup / pl.col("devices")).alias("efficiency"))
        .sort(*SERIES, "devices", nulls_last=True, maintain_order=True)
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
    mean = float(measured.mean())
    found = []
    for gathering in GATHERINGS:
        design = _design(gathering, devices, shared_batch)
        times, *_ = np.linalg.lstsq(design, measured, rcond=None)
        residual = float(np.sqrt(np.mean((measured - design @ times) ** 2)))
        compute, gather = map(float, times)
        share = residual / mean if mean else 0.0
        found.append(Fit(gathering, shared_batch, compute, gather, residual, share))
    return tuple(sorted(found, key=lambda fit: fit.residual_ns))


def _design(gathering: Gathering, devices: Sequence[int] | Floats, shared_batch: bool) -> Floats:
    count = np.asarray(devices, dtype=np.float64)
    computing = 1 / count if shared_batch else np.ones_like(count)
    return np.column_stack([computing, count - 1 if gathering == GATHERINGS[0] else np.log2(count)])


def with_models(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, list[str]]:
    """Return the rows of series with the columns of :data:`FITTED`, the models, and notes.

    A series with fewer than three device counts has no models, but a note.
    """
    parts, rows, refusals = [], [], []
    unknown = frame.with_columns(pl.lit(None, pl.Int64).alias(one) for one in FITTED.values())
    for keys, series in frame.group_by(SERIES, maintain_order=True):
        name_of = dict(zip(SERIES, keys, strict=True))
        timed = series.drop_nulls("step_ns")
        shared = name_of["scaling"] == STRONG
        found = fits(timed["devices"].to_list(), timed["step_ns"].to_list(), shared_batch=shared)
        times = {one: pl.Series(one, [None] * series.height, pl.Int64) for one in FITTED.values()}
        for fit in found or ():
            fitted = fit.step_ns(series["devices"].to_list()).round()
            times[FITTED[fit.gathering]] = pl.Series(fitted).cast(pl.Int64)
        parts.append(series.with_columns(**times))
        if found is None:
            counts = timed["devices"].n_unique()
            name, network, batch = (name_of[one] for one in ("run", "network", "batch"))
            sweep = ("processes", (1, 2, 4))
            words = command(series["framework"][0], network, f"--batch {batch}", sweep=sweep)
            refusals.append(
                f"{name} on {network or 'unnamed network'}, {name_of['scaling']} scaling, batch "
                f"{batch}: no model, {counts} device {'count' if counts == 1 else 'counts'} and at "
                f"least {FEWEST_COUNTS} needed; record: {words}"
            )
            continue
        rows += [
            {
                **name_of,
                "model": fit.gathering,
                "compute_ns": round(fit.compute_ns),
                "gather_ns": round(fit.gather_ns),
                "residual_ns": round(fit.residual_ns),
                "residual_share": fit.residual_share,
                "fits_better": fit is found[0] and fit.residual_ns < found[1].residual_ns,
            }
            for fit in found
        ]
    return pl.concat(parts or [unknown]), pl.DataFrame(rows, schema=MODELS_SCHEMA), refusals
