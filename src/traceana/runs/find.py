"""Which runs there are in the folders that a user names."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from traceana.errors import NotARunError, NotFoundError, UnreadableError
from traceana.runs.model import PARTIAL, RUN_FILE, SWEEP_FILE
from traceana.runs.read import RecordedRun, read_run, read_sweep, refuse_partial


def is_run(path: Path) -> bool:
    """Whether ``path`` is the folder of a run that is over."""
    return (path / RUN_FILE).is_file() and not path.name.endswith(PARTIAL)


def is_sweep(path: Path) -> bool:
    """Whether ``path`` is the folder of a sweep, finished or not."""
    return (path / SWEEP_FILE).is_file()


def find_runs(folders: Iterable[str | os.PathLike[str]]) -> list[RecordedRun]:
    """Return the runs in ``folders``, in their order, also those that died.

    Each is a run; a sweep, whose runs come in the order of their points, those missing that were
    not made yet; or a folder of runs and sweeps, in the order of their names. A run that is named
    twice is returned once. Raises the errors of :func:`~traceana.runs.read.read_run`, and
    ``NotARunError`` for a folder without a single run.
    """
    found: dict[Path, RecordedRun] = {}
    for folder in folders:
        path = Path(folder)
        if not path.exists():
            raise NotFoundError(f"{path} does not exist: check the path")
        if not path.is_dir():
            raise NotARunError(f"{path} is no folder: name one that 'traceana record' made")
        refuse_partial(path)
        runs = _runs(path)
        if not runs:
            raise NotARunError(
                f"{path} holds no recorded run: make one with 'traceana record -o {path} …'"
            )
        for run in runs:
            found.setdefault(run.folder.resolve(), run)
    return list(found.values())


def runs_below(path: Path) -> list[Path]:
    """Return the folders of the runs of the sweep or folder of runs ``path``; none are read.

    Raises ``UnreadableError`` where the folder may not be listed, and on a bad
    ``traceana-sweep.json``.
    """
    if is_sweep(path):
        return [run for point in read_sweep(path).points if is_run(run := path / point.folder)]
    found: list[Path] = []
    try:
        inside = sorted(one for one in path.iterdir() if one.is_dir())
    except OSError as error:
        raise UnreadableError(f"{path} cannot be listed: {error.strerror}") from error
    for one in inside:
        found += [one] if is_run(one) else runs_below(one) if is_sweep(one) else []
    return found


def _runs(path: Path) -> list[RecordedRun]:
    return [read_run(one) for one in ([path] if is_run(path) else runs_below(path))]
