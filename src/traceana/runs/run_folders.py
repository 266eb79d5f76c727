"""Runs and sweeps in folders: reading, finding, and the runs that differ in the batch only."""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from traceana.errors import (
    CorruptError,
    NoSuchSelectionError,
    NotFoundError,
    SweepWarning,
    TraceanaError,
    UnknownFormatError,
)
from traceana.files import UNDECODABLE, is_folder
from traceana.plain_text import as_unicode
from traceana.runs.run_files import (
    ENVIRONMENT_FILE,
    LAYERS_FILE,
    PARTIAL,
    RUN_FILE,
    SWEEP_FILE,
    TIMING_FILE,
    VERSION,
    BatchSeries,
    Environment,
    Run,
    Status,
    StepTimes,
    Sweep,
    Timing,
    Value,
    is_plain_name,
)

File = TypeVar("File", bound=msgspec.Struct)


class RecordedRun(msgspec.Struct, frozen=True):
    """A run's folder and the content of its ``traceana-run.json``.

    The other files are read on demand. :meth:`timing` and :meth:`environment` raise the errors of
    :func:`read_run`, and return None if the file does not exist.
    """

    folder: Path
    run: Run

    @property
    def complete(self) -> bool:
        """Whether the run is complete."""
        return self.run.status is Status.COMPLETE

    @property
    def layers(self) -> Path | None:
        """The path of the layer manifest, None if it does not exist."""
        path = self.folder / LAYERS_FILE
        return path if path.is_file() else None

    def timing(self) -> Timing | None:
        """Return the step times, or None."""
        return _read_if_present(self.folder / TIMING_FILE, Timing)

    def environment(self) -> Environment | None:
        """Return the environment of the run, or None."""
        return _read_if_present(self.folder / ENVIRONMENT_FILE, Environment)

    def recorded_with(self) -> dict[str, str]:
        """Return ``started_at``, ``commit``, ``driver``, ``cpu``, and versions by their names.

        What is not known is left out. Raises as :meth:`environment`.
        """
        facts = {"started_at": self.run.started_at}
        environment = self.environment()
        if environment is None:
            return facts
        facts |= environment.packages | environment.libraries | {"cpu": environment.cpu}
        if environment.commit is not None:
            facts["commit"] = environment.commit
        if environment.gpus and environment.gpus[0].driver is not None:
            facts["driver"] = environment.gpus[0].driver
        return facts

    def traces(self) -> list[Path]:
        """Return the paths of the trace, one per rank.

        Raises :class:`NoSuchSelectionError` if the run has no trace.
        """
        if not self.run.traces:
            raise NoSuchSelectionError(f"{self.folder} has no trace: {self._why_no_trace()}")
        return [self.folder / name for name in self.run.traces]

    def _why_no_trace(self) -> str:
        if self.run.status is Status.COMPLETE:
            return "it was recorded without a profiler; record it again without --profiler none"
        ended = "was interrupted" if self.run.status is Status.INTERRUPTED else "failed"
        return f"the run {ended} ({self.run.reason or 'unknown reason'}); record it again"


def read_run(folder: str | os.PathLike[str]) -> RecordedRun:
    """Return the run in ``folder``.

    Raises ``NotFoundError`` if the folder or its file cannot be read, :class:`CorruptError` for an
    unfinished recording, and :class:`UnknownFormatError` if the folder is not a run, or its file is
    damaged or has another version.
    """
    path = Path(folder)
    if not path.exists():
        raise NotFoundError(f"{path} does not exist: check the path")
    check_finished(path)
    if not (path / RUN_FILE).is_file():
        raise UnknownFormatError(
            f"{path} has no {RUN_FILE}, so it is not a recorded run: record one with "
            f"'traceana record -o {path} …'"
        )
    run = _read(path / RUN_FILE, Run)
    if not is_plain_name(run.traces):
        raise UnknownFormatError(
            f"{path / RUN_FILE} contains paths of traces outside its folder: record it again"
        )
    return RecordedRun(path, run)


