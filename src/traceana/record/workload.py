"""Recording of a training run of one of the repository's networks."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from traceana.errors import MissingExtraError, ProfilerConflictError
from traceana.files import UNDECODABLE
from traceana.record import Framework, nsys
from traceana.record.inside.process_report import Settings
from traceana.record.outcome import Launch, Outcome, read_reports
from traceana.record.script import on_path
from traceana.runs.run_files import LAYERS_FILE, Profiler, StepTimes, Value, Workload

_OWN: Final = {
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
        return self.wanted or _OWN[self.framework]

    def check(self) -> None:
        """Raise an error if the framework is missing or options conflict with ``record``."""
        for module in _MODULES[self.framework]:
            if importlib.util.find_spec(module) is None:
                raise MissingExtraError(
                    f"--framework {self.framework} needs {module}, not installed in "
                    f"{sys.executable}: pip install 'traceana[workloads]'"
                )
        given = {word.partition("=")[0] for word in self.words}
        if self.profiler is Profiler.NSYS and given & {"--trace", "--log", "--stack"}:
            raise ProfilerConflictError(
                "nsys and the framework's profiler both need CUPTI, which supports one client: "
                "remove --profiler nsys, or remove --trace, --log and --stack"
            )
        if own := given & set(_RECORDING):
            raise ProfilerConflictError(
                f"{', '.join(sorted(own))}: set by record itself; remove it"
            )
        if self.profiler not in (Profiler.NSYS, Profiler.NONE, _OWN[self.framework]):
            raise ProfilerConflictError(
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
        inside, *others = path["PYTHONPATH"].split(os.pathsep)
        path["PYTHONPATH"] = os.pathsep.join([inside, str(self.home), *others])
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
        given = {word.partition("=")[0] for word in self.words}
        return [] if given & {"--ranges", "--compile", "--torchscript"} else ["--ranges", kind]

    def outcome(self, scratch: Path, *, recorded: bool) -> Outcome:
        """Return the outcome from the workload's files."""
        report, damaged = _read(scratch / "workload.json")
        layers = scratch / LAYERS_FILE
        processes, damaged_reports = read_reports(scratch)
        refused = None if report is None else report.refused
        if report is None and not any(one.exception for one in processes):
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
        found = sorted((scratch / "log").rglob("*.xplane.pb"))
        names = (
            ["trace.xplane.pb"]
            if len(found) == 1
            else [f"trace.rank{n}.xplane.pb" for n, _ in enumerate(found)]
        )
        pairs = zip(found, names, strict=True)
        return tuple(path.replace(scratch / name) for path, name in pairs), None


def find_workloads() -> Path:
    """Return the folder of the ``workloads`` package.

    Raises ``MissingExtraError`` if it is not found: an installed traceana does not include it.
    """
    checkout = Path(__file__).resolve().parents[3]
    for folder in (Path.cwd(), *map(Path, sys.path), checkout):
        if (folder / "workloads" / "networks" / "__init__.py").is_file():
            return folder.resolve()
    raise MissingExtraError(
        "the networks of --framework are in traceana's repository, not in the package: run the "
        "command in a clone, or record your own script with 'traceana record -o FOLDER -- python "
        "...'"
    )


def _read(path: Path) -> tuple[_Report | None, tuple[str, ...]]:
    """Return the workload's report, or None if it is missing, or None and a note if damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Report), ()
    except FileNotFoundError:
        return None, ()
    except (*UNDECODABLE, OSError) as error:
        return None, (f"the workload's report is damaged: {error}",)


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
