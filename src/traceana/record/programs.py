"""What is recorded: one of the repository's networks, or an unmodified script."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from traceana.errors import MissingDependencyError, RecordingError, how_to_install
from traceana.files import UNDECODABLE
from traceana.record import Framework, nsys
from traceana.record.inside.process_report import Settings
from traceana.record.outcome import Launch, Outcome, ProcessReport, read_reports
from traceana.runs.run_files import LAYERS_FILE, Profiler, StepTimes, Value, Workload

_PROFILER_OF: Final = {
    Framework.PYTORCH: Profiler.TORCH,
    Framework.KERAS: Profiler.TENSORFLOW,
    Framework.JAX: Profiler.JAX,
}
_MODULES: Final = {
    Framework.PYTORCH: ("torch",),
    Framework.KERAS: ("tensorflow", "keras"),
    Framework.JAX: ("jax",),
}
_RECORDING: Final = ("--trace", "--log", "--report", "--manifest", "--cuda-profiler")
"""Options of the workloads that ``record`` sets."""


class _Report(msgspec.Struct, frozen=True):
    framework: str
    options: dict[str, Value] | None = None
    refused: str | None = None
    times: StepTimes | None = None


class WorkloadRun(msgspec.Struct, frozen=True):
    """``python -m workloads.FRAMEWORK WORDS``; ``home`` is the folder of ``workloads``."""

    framework: Framework
    words: tuple[str, ...]
    home: Path
    wanted: Profiler | None = None

    @property
    def argv(self) -> tuple[str, ...]:
        """The equivalent command line."""
        return ("python", "-m", f"workloads.{self.framework}", *self.words)

    @property
    def profiler(self) -> Profiler:
        """The framework's own profiler unless another was selected."""
        return self.wanted or _PROFILER_OF[self.framework]

    def check(self) -> None:
        """Raise an error if the framework is missing or options conflict with ``record``."""
        for module in _MODULES[self.framework]:
            if importlib.util.find_spec(module) is None:
                raise MissingDependencyError(
                    f"--framework {self.framework} needs {module}, not installed in "
                    f"{sys.executable}: {how_to_install('workloads')}"
                )
        options = {word.partition("=")[0] for word in self.words}
        if self.profiler is Profiler.NSYS and options & {"--trace", "--log", "--stack"}:
            raise RecordingError(
                "nsys and the framework's profiler both need CUPTI, which supports one client: "
                "remove --profiler nsys, or remove --trace, --log and --stack"
            )
        if conflicts := options & set(_RECORDING):
            raise RecordingError(f"{', '.join(sorted(conflicts))}: set by record itself; remove it")
        if self.profiler not in (Profiler.NSYS, Profiler.NONE, _PROFILER_OF[self.framework]):
            raise RecordingError(
                f"--profiler {self.profiler} does not record {self.framework}: remove it"
            )

    def launch(self, scratch: Path, *, recorded: bool) -> Launch:
        """Return the workload's command, with its own options for recording."""
        words = [sys.executable, "-m", f"workloads.{self.framework}", *self.words]
        words += ["--report", str(scratch / "workload.json")]
        if recorded:
            words += ["--manifest", str(scratch / LAYERS_FILE), *self._recording(scratch)]
        settings = Settings(folder=str(scratch), mark=False)
        path = on_path()
        # After the recording's folder and before the user's, where another folder may be named
        # workloads.
        inside, *of_user = path["PYTHONPATH"].split(os.pathsep)
        path["PYTHONPATH"] = os.pathsep.join([inside, str(self.home), *of_user])
        launch = Launch(words, {**path, **settings.environment()})
        if recorded and self.profiler is Profiler.NSYS:
            return nsys.profiled(launch, scratch, window=False)
        return launch

    def _recording(self, scratch: Path) -> list[str]:
        match self.profiler:
            case Profiler.TORCH:
                return ["--trace", str(scratch / "trace.json.gz"), *self._ranges("record-function")]
            case Profiler.TENSORFLOW | Profiler.JAX:
                return ["--log", str(scratch / "log")]
            case Profiler.NSYS if self.framework is Framework.PYTORCH:
                return self._ranges("nvtx")
            case _:
                return []

    def _ranges(self, kind: str) -> list[str]:
        """Return the option for ranges around layers, empty if given or if hooks do not run."""
        options = {word.partition("=")[0] for word in self.words}
        return [] if options & {"--ranges", "--compile", "--torchscript"} else ["--ranges", kind]

    def outcome(self, scratch: Path, *, recorded: bool) -> Outcome:
        """Return the outcome from the workload's files."""
        report: _Report | None = None
        damaged: tuple[str, ...] = ()
        try:
            report = msgspec.json.decode((scratch / "workload.json").read_bytes(), type=_Report)
        except FileNotFoundError:
            pass
        except (*UNDECODABLE, OSError) as error:
            damaged = (f"the workload's report is damaged: {error}",)
        layers = scratch / LAYERS_FILE
        processes, damaged_reports = read_reports(scratch)
        refused = None if report is None else report.refused
        if report is None and not any(process.exception for process in processes):
            refused = "see the message above"
        traces, failed = self._traces(scratch) if recorded else ((), None)
        return Outcome(
            times=None if report is None else report.times,
            traces=traces,
            layers=layers if layers.is_file() else None,
            workload=None if report is None else _workload(report),
            images_per_step=None if report is None else _batch(report),
            profiler=self.profiler,
            refused=refused,
            why_nothing=failed or f"{self.profiler} wrote no trace",
            notes=(*damaged, *damaged_reports),
            processes=processes,
        )

    def _traces(self, scratch: Path) -> tuple[tuple[Path, ...], str | None]:
        """Return the traces, or no path and the reason."""
        if self.profiler is Profiler.NSYS:
            return nsys.exported(scratch)
        if self.profiler is Profiler.TORCH:
            return tuple(sorted(scratch.glob("trace*.json.gz"))), None
        logs = sorted((scratch / "log").rglob("*.xplane.pb"))
        if len(logs) == 1:
            return (logs[0].replace(scratch / "trace.xplane.pb"),), None
        named = ((log, f"trace.rank{rank}.xplane.pb") for rank, log in enumerate(logs))
        return tuple(log.replace(scratch / name) for log, name in named), None


