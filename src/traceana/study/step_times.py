"""Studies of the step times of recorded runs: by batch size, by framework, by number of devices.

The speedup by number of devices, and its models, are after Kim et al. 2017, Figure 10.
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
from traceana.study.study import NETWORK, RUN, Study
from traceana.table import (
    BYTES,
    COUNT,
    FLAG,
    LONG,
    MEAN,
    NUMBER,
    SHARE,
    STEP,
    TEXT,
    TIME,
    Column,
    Columns,
    DataType,
    laid_out,
    names_of,
)
from traceana.table import RATIO as SPEED_RATIO

_FRAMEWORK: Final = (
    Column("framework", TEXT, "the framework"),
    Column("version", TEXT, "its version"),
)
_DEVICE_KIND: Final = Column("device_kind", TEXT, "`CPU`, `GPU`")
_DEVICE_NAME: Final = Column("device_name", LONG, "name of the device")
_BATCH: Final = Column("batch", NUMBER, "images per step")
_STATUS: Final = Column("status", LONG, "`ok`, else the reason for a missing time")
_TIMED: Final = Column(
    "timed",
    TEXT,
    "`without profiler`, `with profiler`; `kernels`: trials, whose steps are the time of their "
    "kernels",
)
_STEP: Final = Column(
    "step_ns",
    TIME,
    "median step; the mean where only the sum of the steps is right",
    title="per step",
    scale=STEP,
)
_SPEED: Final = Column("images_per_s", MEAN, "images per second")
BATCH: Final = laid_out(
    (
        *(NETWORK, RUN, _BATCH),
        Column("image_ns", TIME, "`step_ns` over `batch`, rounded", title="per image"),
        Column("low_ns", TIME, "lower quartile of the steps, over `batch`", scale="quartiles"),
        Column("high_ns", TIME, "upper quartile of the steps, over `batch`", scale="quartiles"),
        *(_SPEED, _STEP),
        Column("steps", COUNT, "number of steps"),
        *(_TIMED, _STATUS, *_FRAMEWORK, _DEVICE_KIND, _DEVICE_NAME),
    ),
    hidden="framework version device_kind device_name",
    dropped="timed step_ns steps",
)
"""One row per run (:meth:`Recorded.row`), ``run`` being its series."""

BATCHES: Final = tuple(2**power for power in range(10))
"""The batch sizes of the paper."""

RATIO: Final = laid_out(
    (
        *(NETWORK, _BATCH, _DEVICE_KIND, RUN),
        Column(
            "relative_speed",
            SPEED_RATIO,
            "its images/s divided by those of `reference`; null if either is unknown",
        ),
        *(_SPEED, _STEP, _TIMED, _STATUS),
        Column(
            "reference",
            LONG,
            "the run whose speed is 1: the first of the same network, batch and device",
        ),
        *_FRAMEWORK,
    ),
    hidden="framework version",
    dropped="timed device_kind step_ns",
)
"""One row per run."""


def batch_study(runs: Sequence[Recorded]) -> Study:
    """Return the time per image of ``runs`` by network, series and batch."""
    names = labels(runs, lambda run: (run.network, run.batch))
    rows = [run.row(name) for run, name in zip(runs, names, strict=True) if run.batch]
    frame = pl.DataFrame(rows, schema=_schema(BATCH)).sort(
        "network", "run", "batch", nulls_last=True
    )
    without = sum(1 for run in runs if not run.batch)
    notes = [f"runs without batch size, excluded: {without}"] if without else []
    notes += limits(frame)
    if frame.is_empty():
        notes.append("no run with a known batch size")
    return Study(
        Name.BATCH,
        "Time per image by batch size",
        conditions(runs),
        Result(frame, {}, tuple(notes), BATCH),
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
    rows = [
        run.row(name)
        for run, name in zip(runs, names, strict=True)
        if run.batch and run.network is not None
    ]
    frame = pl.DataFrame(rows, schema=_schema(RATIO))
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
        .select(names_of(RATIO))
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
        Result(frame, {}, tuple(notes), RATIO),
        missing=tuple(_missing_frameworks(frame)),
    )


def _missing_frameworks(frame: pl.DataFrame) -> list[str]:
    if frame.is_empty():
        both = [command(name, "alexnet", "--batch 32") for name in ("PyTorch", "JAX")]
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
_SCALING: Final = Column(
    "scaling",
    TEXT,
    "`strong`: `batch` is the global batch size, the same in the whole series; `weak`: `batch` is "
    "the batch size per device",
)
_ALL_STEPS: Final = "mean over the ranks and measured steps of the trace"
SCALING: Final = laid_out(
    (
        *(NETWORK, RUN, _SCALING, _BATCH),
        Column("devices", COUNT, "number of devices"),
        _STEP,
        Column("linear_ns", TIME, "the step in the fitted model O(N-1)"),
        Column("logarithmic_ns", TIME, "the step in the fitted model O(log N)"),
        _SPEED,
        Column(
            "speedup",
            SPEED_RATIO,
            "images/s divided by those of one device in the series",
        ),
        Column("efficiency", SHARE, "`speedup` divided by `devices`"),
        Column("communication_share", SHARE, "`communication_ns` over the step in the trace"),
        Column("exposed_share", SHARE, "`exposed_ns` over the step in the trace"),
        Column(
            "reduced_bytes",
            BYTES,
            "input bytes of a rank's reductions, per step; null if the trace does not record all",
        ),
        Column("of_parameters", SHARE, "`reduced_bytes` divided by `parameter_bytes`"),
        _STATUS,
        *(*_FRAMEWORK, _DEVICE_NAME, _TIMED),
        Column(
            "communication_ns",
            TIME,
            "the union of a rank's collectives in a step, waiting for other ranks included: "
            f"{_ALL_STEPS}",
        ),
        Column(
            "exposed_ns",
            TIME,
            f"the part of it that is not overlapped with compute: {_ALL_STEPS}",
            zeros=True,
        ),
        Column("parameter_bytes", BYTES, "size of the parameters in float32"),
    ),
    hidden="framework version device_name timed communication_ns exposed_ns parameter_bytes",
    dropped="images_per_s exposed_share efficiency scaling linear_ns logarithmic_ns",
)
"""One row per run and series."""
Gathering = Literal["O(N-1)", "O(log N)"]
GATHERINGS: Final[tuple[Gathering, ...]] = ("O(N-1)", "O(log N)")
FEWEST_COUNTS: Final = 3
"""With fewer device counts the two parameters are underdetermined."""
Floats = npt.NDArray[np.float64]
FITTED: Final = dict(zip(GATHERINGS, ("linear_ns", "logarithmic_ns"), strict=True))
"""The columns of the models' times."""
FITTED_MODELS: Final = (
    *(NETWORK, RUN, _SCALING, _BATCH),
    Column("model", TEXT, "`O(N-1)`, `O(log N)`"),
    Column("compute_ns", TIME, "step time on one device without gathering"),
    Column("gather_ns", TIME, "the factor of N - 1 or log₂ N"),
    Column("residual_ns", TIME, "root mean square of the residuals"),
    Column("residual_share", SHARE, "`residual_ns` divided by the mean step time"),
    Column("fits_better", FLAG, "whether it has the smaller residual of both models"),
)
"""One row per series and model."""


