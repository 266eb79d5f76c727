"""Recorded runs and sweeps as they lie on disk: the folders that ``traceana record`` writes.

``docs/record.md`` describes them.
"""

from traceana.runs.find import find_runs, is_run, is_sweep
from traceana.runs.model import (
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
from traceana.runs.read import RecordedRun, read_run, read_sweep
from traceana.runs.siblings import batch_series

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
    "find_runs",
    "is_run",
    "is_sweep",
    "read_run",
    "read_sweep",
]
