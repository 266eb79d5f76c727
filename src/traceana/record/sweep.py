"""Records many runs that differ in an option or several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from traceana.errors import BadSweepError, CannotWriteError
from traceana.record.folder import check_free, remove, write_json
from traceana.record.one import Request, record
from traceana.record.subject import Subject
from traceana.runs.find import is_run, is_sweep
from traceana.runs.model import SWEEP_FILE, Axis, Point, Status, Sweep
from traceana.runs.read import RecordedRun, read_run, read_sweep

SubjectOf = Callable[[Point], Subject]


@dataclass(frozen=True)
class SweepRequest:
    """The ``axes`` and their ``points``; ``argv`` is what is recorded at each of them."""

    axes: tuple[Axis, ...]
    points: tuple[Point, ...]
    argv: tuple[str, ...]
    profiler: str
    force: bool = False
    resume: bool = False


def record_sweep(
    subject_of: SubjectOf,
    target: Path,
    wanted: SweepRequest,
    request: Request,
    before: Callable[[int, Point], None],
) -> Iterator[RecordedRun]:
    """Record a run at each point, and yield it; ``before`` is called with each that is to be made.

    Runs that die are kept with their reason, and the sweep goes on. Runs of a sweep that is resumed
    stay as they are, other than those that were interrupted. Raises as ``record`` does, on what
    would stop every other run too.
    """
    subjects = [(point, subject_of(point)) for point in wanted.points]
    for _, subject in subjects:
        subject.check()
    _prepare(target, wanted)
    for number, (point, subject) in enumerate(subjects):
        folder = target / point.folder
        if is_run(folder):
            made = read_run(folder)
            if made.run.status is not Status.INTERRUPTED:
                yield made
                continue
        before(number, point)
        yield record(subject, folder, replace(request, point=point.values, keep_failures=True))
    aside = _replaced(target)
    if aside.exists():
        remove(aside)


def _prepare(target: Path, wanted: SweepRequest) -> None:
    """Have a folder with ``traceana-sweep.json`` in it, new or as it was."""
    sweep = Sweep(
        axes=wanted.axes,
        points=wanted.points,
        argv=wanted.argv,
        profiler=wanted.profiler,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if wanted.resume and is_sweep(target):
        before = read_sweep(target)
        if msgspec.structs.replace(before, started_at=sweep.started_at) != sweep:
            raise BadSweepError(
                f"{target} is a sweep of other values or of another command: give those of its "
                f"{SWEEP_FILE}, or choose another name"
            )
        return
    check_free(target, force=wanted.force)
    try:
        if target.exists():
            # The former sweep stays until this one is whole.
            aside = _replaced(target)
            if aside.exists():
                remove(target)
            else:
                target.rename(aside)
        target.mkdir(parents=True)
        write_json(target / SWEEP_FILE, sweep)
    except OSError as error:
        raise CannotWriteError(f"cannot write {target}: {error.strerror}") from error


def _replaced(target: Path) -> Path:
    return target.with_name(f"{target.name}.replaced")