def read_sweep(folder: str | os.PathLike[str]) -> Sweep:
    """Return the sweep in ``folder``; raises the errors of :func:`read_run`."""
    path = Path(folder)
    if not path.exists():
        raise NotFoundError(f"{path} does not exist: check the path")
    if not (path / SWEEP_FILE).is_file():
        raise UnknownFormatError(
            f"{path} has no {SWEEP_FILE}, so it is not a sweep: record one with "
            f"'traceana record --sweep … -o {path} …'"
        )
    sweep = _read(path / SWEEP_FILE, Sweep)
    if not is_plain_name([point.folder for point in sweep.points]):
        raise UnknownFormatError(
            f"{path / SWEEP_FILE} contains paths of runs outside its folder: record it again"
        )
    return sweep


def check_finished(path: Path) -> None:
    """Raise :class:`CorruptError` if ``path`` is an unfinished recording."""
    if path.name.endswith(PARTIAL) and path.is_dir():
        raise CorruptError(f"{path} is an unfinished recording: wait for it, or record it again")


def _read_if_present(path: Path, kind: type[File]) -> File | None:
    return _read(path, kind) if path.is_file() else None


def _read(path: Path, kind: type[File]) -> File:
    again = "record it again"
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=_Versioned).version
        if version != VERSION:
            raise UnknownFormatError(
                f"{path} has version {version}, and this traceana reads {VERSION}: {again}"
            )
        return msgspec.json.decode(content, type=kind)
    except OSError as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}") from error
    except UNDECODABLE as error:
        message = " ".join(str(error).split())
        raise UnknownFormatError(f"{path} is damaged: {message}; {again}") from None


class _Versioned(msgspec.Struct):
    version: int


def is_run(path: Path) -> bool:
    """Return whether ``path`` is the folder of a finished run."""
    return (path / RUN_FILE).is_file() and not path.name.endswith(PARTIAL)


def is_sweep(path: Path) -> bool:
    """Return whether ``path`` is the folder of a sweep, finished or not."""
    return (path / SWEEP_FILE).is_file()


def find_runs(folders: Iterable[str | os.PathLike[str]]) -> list[RecordedRun]:
    """Return the runs in ``folders``, in their order, failed ones included.

    Each folder is a run; a sweep, with its runs in the order of the points; or a folder of runs
    and sweeps, in the order of their names. Duplicates are returned once. Raises the errors of
    :func:`read_run`, and ``UnknownFormatError`` for a folder without runs.
    """
    runs: dict[Path, RecordedRun] = {}
    for folder in folders:
        path = Path(folder)
        if not path.exists():
            raise NotFoundError(f"{path} does not exist: check the path")
        if not path.is_dir():
            raise UnknownFormatError(
                f"{path} is not a folder: give one that 'traceana record' wrote"
            )
        check_finished(path)
        below = [path] if is_run(path) else runs_below(path)
        if not below:
            raise UnknownFormatError(
                f"{path} contains no recorded run: record one with 'traceana record -o {path} …'"
            )
        for run_folder in below:
            run = read_run(run_folder)
            runs.setdefault(run.folder.resolve(), run)
    return list(runs.values())


def runs_below(path: Path) -> list[Path]:
    """Return the folders of the runs in ``path``, a sweep or a folder of runs and sweeps.

    The runs are not read. Raises ``NotFoundError`` if the folder cannot be listed, and the errors
    of :func:`read_sweep`.
    """
    if is_sweep(path):
        return [run for point in read_sweep(path).points if is_run(run := path / point.folder)]
    runs: list[Path] = []
    try:
        with os.scandir(path) as entries:
            folders = sorted(Path(entry.path) for entry in entries if is_folder(entry))
    except OSError as error:
        raise NotFoundError(f"{path} cannot be listed: {error.strerror}") from error
    for folder in folders:
        if is_run(folder):
            runs.append(folder)
        elif is_sweep(folder):
            runs += runs_below(folder)
    return runs


_LISTED: Final = 8
"""The most points of a sweep that a note lists."""