def find_workloads() -> Path:
    """Return the folder of the ``workloads`` package.

    Raises ``MissingDependencyError`` if it is not found: an installed traceana does not include it.
    """
    checkout = Path(__file__).resolve().parents[3]
    for folder in (Path.cwd(), *map(Path, sys.path), checkout):
        if (folder / "workloads" / "networks" / "__init__.py").is_file():
            return folder.resolve()
    raise MissingDependencyError(
        "the networks of --framework are in traceana's repository, not in the package: run the "
        "command in a clone, or record your own script with 'traceana record -o FOLDER -- python "
        "...'"
    )


def _workload(report: _Report) -> Workload | None:
    options = report.options
    network = (options or {}).get("network")
    batch = _batch(report)
    if options is None or not isinstance(network, str) or batch is None:
        return None
    return Workload(framework=report.framework, network=network, batch=batch, options=options)


def _batch(report: _Report) -> int | None:
    batch = (report.options or {}).get("batch")
    return batch if isinstance(batch, int) else None


WARM_UP: Final = 5
STEPS: Final = 10
BEFORE: Final = 2
"""Steps that are timed before the recorded ones: few, since a short script has few. As many as are
recorded are timed after them."""
_INSIDE: Final = Path(__file__).parent / "inside" / "on_path"
_PROFILER_BY_MODULE: Final = {
    "torch": Profiler.TORCH,
    "tensorflow": Profiler.TENSORFLOW,
    "jax": Profiler.JAX,
}
_STEP: Final = {
    "torch": "a call of an optimizer's step(), or without any optimizer of one module under "
    "torch.no_grad(); the optimizers of Keras are none of PyTorch's",
    "tensorflow": "a call of the tf.function that takes a gradient, or of one tf.function",
    "jax": "a call of the jitted function that takes a gradient, or of one jitted function",
}


