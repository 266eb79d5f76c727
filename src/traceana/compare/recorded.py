"""Recorded runs among what is compared: a sweep stands for its runs, labelled by what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traceana.compare.many import labels
from traceana.runs import RecordedRun, find_runs, is_run
from traceana.runs.find import runs_below


@dataclass(frozen=True, slots=True)
class Found:
    """The runs that are compared: their paths and labels, and what was left out and why."""

    paths: tuple[Path, ...]
    labels: tuple[str, ...]
    left_out: tuple[str, ...]


def runs_in(given: Sequence[Path]) -> Found:
    """Return the runs of ``given``, a sweep or a folder of recorded runs standing for its runs.

    Those that died, or hold no trace, are left out. Runs that are all of such folders are called
    after the values in which they differ (``batch=4``), others after their paths. Raises the errors
    of :func:`traceana.runs.find_runs`.
    """
    paths: list[Path] = []
    left_out: list[str] = []
    recorded: list[RecordedRun] = []
    for path in given:
        if not path.is_dir() or is_run(path) or not runs_below(path):
            paths.append(path)
            continue
        for run in find_runs([path]):
            if run.complete and run.run.traces:
                recorded.append(run)
                paths.append(run.folder)
            else:
                left_out.append(f"{run.folder}: {run.run.reason or 'it holds no trace'}")
    told = _differing([_facts(run) for run in recorded])
    if len(recorded) < len(paths) or len(set(told)) < len(told):
        told = labels(paths)
    return Found(tuple(paths), tuple(told), tuple(left_out))


def _facts(run: RecordedRun) -> Mapping[str, Any]:
    workload = run.run.workload
    if run.run.point or workload is None:
        return run.run.point
    told = {"framework": workload.framework, "network": workload.network, "batch": workload.batch}
    return {**told, **workload.options}


def _differing(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return of each run its values in which not all runs are alike."""
    names = dict.fromkeys(name for one in facts for name in one)
    several = [name for name in names if len({str(one.get(name)) for one in facts}) > 1]
    return [
        ",".join(f"{name}={one[name]}" for name in several if name in one) or "?" for one in facts
    ]