def scaling_study(
    runs: Sequence[Recorded], communications: Sequence[Communication | None]
) -> Study:
    """Return the speedup by number of devices; ``communications`` has one for each of ``runs``.

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
        Result(frame, {}, tuple(notes), SCALING),
        {MODELS: Result(models, columns=FITTED_MODELS)} if models.height else {},
        tuple(refusals),
    )


def in_series(
    runs: Sequence[Recorded], names: Sequence[str], communications: Sequence[Communication | None]
) -> pl.DataFrame:
    """Return one row per run and series (:data:`SCALING`), for runs with a batch.

    A run could be in a strong-scaling and a weak-scaling series. The series with more device counts
    is used, with all of its runs; of equally long ones the strong-scaling series.
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
    single_device = pl.col("images_per_s").filter(pl.col("devices") == 1).mean().over(SERIES)
    speedup = pl.col("images_per_s") / single_device
    return (
        pl.DataFrame(rows, schema={**_schema(SCALING), "_folder": pl.String})
        .with_columns(length.alias("_length"))
        .with_columns(longest.alias("_longest"))
        .filter(pl.col("_longest").any().over(SERIES))
        .select(names_of(SCALING))
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
    models = []
    for gathering in GATHERINGS:
        design = _design(gathering, devices, shared_batch)
        times, *_ = np.linalg.lstsq(design, measured, rcond=None)
        residual = float(np.sqrt(np.mean((measured - design @ times) ** 2)))
        compute, gather = map(float, times)
        share = residual / mean if mean else 0.0
        models.append(Fit(gathering, shared_batch, compute, gather, residual, share))
    return tuple(sorted(models, key=lambda fit: fit.residual_ns))


def _design(gathering: Gathering, devices: Sequence[int] | Floats, shared_batch: bool) -> Floats:
    count = np.asarray(devices, dtype=np.float64)
    computing = 1 / count if shared_batch else np.ones_like(count)
    return np.column_stack([computing, count - 1 if gathering == GATHERINGS[0] else np.log2(count)])


def with_models(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, list[str]]:
    """Return the rows of series with the columns of :data:`FITTED`, the models, and notes.

    A series with fewer than three device counts has no models, but a note.
    """
    parts, rows, refusals = [], [], []
    unknown = frame.with_columns(pl.lit(None, pl.Int64).alias(column) for column in FITTED.values())
    for keys, series in frame.group_by(SERIES, maintain_order=True):
        name_of = dict(zip(SERIES, keys, strict=True))
        timed = series.drop_nulls("step_ns")
        shared = name_of["scaling"] == STRONG
        models = fits(timed["devices"].to_list(), timed["step_ns"].to_list(), shared_batch=shared)
        times = {
            column: pl.Series(column, [None] * series.height, pl.Int64)
            for column in FITTED.values()
        }
        for fit in models or ():
            fitted = fit.step_ns(series["devices"].to_list()).round()
            times[FITTED[fit.gathering]] = pl.Series(fitted).cast(pl.Int64)
        parts.append(series.with_columns(**times))
        if models is None:
            counts = timed["devices"].n_unique()
            name, network, batch = (name_of[key] for key in ("run", "network", "batch"))
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
                "fits_better": fit is models[0] and fit.residual_ns < models[1].residual_ns,
            }
            for fit in models
        ]
    return (
        pl.concat(parts or [unknown]),
        pl.DataFrame(rows, schema=_schema(FITTED_MODELS)),
        refusals,
    )


def _schema(columns: Columns) -> dict[str, DataType]:
    return {column.name: column.dtype for column in columns}
