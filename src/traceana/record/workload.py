"""A training run of the repository's own networks."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from traceana.errors import MissingExtraError, ProfilerConflictError
from traceana.record import nsys
from traceana.record.framework import Framework
from traceana.record.inside.settings import Settings
from traceana.record.reports import read_reports
from traceana.record.script import on_path
from traceana.record.subject import Launch, Outcome
from traceana.runs import model
from traceana.runs.model import Profiler, StepTimes, Value

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
"""Options of the workloads that ``record`` gives itself."""


class _Report(msgspec.Struct, frozen=True):
    framework: str
    options: dict[str, Value] | None = None
    refused: str | None = None
    times: StepTimes | None = None


@dataclass(frozen=True)
class WorkloadRun:
    """``python -m workloads.FRAMEWORK WORDS``; ``home`` is the folder that ``workloads`` is in."""

    framework: Framework
    words: tuple[str, ...]
    home: Path
    wanted: Profiler | None = None

    @property
    def argv(self) -> tuple[str, ...]:
        """The command as one would type it."""
        return ("python", "-m", f"workloads.{self.framework}", *self.words)

    @property
    def profiler(self) -> Profiler:
        """The framework's own unless another was asked for."""
        return self.wanted or _OWN[self.framework]

    def check(self) -> None:
        """Raise where the framework is missing, or options are ``record``'s own."""
        for module in _MODULES[self.framework]:
            if importlib.util.find_spec(module) is None:
                raise MissingExtraError(
                    f"--framework {self.framework} needs {module}, which {sys.executable} has not: "
                    "pip install 'traceana[workloads]'"
                )
        given = {word.partition("=")[0] for word in self.words}
        if self.profiler is Profiler.NSYS and given & {"--trace", "--log", "--stack"}:
            raise ProfilerConflictError(
                "nsys and the framework's own profiler both want CUPTI, which serves one: leave "
                "--profiler nsys or the framework's recording out"
            )
        if own := given & set(_RECORDING):
            raise ProfilerConflictError(
                f"{', '.join(sorted(own))}: record gives it to the workload itself, leave it out"
            )
        if self.profiler not in (Profiler.NSYS, Profiler.NONE, _OWN[self.framework]):
            raise ProfilerConflictError(
                f"--profiler {self.profiler} does not record {self.framework}: leave it out"
            )

    def launch(self, scratch: Path, *, recorded: bool) -> Launch:
        """Return the workload's command; it records itself, with its own options."""
        words = [sys.executable, "-m", f"workloads.{self.framework}", *self.words]
        words += ["--report", str(scratch / "workload.json")]
        if recorded:
            words += ["--manifest", str(scratch / model.LAYERS_FILE), *self._recording(scratch)]
        settings = Settings(folder=str(scratch), mark=False)
        path = on_path()
        # Behind the hook, before what the user has: a folder named workloads may lie anywhere.
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
        """Ranges around layers, unless the user chose, or nothing runs hooks."""
        given = {word.partition("=")[0] for word in self.words}
        return [] if given & {"--ranges", "--compile", "--torchscript"} else ["--ranges", kind]

    def outcome(self, scratch: Path, *, recorded: bool) -> Outcome:
        """Return what the workload wrote."""
        report = _read(scratch / "workload.json")
        layers = scratch / model.LAYERS_FILE
        processes = read_reports(scratch)
        refused = None if report is None else report.refused
        if report is None and not any(one.exception for one in processes):
            refused = "it says why above"
        return Outcome(
            times=None if report is None else report.times,
            traces=self._traces(scratch) if recorded else (),
            layers=layers if layers.is_file() else None,
            workload=None if report is None else _workload(report),
            images_per_step=None if report is None else _batch(report),
            profiler=self.profiler,
            refused=refused,
            why_nothing=f"{self.profiler} left no trace",
            processes=processes,
        )

    def _traces(self, scratch: Path) -> tuple[Path, ...]:
        if self.profiler is Profiler.NSYS:
            return nsys.exported(scratch)
        if self.profiler is Profiler.TORCH:
            return tuple(sorted(scratch.glob("trace*.json.gz")))
        found = sorted((scratch / "log").rglob("*.xplane.pb"))
        names = (
            ["trace.xplane.pb"]
            if len(found) == 1
            else [f"trace.rank{n}.xplane.pb" for n, _ in enumerate(found)]
        )
        return tuple(path.replace(scratch / name) for path, name in zip(found, names, strict=True))


def find_workloads() -> Path:
    """Return the folder that the ``workloads`` package is in.

    Raises ``MissingExtraError``: an installed traceana comes without the networks.
    """
    checkout = Path(__file__).resolve().parents[3]
    for place in (Path.cwd(), *map(Path, sys.path), checkout):
        if (place / "workloads" / "networks" / "__init__.py").is_file():
            return place.resolve()
    raise MissingExtraError(
        "the networks of --framework are in traceana's repository, not in the package: run this in "
        "a clone of it, or record a script of yours with 'traceana record -o FOLDER -- python ...'"
    )


def _read(path: Path) -> _Report | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Report)
    except (OSError, msgspec.DecodeError):
        return None


def _workload(report: _Report) -> model.Workload | None:
    options = report.options
    network = (options or {}).get("network")
    batch = _batch(report)
    if options is None or not isinstance(network, str) or batch is None:
        return None
    return model.Workload(framework=report.framework, network=network, batch=batch, options=options)


def _batch(report: _Report) -> int | None:
    batch = (report.options or {}).get("batch")
    return batch if isinstance(batch, int) else None
