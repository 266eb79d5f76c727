"""The runs of a sweep that differ from one of them in the batch alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from traceana.runs.find import is_run, is_sweep
from traceana.runs.model import BatchSeries, StepTimes, Value
from traceana.runs.read import RecordedRun, read_run, read_sweep

_BATCH: Final = "batch"


def batch_series(folder: str | os.PathLike[str]) -> BatchSeries | None:
    """Return what the steps took without a profiler in the run ``folder`` and in its siblings.

    Those are the runs of its sweep, if that is over ``batch``, that came to their end with the
    same values on the other axes, the same network and the same options. None where ``folder`` is
    no run of such a sweep. Raises the errors of :func:`~traceana.runs.read.read_run`.
    """
    path = Path(folder).resolve()
    if not is_run(path) or not is_sweep(path.parent):
        return None
    points = {point.folder: point for point in read_sweep(path.parent).points}
    own = points.get(path.name)
    if own is None:
        return None
    run = read_run(path)
    batch = _batch(run)
    if batch is None:
        return None
    times: dict[int, StepTimes] = {}
    for point in points.values():
        if _without_batch(point.values) != _without_batch(own.values):
            continue
        sibling = path.parent / point.folder
        if not is_run(sibling):
            continue
        other = read_run(sibling)
        images = _batch(other)
        timing = other.timing()
        taken = None if timing is None else timing.without_profiler
        if other.complete and images is not None and taken is not None and _alike(run, other):
            times[images] = taken
    return BatchSeries(batch, times)


def _batch(run: RecordedRun) -> int | None:
    """Return the examples per step; None where the run has none recorded."""
    if run.run.workload is not None:
        return run.run.workload.batch
    timing = run.timing()
    return None if timing is None else timing.images_per_step


def _alike(one: RecordedRun, other: RecordedRun) -> bool:
    a, b = one.run.workload, other.run.workload
    if a is None or b is None:
        return a is b
    same = (a.framework, a.network) == (b.framework, b.network)
    return same and _without_batch(a.options) == _without_batch(b.options)


def _without_batch(values: dict[str, str] | dict[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in values.items() if name != _BATCH}