class Script(msgspec.Struct, frozen=True):
    """The command ``words``; with ``stop`` it ends after the window.

    With ``timed``, steps around the recorded ones are timed without the profiler. With ``lines``
    the lines of its own files are recorded, and with ``source`` these files are kept. A launch
    without a profiler ends after the window, because only its step times are needed.
    """

    words: tuple[str, ...]
    profiler: Profiler | None
    warm_up: int = WARM_UP
    steps: int = STEPS
    stop: bool = False
    timed: bool = False
    lines: bool = True
    source: bool = True

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line of the user."""
        return self.words

    @property
    def _timed_inside(self) -> bool:
        """Whether the recorded process times steps without its profiler: nsys is attached to all of
        them."""
        return self.timed and self.profiler not in (Profiler.NSYS, Profiler.NONE)

    def check(self) -> None:
        """Raise ``RecordingError`` if the command is a profiler."""
        program = Path(self.words[0]).name
        if program in ("nsys", "ncu") and self.profiler is not Profiler.NONE:
            raise RecordingError(
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
            before=BEFORE if recorded and self._timed_inside else 0,
            after=self.steps if recorded and self._timed_inside else 0,
            stop=self.stop or not recorded,
            parent=os.getpid(),
            lines=self.lines and recorded,
            source=self.source and recorded,
        )
        announced = profiler not in (Profiler.NSYS, Profiler.NONE)
        environment = {**on_path(), **settings.environment()}
        launch = Launch(list(self.words), environment, announced=announced)
        if profiler is Profiler.NSYS:
            return nsys.profiled(launch, scratch, window=True)
        return launch

    def outcome(self, scratch: Path, *, recorded: bool) -> Outcome:
        """Return the outcome from the reports of the command's processes."""
        processes, damaged = read_reports(scratch)
        trained = next((process for process in processes if process.steps_begun), None)
        traces = tuple(scratch / process.trace for process in processes if process.trace)
        profiler = self.profiler or _PROFILER_BY_MODULE.get(
            trained.framework or "" if trained else ""
        )
        notes = dict.fromkeys(damaged) | dict.fromkeys(
            note for process in processes for note in process.notes
        )
        failed = None
        if recorded and self.profiler is Profiler.NSYS:
            traces, failed = nsys.exported(scratch)
        taken = 0
        if trained is not None and trained.times is not None:
            taken = len(trained.times.steps_ns)
            if recorded and taken < self.steps:
                less = f" (--no-baseline: {BEFORE + 1} more)" if self._timed_inside else ""
                notes[f"{taken} of {self.steps} steps recorded: the script ended{less}"] = None
        layers = scratch / LAYERS_FILE
        return Outcome(
            times=None if trained is None else trained.times,
            without_profiler=None if trained is None else trained.without_profiler,
            closed=_is_closed(processes, self.steps),
            traces=tuple(path for path in traces if path.is_file()),
            layers=layers if layers.is_file() else None,
            images_per_step=None if trained is None else batch_of_script(trained, processes),
            profiler=profiler,
            why_nothing=self._why_nothing(processes, failed),
            notes=tuple(notes),
            processes=processes,
        )

    def _why_nothing(self, processes: Sequence[ProcessReport], failed: str | None) -> str:
        """Return the most likely reason why the command left no trace."""
        for process in processes:
            if process.problem is not None:
                return process.problem.text
        trainer = next((process for process in processes if process.framework is not None), None)
        if trainer is None or trainer.framework is None:
            return (
                "the command started no Python process that imports torch, tensorflow or jax, or "
                "one that ignores PYTHONPATH (python -E, -I)"
            )
        if trainer.times is not None:
            return (
                f"{len(trainer.times.steps_ns)} steps ran, but {failed or 'no trace was written'}"
            )
        if trainer.steps_taken:
            fewer = self._timed_inside and trainer.steps_taken > self.warm_up
            less = ", or --no-baseline" if fewer else ""
            return (
                f"the script ended after {trainer.steps_taken} steps, before the window "
                f"(--warm-up {self.warm_up}): use a smaller --warm-up{less}"
            )
        if trainer.steps_begun is not None:
            in_window = trainer.steps_begun >= self.warm_up
            option = f"--steps ({self.steps})" if in_window else f"--warm-up ({self.warm_up})"
            when = "in its window" if in_window else "during warm-up"
            return (
                f"the process ended by os._exit or a signal {when}, before its trace was written: "
                f"use a smaller {option}, so that the window ends earlier"
            )
        wanted = self.profiler
        if (
            wanted in _PROFILER_BY_MODULE.values()
            and wanted is not _PROFILER_BY_MODULE[trainer.framework]
        ):
            return (
                f"the script trains with {trainer.framework}, but --profiler is {wanted}: remove "
                "--profiler"
            )
        return (
            f"the script imported {trainer.framework} but ran no step that is seen "
            f"({_STEP[trainer.framework]}): call traceana.recorder's step() in its loop"
        )


def _is_closed(processes: Sequence[ProcessReport], steps: int) -> bool:
    """Return whether the processes that train have recorded ``steps`` steps, and are done."""
    training = [process for process in processes if process.steps_begun]
    ranks = max((process.world_size or 1 for process in training), default=1)
    return len(training) >= ranks and all(
        process.closed and process.times is not None and len(process.times.steps_ns) >= steps
        for process in training
    )


def batch_of_script(trained: ProcessReport, processes: Sequence[ProcessReport]) -> int | None:
    """Return the examples per step of all ranks, None unless every rank reported them."""
    if trained.world_size is None:
        return trained.images_per_step
    by_rank = {
        process.rank: process.images_per_step for process in processes if process.rank is not None
    }
    batches = [batch for batch in by_rank.values() if batch is not None]
    return sum(batches) if len(batches) == trained.world_size else None


def on_path() -> dict[str, str]:
    """Return the PYTHONPATH that loads the recording into Python processes."""
    existing = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(_INSIDE), *([existing] if existing else [])])}
