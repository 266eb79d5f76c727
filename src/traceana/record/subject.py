"""What is recorded, a workload or a user's script, as one run of it looks from outside."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from traceana.record.reports import ProcessReport
from traceana.runs.model import Profiler, StepTimes, Workload


@dataclass(frozen=True)
class Launch:
    """A command, and what is added to the environment for it."""

    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a launch left in its scratch folder.

    ``refused`` is why a workload did not take its options, ``why_nothing`` why there is no trace.
    """

    times: StepTimes | None = None
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
    """A command that can be launched with a profiler and without."""

    @property
    def argv(self) -> tuple[str, ...]:
        """The command as it was given."""
        ...

    @property
    def profiler(self) -> Profiler | None:
        """The profiler, None where the framework that shows up decides."""
        ...

    def check(self) -> None:
        """Raise what can be known to fail before anything is run."""
        ...

    def launch(self, scratch: Path, *, recorded: bool) -> Launch:
        """Return the command that leaves its files in ``scratch``."""
        ...

    def outcome(self, scratch: Path, *, recorded: bool) -> Outcome:
        """Return what a launch left in ``scratch``."""
        ...
