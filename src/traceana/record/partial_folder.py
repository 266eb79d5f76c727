"""The folder ``NAME.partial``, in which a run is made while it is recorded."""

from __future__ import annotations

import os
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

from traceana.errors import CannotWriteError, MissingDependencyError
from traceana.files import replace_folder, write_whole
from traceana.runs.run_files import PARTIAL
from traceana.runs.run_folders import is_run, is_sweep

_LOCK: Final = ".lock"
_RUN: Final = "run"


def check_free(target: Path, *, force: bool) -> None:
    """Raise ``CannotWriteError`` if ``target`` must not be written.

    ``force`` permits the replacement of runs and sweeps only.
    """
    if not target.exists():
        return
    if not is_run(target) and not is_sweep(target):
        raise CannotWriteError(f"{target} exists and is not a recorded run: choose another name")
    if not force:
        raise CannotWriteError(f"{target} exists: choose another name, or use --force")


class PartialFolder:
    """``NAME.partial``, locked by this process until it exits.

    The run is made in ``folder``, a folder in it, which :meth:`publish` renames to the ``target``:
    ``folder`` is the target from then on. Files of the recorded processes stay here until the end.
    """

    def __init__(self, target: Path) -> None:
        """Create the folder and delete files of a killed recording in it.

        Raises ``CannotWriteError``, also if another recording uses the folder, and
        ``MissingDependencyError`` on Windows.
        """
        try:
            fcntl: Any = import_module("fcntl")
        except ImportError:
            # Windows has no module that locks files.
            raise MissingDependencyError(
                "recording needs Linux or macOS: profile the script on Windows with its "
                "framework's own profiler, and give traceana the trace"
            ) from None
        self.target = target
        self.path = target.with_name(target.name + PARTIAL)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if self.path.lstat().st_uid != os.geteuid():
                raise CannotWriteError(f"{self.path} is another user's: choose another name")
            self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
                raise CannotWriteError(
                    f"another recording uses {self.path}: wait for it, or choose another name"
                ) from None
            for left in self.path.iterdir():
                if left.name != _LOCK:
                    remove(left)
            self.folder = self.path / _RUN
            self.folder.mkdir()
        except OSError as error:
            raise CannotWriteError(f"cannot write {self.path}: {error.strerror}") from error

    def scratch(self, name: str) -> Path:
        """Return a new folder in it for temporary files."""
        folder = (self.path / name).absolute()
        folder.mkdir()
        return folder

    def write(self, name: str, content: msgspec.Struct) -> None:
        """Write a file of the run atomically."""
        write_json(self.folder / name, content)

    @property
    def published(self) -> bool:
        """Whether the run is in its target."""
        return self.folder == self.target

    def publish(self) -> None:
        """Rename the run's folder to the target, in place of a previous run. Raises ``OSError``."""
        replace_folder(self.folder, self.target)
        self.folder = self.target

    def finish(self) -> None:
        """Publish the run if it is not yet, and delete what else there is. Raises ``OSError``."""
        if not self.published:
            self.publish()
        self.discard()

    def discard(self) -> None:
        """Delete the folder; a published run stays."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def write_json(path: Path, content: msgspec.Struct) -> None:
    """Write ``content`` to ``path`` atomically. Raises ``OSError``."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


def remove(path: Path) -> None:
    """Delete a file or a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
