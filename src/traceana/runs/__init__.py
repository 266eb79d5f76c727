"""The folders of recorded runs and sweeps that ``traceana record`` writes: docs/record.md.

The manifest of a model's layers is one of their files (:mod:`traceana.runs.layer_manifest`).
"""

from traceana.runs.run_files import (
    Axis,
    BatchSeries,
    Environment,
    Gpu,
    Point,
    Run,
    Status,
    StepTimes,
    Sweep,
    Timing,
    Workload,
)
from traceana.runs.run_folders import (
    RecordedRun,
    batch_series,
    batches_beside,
    find_runs,
    is_run,
    is_sweep,
    missing_runs,
    read_run,
    read_sweep,
)

__all__ = [
    "Axis",
    "BatchSeries",
    "Environment",
    "Gpu",
    "Point",
    "RecordedRun",
    "Run",
    "Status",
    "StepTimes",
    "Sweep",
    "Timing",
    "Workload",
    "batch_series",
    "batches_beside",
    "find_runs",
    "is_run",
    "is_sweep",
    "missing_runs",
    "read_run",
    "read_sweep",
]
