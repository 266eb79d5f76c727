"""The settings of a recorded process, and its report file."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

VARIABLE = "TRACEANA_RECORD"


@dataclass(frozen=True)
class Settings:
    """The settings of a recorded process.

    Files are written to ``folder``. ``profiler`` is ``auto``, ``torch``, ``tensorflow``, ``jax``,
    ``nsys`` or ``none``. After ``warm_up`` steps, ``before`` steps are timed without the profiler,
    ``steps`` are recorded, and ``after`` steps are timed again; with ``stop`` the script ends then.
    Without ``mark`` the script records itself, and only its environment is reported. ``parent`` is
    the process that records, 0 for none. With ``lines`` the lines of the program's own files are
    recorded, and with ``source`` these files are kept.
    """

    folder: str
    profiler: str = "none"
    warm_up: int = 5
    steps: int = 10
    before: int = 0
    after: int = 0
    stop: bool = False
    mark: bool = True
    parent: int = 0
    lines: bool = False
    source: bool = False

    def environment(self) -> dict[str, str]:
        """Return the environment variable with the settings."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def of_environment(cls) -> Settings | None:
        """Return the settings of this process, None if it is not recorded."""
        try:
            return cls(**json.loads(os.environ[VARIABLE]))
        except (KeyError, TypeError, ValueError):
            return None


PREFIX = "process-"
EXITING = "exiting-"
"""Prefixes of file names, before the process id."""
_RESERVE = 1 << 14
"""Bytes reserved on the disk for a last report with the text of an exception."""


class Report:
    """The report of this process, written to ``process-PID.json`` at each change."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.folder
        self._process = os.getpid()
        self._facts: dict[str, Any] = {}
        self._closing: list[Callable[[], None]] = []
        self.closed_at_exit = False
        """Whether the end of the process closed a window, which calls much of the framework."""

    def reset(self) -> None:
        """Clear the report, in a forked child."""
        self._process = os.getpid()
        self._facts = {}
        self._closing = []

    def add(self, **facts: Any) -> None:
        """Add ``facts`` and write the report; notes are appended."""
        if "notes" in facts:
            facts["notes"] = [*self._facts.get("notes", []), *facts["notes"]]
        self._facts.update(facts)
        self._write()

    @property
    def has_steps(self) -> bool:
        """Whether a framework of this process has begun its steps."""
        return "steps_begun" in self._facts

    def note(self, text: str) -> None:
        """Add a note on missing data."""
        self.add(notes=[text])

    def problem(self, kind: str, text: str) -> None:
        """Report the cause of the recording's end: ``conflict``, ``no space``, ``profiler``."""
        self.add(problem={"kind": kind, "text": text})

    def failed(self, error: BaseException) -> None:
        """Report an error of the profiler, or of writing its trace."""
        import errno

        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        self.problem("no space" if full else "profiler", f"{type(error).__name__}: {error}")

    def at_close(self, action: Callable[[], None]) -> None:
        """Call ``action`` before the last report."""
        self._closing.append(action)
        # atexit calls the last registered function first. It must run before those of the
        # frameworks, which shut down parts that the profiler needs.
        atexit.register(self._act)

    def close(self, error: BaseException | None) -> None:
        """Write the last report of a process; ``error`` is the exception that ended it, or None."""
        self._act()
        if error is not None:
            self._facts["exception"] = {
                "type": f"{type(error).__module__}.{type(error).__qualname__}",
                "text": str(error)[-4000:],
            }
        if self._facts:
            guarded(self._keep_generated_code, self)
            self.describe_process()

    def close_window(self) -> None:
        """Report that the recording is complete: whatever follows in the process is not in it."""
        guarded(self._keep_generated_code, self)
        self.describe_process()
        self.add(closed=True)

    def describe_process(self) -> None:
        """Report versions and devices, which each report may be the last to have."""
        self.add(**({} if "packages" in self._facts else facts()))

    def exiting(self) -> None:
        """Report that this process is about to exit; its time limit starts now."""
        from pathlib import Path

        if self._facts:
            try:
                Path(self._folder, f"{EXITING}{self._process}").touch()
            except OSError as error:
                self.note(f"no time limit for the exit: {error.strerror}")

    def _keep_generated_code(self) -> None:
        from pathlib import Path

        from .generated_code import keep

        if (note := keep(Path(self._folder))) is not None:
            self.note(note)

    def _act(self) -> None:
        actions, self._closing = self._closing, []
        for action in actions:
            try:
                action()
            except Exception as raised:  # noqa: BLE001
                self.failed(raised)

    def _write(self) -> None:
        from pathlib import Path  # this module is imported by every Python process

        path = Path(self._folder, f"{PREFIX}{self._process}.json")
        scratch, reserve = path.with_suffix(".new"), path.with_suffix(".reserve")
        content = json.dumps({"executable": sys.executable, **self._facts})
        for full in (False, True):
            try:
                # On a full disk the reserve is used for the report.
                if full:
                    reserve.unlink()
                elif not reserve.exists():
                    reserve.write_bytes(bytes(_RESERVE))
                scratch.write_text(content, encoding="utf-8")
                scratch.replace(path)
                return
            except OSError:
                continue


def guarded(action: Callable[[], object], report: Report) -> None:
    """Call ``action``; if it fails, the script continues and the report has a note."""
    try:
        action()
    except Exception as error:  # noqa: BLE001
        report.note(f"part of the recording failed: {type(error).__name__}: {str(error)[:200]}")


_PACKAGES = (
    *("torch", "torchvision", "lightning", "pytorch-lightning", "triton"),
    *("tensorflow", "tensorflow-cpu", "keras", "jax", "jaxlib", "flax", "optax"),
    *("numpy", "nvtx", "traceana"),
)


def facts() -> dict[str, Any]:
    """Return versions and devices of this process, without importing a framework."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    facts: dict[str, Any] = {"python": platform.python_version(), "packages": versions}
    if torch := sys.modules.get("torch"):
        try:
            facts.update(_of_torch(torch))
        except Exception as error:  # noqa: BLE001  # a half-imported framework
            facts["notes"] = [f"torch not inspected: {type(error).__name__}: {str(error)[:200]}"]
    return facts


def _of_torch(torch: Any) -> dict[str, Any]:
    libraries = {"oneDNN": "on"} if torch.backends.mkldnn.is_available() else {}
    if torch.version.cuda:
        libraries["CUDA"] = torch.version.cuda
    if torch.version.hip:
        libraries["HIP"] = torch.version.hip
    facts: dict[str, Any] = {"threads": torch.get_num_threads(), "libraries": libraries}
    # Querying an unused GPU would take a second and GPU memory.
    if torch.version.cuda and torch.cuda.is_initialized():
        libraries["cuDNN"] = str(torch.backends.cudnn.version())
        if torch.cuda.nccl.is_available([torch.zeros(0, device="cuda")]):
            libraries["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
        gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        facts["gpus"] = [
            {
                "name": gpu.name,
                "memory_bytes": gpu.total_memory,
                "compute_capability": f"{gpu.major}.{gpu.minor}",
            }
            for gpu in gpus
        ]
    return facts
