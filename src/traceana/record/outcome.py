"""A launch of the recorded command and its outcome: process reports, step times, traces."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from traceana.files import UNDECODABLE
from traceana.record.inside.process_report import PREFIX
from traceana.runs.run_files import Gpu, Profiler, StepTimes, Workload


class Launch(msgspec.Struct, frozen=True):
    """A command, and its additional environment variables.

    A profiler that runs the command creates the file ``started`` when it starts the command.
    ``announced``: the processes report when their window is over, while the command goes on.
    """

    words: list[str]
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    started: Path | None = None
    announced: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """The files and reports of a launch in its scratch folder.

    ``times`` are the recorded steps' times, ``without_profiler`` the times of the steps before and
    after them in the same process. ``closed``: all steps of the window are there. ``refused`` is
    the reason why a workload rejected its options, ``why_nothing`` the reason for a missing trace.
    """

    times: StepTimes | None = None
    without_profiler: StepTimes | None = None
    closed: bool = False
    traces: tuple[Path, ...] = ()
    layers: Path | None = None
    workload: Workload | None = None
    images_per_step: int | None = None
    profiler: Profiler | None = None
    refused: str | None = None
    why_nothing: str = ""
    notes: tuple[str, ...] = ()
    processes: tuple[ProcessReport, ...] = ()


class Subject(Protocol):
    """A command that can be launched with and without a profiler."""

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line of the user."""
        ...

    @property
    def profiler(self) -> Profiler | None:
        """The profiler, None if it depends on the imported framework."""
        ...

    def check(self) -> None:
        """Raise errors that can be found before the launch."""
        ...

    def launch(self, scratch: Path, *, recorded: bool) -> Launch:
        """Return the command that writes its files to ``scratch``."""
        ...

    def outcome(self, scratch: Path, *, recorded: bool) -> Outcome:
        """Return the outcome of a launch from its files in ``scratch``."""
        ...


class Problem(msgspec.Struct, frozen=True):
    """The cause of a recording's end: ``kind`` is ``conflict``, ``no space`` or ``profiler``."""

    kind: str
    text: str


class Raised(msgspec.Struct, frozen=True):
    """The exception that ended a process."""

    type: str
    text: str


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one process.

    ``steps_begun`` is a lower bound of its steps, reported before it ends; ``steps_taken`` is their
    number, reported after its end or its window. ``times`` are the recorded steps' times, or all
    times without a profiler, ``without_profiler`` those before and after the recorded steps.
    ``closed``: its window is over. ``stopped``: it exited after its window as requested.
    """

    executable: str
    framework: str | None = None
    steps_begun: int | None = None
    steps_taken: int | None = None
    times: StepTimes | None = None
    without_profiler: StepTimes | None = None
    closed: bool = False
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


def read_reports(folder: Path) -> tuple[tuple[ProcessReport, ...], tuple[str, ...]]:
    """Return the reports in ``folder``, and a note for each that cannot be read.

    Training processes are first, in order of their ranks.
    """
    reports, notes = [], []
    for path in sorted(folder.glob(f"{PREFIX}*.json")):
        try:
            reports.append(msgspec.json.decode(path.read_bytes(), type=ProcessReport))
        except (*UNDECODABLE, OSError) as error:
            # Usually the process was killed while it wrote the report.
            process = path.stem.removeprefix(PREFIX)
            notes.append(f"the report of process {process} is damaged: {error}")

    def order(report: ProcessReport) -> tuple[bool, int]:
        is_training = report.steps_taken or report.steps_begun
        return not is_training, report.rank or 0

    return tuple(sorted(reports, key=order)), tuple(notes)
