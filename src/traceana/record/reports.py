"""Reads what the recorded processes report (see ``inside/report.py``)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from traceana.record.inside.report import PREFIX
from traceana.runs.model import Gpu, StepTimes


class Problem(msgspec.Struct, frozen=True):
    """What ended a recording: ``kind`` is ``conflict``, ``no space`` or ``profiler``."""

    kind: str
    text: str


class Raised(msgspec.Struct, frozen=True):
    """The exception that ended a process."""

    type: str
    text: str


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """One process, as it told itself. ``stopped``: it was told to exit after its window."""

    executable: str
    framework: str | None = None
    steps_taken: int | None = None
    times: StepTimes | None = None
    images_per_step: int | None = None
    trace: str | None = None
    rank: int | None = None
    world_size: int | None = None
    notes: tuple[str, ...] = ()
    problem: Problem | None = None
    exception: Raised | None = None
    stopped: bool = False
    python: str | None = None
    packages: dict[str, str] = {}
    libraries: dict[str, str] = {}
    threads: int | None = None
    gpus: tuple[Gpu, ...] = ()


def read_reports(folder: Path) -> tuple[ProcessReport, ...]:
    """Return the reports in ``folder``: of those that trained first, in order of their ranks."""
    found = []
    for path in sorted(folder.glob(f"{PREFIX}*.json")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=ProcessReport))
        except (msgspec.DecodeError, OSError):
            # Of a process that was killed while it wrote; what it would say is not known.
            continue
    return tuple(sorted(found, key=lambda one: (not one.steps_taken, one.rank or 0)))
