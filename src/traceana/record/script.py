"""Recording of an unmodified script."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from traceana.errors import ProfilerConflictError
from traceana.record import nsys
from traceana.record.inside.process_report import Settings
from traceana.record.outcome import Launch, Outcome, ProcessReport, read_reports
from traceana.runs.run_files import LAYERS_FILE, Profiler

WARM_UP: Final = 5
STEPS: Final = 10
_INSIDE: Final = Path(__file__).parent / "inside" / "on_path"
_OF_FRAMEWORK: Final = {
    "torch": Profiler.TORCH,
    "tensorflow": Profiler.TENSORFLOW,
    "jax": Profiler.JAX,
}
_STEP: Final = {
    "torch": "a call of an optimizer's step()",
    "tensorflow": "a call of the function that takes a gradient",
    "jax": "a call of the jitted function that takes a gradient",
}


class Script(msgspec.Struct, frozen=True):
    """The command ``words``; with ``stop`` it ends after the window.

    The launch without a profiler always ends after the window, because only its step times are
    needed.
    """

    words: tuple[str, ...]
    profiler: Profiler | None
    warm_up: int = WARM_UP
    steps: int = STEPS
    stop: bool = False

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line of the user."""
        return self.words

    def check(self) -> None:
        """Raise ``ProfilerConflictError`` if the command is a profiler."""
        program = Path(self.words[0]).name
        if program in ("nsys", "ncu") and self.profiler is not Profiler.NONE:
            raise ProfilerConflictError(
                f"the command runs {program} itself: remove it and add --profiler nsys, or run it "
                "without traceana and open its report"
            )

    def launch(self, scratch: Path, *, recorded: bool) -> Launch:
        """Return the command with the profiler, or with step counting only."""
        profiler = self.profiler if recorded else Profiler.NONE
        settings = Settings(
            folder=str(scratch),
            profiler="auto" if profiler is None else profiler.value,
            warm_up=self.warm_up,
            steps=self.steps,
            stop=self.stop or not recorded,
        )
        launch = Launch(list(self.words), {**on_path(), **settings.environment()})
        if profiler is Profiler.NSYS:
            return nsys.profiled(launch, scratch, window=True)
        return launch

    def outcome(self, scratch: Path, *, recorded: bool) -> Outcome:
        """Return the outcome from the reports of the command's processes."""
        processes, damaged = read_reports(scratch)
        trained = next((one for one in processes if one.steps_taken), None)
        traces = tuple(scratch / one.trace for one in processes if one.trace)
        profiler = self.profiler or _OF_FRAMEWORK.get(trained.framework or "" if trained else "")
        notes = dict.fromkeys(damaged) | {note: None for one in processes for note in one.notes}
        failed = None
        if recorded and self.profiler is Profiler.NSYS:
            traces, failed = nsys.exported(scratch)
        if trained is not None and trained.times is not None:
            taken = len(trained.times.steps_ns)
            if recorded and taken < self.steps:
                notes[f"{taken} of {self.steps} steps recorded: the script ended"] = None
        layers = scratch / LAYERS_FILE
        return Outcome(
            times=None if trained is None else trained.times,
            traces=tuple(path for path in traces if path.is_file()),
            layers=layers if layers.is_file() else None,
            images_per_step=None if trained is None else _batch(trained, processes),
            profiler=profiler,
            why_nothing=self._why_nothing(processes, failed),
            notes=tuple(notes),
            processes=processes,
        )

    def _why_nothing(self, processes: Sequence[ProcessReport], failed: str | None) -> str:
        for one in processes:
            if one.problem is not None:
                return one.problem.text
        known = next((one for one in processes if one.framework is not None), None)
        if known is None or known.framework is None:
            return (
                "the command started no Python process that imports torch, tensorflow or jax, or "
                "one that ignores PYTHONPATH (python -E, -I)"
            )
        if known.times is not None:
            return f"{len(known.times.steps_ns)} steps ran, but {failed or 'no trace was written'}"
        if known.steps_taken:
            return (
                f"the script ended after {known.steps_taken} steps, before the window "
                f"(--warm-up {self.warm_up}): use a smaller --warm-up"
            )
        wanted = self.profiler
        if wanted in _OF_FRAMEWORK.values() and wanted is not _OF_FRAMEWORK[known.framework]:
            return (
                f"the script trains with {known.framework}, but --profiler is {wanted}: remove "
                "--profiler"
            )
        return (
            f"the script imported {known.framework} but ran no training step "
            f"({_STEP[known.framework]}); for inference, run it under a profiler and open its trace"
        )


def _batch(trained: ProcessReport, processes: Sequence[ProcessReport]) -> int | None:
    """Return the examples per step of all ranks, None unless every rank reported them."""
    if trained.world_size is None:
        return trained.images_per_step
    given = {one.rank: one.images_per_step for one in processes if one.rank is not None}
    known = [batch for batch in given.values() if batch is not None]
    return sum(known) if len(known) == trained.world_size else None


def on_path() -> dict[str, str]:
    """Return the PYTHONPATH that loads the recording into Python processes."""
    existing = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(_INSIDE), *([existing] if existing else [])])}
