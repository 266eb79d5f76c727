"""A row per run: its step time on the program's clock, what it was measured with, and its work."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from math import sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from traceana.analyze.memory import memory
from traceana.analyze.roofline import utilization
from traceana.comparison.compared_run import Run, devices
from traceana.comparison.resampling import variance_of_statistic
from traceana.comparison.verdicts import mean_available
from traceana.settings import CONFIDENCE_LEVEL, RUN_TO_RUN_CPU, RUN_TO_RUN_HOST
from traceana.table import BYTES, COUNT, LONG, NUMBER, SHARE, TEXT, TIME, Column, schema_of
from traceana.timeline.work import has_frames, has_kernels
from traceana.trace import RECORDED_WITH
from traceana.trace.taxonomy import PRODUCTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from traceana.runs import RecordedRun
    from traceana.trace import Trace

METHOD: Final = (
    Column("devices", LONG, "names of the devices that worked"),
    Column("driver", TEXT, "version of the GPU's driver; null where it is not recorded"),
    Column("framework", TEXT, "framework, with its version where that is recorded"),
    Column("libraries", LONG, "versions of CUDA, cuDNN, NCCL …; null where they are not recorded"),
    Column("batch", NUMBER, "images per step"),
    Column("shape", TEXT, "shape of the first layer's input, of one image, axes by size"),
    Column("precision", TEXT, "operand type with most time in convolutions and matrix products"),
    Column("memory_format", TEXT, "memory format of most layers' inputs; null without strides"),
    Column("profiler", LONG, "profiler and its options"),
    Column("steps", NUMBER, "marked steps of the recording, warm-up included; null without"),
)
"""What a run was measured with and on what: runs that differ in it are no series."""
FIGURES: Final = (
    Column("step_ns", TIME, "median step on the program's clock; without steps the recording"),
    Column("low_ns", TIME, "lower end of its interval, 95 %: variance of its steps, or the "
           "profiler's cost"),
    Column("high_ns", TIME, "upper end of its interval"),
    Column("utilization", SHARE, "part of the steps' time with work on the device"),
    Column("mfu", SHARE, "model FLOP utilization; null without a known peak or FLOP counts",
           title="MFU"),
    Column("peak_bytes", BYTES, "peak of allocated memory of the fullest device; null where the "
           "allocator's events are not recorded", title="peak memory"),
)  # fmt: skip
"""The figures of a run."""
RUN: Final = (
    Column("commit", TEXT, "commit of the recorded run's repository, `-dirty` if its files differ"),
    Column("date", TEXT, "start of the recording, UTC, ISO 8601; null where it is not recorded"),
)
_KEPT: Final = (
    *RUN,
    *FIGURES,
    *METHOD,
    Column("measured", COUNT, "measured steps"),
    Column("usual_ns", TIME, "usual standard deviation of the step from run to run"),
)
ITEM: Final = pl.Struct({"by": pl.String, "item": pl.String, "time_ns": pl.Int64})
ROW: Final[dict[str, Any]] = {**schema_of(_KEPT), "items": pl.List(ITEM)}
"""The columns of a run's row, as it is kept; ``items`` has the mean time per step of its work by
class, layer, kernel and line."""
IDLE: Final = "(idle)"

_PACKAGES: Final = {
    **{"PyTorch": "torch", "TensorFlow": "tensorflow", "Keras": "keras"},
    **{"JAX": "jax", "MXNet": "mxnet"},
}
_LIBRARIES: Final = ("CUDA", "cuDNN", "NCCL", "oneDNN", "ROCm", "MIOpen", "RCCL")


def run_row(trace: Trace) -> dict[str, Any]:
    """Return the row of ``trace``, with the columns :data:`ROW`.

    Raises :class:`~traceana.errors.TraceanaError` where it has no time: as of a memory snapshot.
    """
    run = Run("", trace, trace.manifest)
    program = run.trace
    steps = run.measured
    step_ns, low, high = _median(steps.frame["wall_ns"].to_list())
    low, high = program.meta.step_interval_ns or (low, high)
    available = mean_available(steps) * steps.count
    busy = int(steps.frame["busy_ns"].sum())
    used = utilization(program, trace.manifest) if steps.marked else None
    peaks = memory(trace).frame["peak_bytes"] if trace.tables.memory.height else pl.Series([None])
    return {
        **_facts(run),
        "step_ns": round(step_ns),
        "low_ns": round(low),
        "high_ns": round(high),
        "utilization": busy / available if available and has_kernels(program) else None,
        "mfu": None if used is None else used.mfu,
        "peak_bytes": peaks.max(),
        "measured": steps.count if steps.marked else None,
        "usual_ns": round(steps.spread(program) * step_ns),
        "items": list(_items(run)),
    }


def timed_row(run: RecordedRun) -> dict[str, Any] | None:
    """Return the row of a run that was timed without a profiler; None without step times.

    Raises the errors of :func:`traceana.runs.read_run`.
    """
    timing, environment = run.timing(), run.environment()
    steps = None if timing is None else timing.without_profiler
    if timing is None or steps is None or not steps.steps_ns:
        return None
    facts = run.recorded_with()
    step_ns, low, high = _median(steps.steps_ns)
    names = Counter(gpu.name for gpu in environment.gpus) if environment is not None else {}
    used = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in names.items())
    workload = run.run.workload
    framework = None if workload is None else workload.framework
    return {
        **_versions(facts, framework),
        "commit": facts.get("commit"),
        "date": _date(None, run.run.started_at),
        "devices": used or "CPU",
        "driver": facts.get("driver"),
        "batch": timing.images_per_step,
        "profiler": "none",
        "steps": len(steps.steps_ns),
        "step_ns": round(step_ns),
        "low_ns": round(low),
        "high_ns": round(high),
        "measured": len(steps.steps_ns),
        "usual_ns": round((RUN_TO_RUN_HOST if used else RUN_TO_RUN_CPU) * step_ns),
        "items": [],
    }


def _median(times: Sequence[int]) -> tuple[float, float, float]:
    """Return the median of the times of steps (ns), and the ends of its interval."""
    walls = np.array(times, dtype=np.float64)
    median = float(np.median(walls))
    deviate = NormalDist().inv_cdf((1 + CONFIDENCE_LEVEL) / 2)
    half = deviate * sqrt(variance_of_statistic(walls, "median")) if len(walls) > 1 else 0.0
    return median, median - half, median + half


def _versions(facts: Mapping[str, str], framework: str | None) -> dict[str, str | None]:
    """Return the framework with its version, and the versions of its libraries."""
    version = facts.get(_PACKAGES.get(framework or "", ""), "")
    libraries = ", ".join(f"{name} {facts[name]}" for name in _LIBRARIES if name in facts)
    return {
        "framework": f"{framework} {version}".rstrip() if framework else None,
        "libraries": libraries or None,
    }


def _facts(run: Run) -> dict[str, Any]:
    """Return what the run was measured with, and when."""
    trace = run.trace
    meta, properties = trace.meta, trace.meta.properties
    recorded = properties.get(RECORDED_WITH)
    environment: Mapping[str, str] = recorded if isinstance(recorded, dict) else {}
    versions = _versions(environment, meta.framework)
    cuda = properties.get("cuda_runtime_version")
    if versions["libraries"] is None and isinstance(cuda, int) and cuda:
        versions["libraries"] = f"CUDA {cuda // 1000}.{cuda % 1000 // 10}"
    driver = environment.get("driver") or properties.get("driver_version")
    options = properties.get("options")
    named = [meta.producer or meta.format]
    named += sorted(map(str, options)) if isinstance(options, tuple) else []
    marked = trace.tables.steps["number"].n_unique()
    products = run.measured.cells.filter(pl.col("category").is_in(PRODUCTS))
    by_time = (
        products.drop_nulls("precision")
        .group_by(pl.col("precision").cast(pl.String))
        .agg(pl.col("time_ns").sum())
        .sort("time_ns", "precision", descending=[True, False])
    )
    formats = Counter(layer.memory_format for layer in run.layers.layers if layer.memory_format)
    shapes = (layer.takes for layer in run.layers.layers if layer.takes)
    return {
        "commit": environment.get("commit"),
        "date": _date(meta.epoch_ns, environment.get("started_at")),
        "devices": devices(trace),
        "driver": None if driver in (None, "0") else str(driver),
        **versions,
        "batch": run.batch,
        "shape": next(shapes, None),
        "precision": by_time["precision"].first(),
        "memory_format": formats.most_common(1)[0][0] if formats else None,
        "profiler": ", ".join(named),
        "steps": marked or None,
    }


def _date(epoch_ns: int | None, started_at: str | None) -> str | None:
    """Return the start of a recording as text; None where it is unknown, or no date."""
    try:
        if epoch_ns is not None:
            moment = datetime.fromtimestamp(epoch_ns // 10**9, UTC)
        elif started_at is not None:
            moment = datetime.fromisoformat(started_at).astimezone(UTC)
        else:
            return None
    except (OverflowError, ValueError, OSError):
        return None
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _items(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the mean time per step of the work of ``run``, for each class, layer, kernel, line."""
    steps = run.measured
    keys = {
        "class": pl.concat_str("category", "part", separator=": ", ignore_nulls=True),
        "layer": pl.col("layer"),
        "kernel": pl.col("name"),
        **({"line": pl.col("line")} if has_frames(run.trace) else {}),
    }
    cells = steps.cells.with_columns(pl.col("category", "part", "name", "line").cast(pl.String))
    for by, key in keys.items():
        sums = (
            cells.group_by(key.alias("item"))
            .agg(pl.col("time_ns").sum() // steps.count)
            .drop_nulls("item")
            .sort("item")
        )
        for item, time_ns in sums.iter_rows():
            yield {"by": by, "item": item, "time_ns": time_ns}
    if steps.timed:
        idle = mean_available(steps) - int(steps.frame["busy_ns"].sum()) // steps.count
        yield {"by": "class", "item": IDLE, "time_ns": idle}