def missing_runs(folders: Iterable[Path]) -> list[str]:
    """Return a note for each sweep in ``folders`` that has no run at some of its points.

    It lists these points, and has the command that records them. Raises the errors of
    :func:`read_sweep`.
    """
    sweeps: dict[Path, None] = {}
    for path in folders:
        inside = [] if is_run(path) or not path.is_dir() else sorted(path.iterdir())
        for sweep_folder in [path] if is_sweep(path) else filter(is_sweep, inside):
            sweeps[sweep_folder.resolve()] = None
    notes = []
    for path in sweeps:
        name, sweep = as_unicode(path.name), read_sweep(path)
        missing = [point.folder for point in sweep.points if not is_run(path / point.folder)]
        if not missing:
            continue
        listed = ", ".join(missing[:_LISTED])
        if len(missing) > _LISTED:
            listed += f" and {len(missing) - _LISTED} more"
        words = [] if sweep.profiler == "auto" else ["--profiler", sweep.profiler]
        for axis in sweep.axes:
            words += ["--sweep", f"{axis.name}={','.join(axis.values)}"]
        words += ["-o", name, "--resume"]
        workload = not sweep.argv or sweep.argv[0].startswith("--")
        whole = [*sweep.argv, *words] if workload else [*words, "--", *sweep.argv]
        notes.append(
            f"{name}: {len(missing)} of {len(sweep.points)} runs not recorded "
            f"({listed}); record them: traceana record {shlex.join(whole)}"
        )
    return notes


_BATCH: Final = "batch"


def batches_beside(opened: Sequence[str]) -> BatchSeries | None:
    """Return the :func:`batch_series` of the recorded run that a trace was ``opened`` by.

    None for another path, or several, and with a warning if a run cannot be read.
    """
    if len(opened) != 1 or not Path(opened[0]).is_dir():
        return None
    try:
        return batch_series(opened[0])
    except TraceanaError as error:
        warnings.warn(f"batch sweep ignored: {error}", SweepWarning, stacklevel=3)
        return None


def batch_series(folder: str | os.PathLike[str]) -> BatchSeries | None:
    """Return the unprofiled step times of the run ``folder`` and of its siblings, by batch.

    Siblings are the complete runs of its sweep over ``batch`` with the same values on the other
    axes, the same network and the same options. None if ``folder`` is not a run of such a sweep.
    Raises the errors of :func:`~traceana.runs.run_folders.read_run`.
    """
    path = Path(folder).resolve()
    if not is_run(path) or not is_sweep(path.parent):
        return None
    points = {point.folder: point for point in read_sweep(path.parent).points}
    point_of_run = points.get(path.name)
    if point_of_run is None:
        return None
    run = read_run(path)
    batch = _batch(run)
    if batch is None:
        return None
    times: dict[int, StepTimes] = {}
    for point in points.values():
        if _without_batch(point.values) != _without_batch(point_of_run.values):
            continue
        folder = path.parent / point.folder
        if not is_run(folder):
            continue
        sibling = read_run(folder)
        sibling_batch = _batch(sibling)
        timing = sibling.timing()
        if not sibling.complete or sibling_batch is None or timing is None:
            continue
        if timing.without_profiler is not None and _differ_in_batch_only(run, sibling):
            times[sibling_batch] = timing.without_profiler
    return BatchSeries(batch, times)


def _batch(run: RecordedRun) -> int | None:
    """Return the examples per step, None if not recorded."""
    if run.run.workload is not None:
        return run.run.workload.batch
    timing = run.timing()
    return None if timing is None else timing.images_per_step


def _differ_in_batch_only(run: RecordedRun, sibling: RecordedRun) -> bool:
    a, b = run.run.workload, sibling.run.workload
    if a is None or b is None:
        return a is b
    same_network = (a.framework, a.network) == (b.framework, b.network)
    return same_network and _without_batch(a.options) == _without_batch(b.options)


def _without_batch(values: dict[str, str] | dict[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in values.items() if name != _BATCH}
