"""Reads the JSON files of a run's folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from traceana.errors import (
    NotARunError,
    NotFoundError,
    RunWithoutTraceError,
    UnfinishedRunError,
    UnreadableError,
)
from traceana.runs.model import (
    ENVIRONMENT_FILE,
    LAYERS_FILE,
    PARTIAL,
    RUN_FILE,
    SWEEP_FILE,
    TIMING_FILE,
    VERSION,
    Environment,
    Run,
    Status,
    Sweep,
    Timing,
    is_plain_name,
)

File = TypeVar("File", bound=msgspec.Struct)


@dataclass(frozen=True)
class RecordedRun:
    """A run's folder.

    Only ``traceana-run.json`` has been read; the rest is read when it is asked for.

    :meth:`timing` and :meth:`environment` raise the errors of :func:`read_run`, and return None
    where the file is not there.
    """

    folder: Path
    run: Run

    @property
    def complete(self) -> bool:
        """Whether the run came to its end."""
        return self.run.status is Status.COMPLETE

    @property
    def layers(self) -> Path | None:
        """The layer manifest, None where none could be made."""
        path = self.folder / LAYERS_FILE
        return path if path.is_file() else None

    def timing(self) -> Timing | None:
        """Return what the steps took."""
        return _read_if_there(self.folder / TIMING_FILE, Timing)

    def environment(self) -> Environment | None:
        """Return on what the run was made."""
        return _read_if_there(self.folder / ENVIRONMENT_FILE, Environment)

    def traces(self) -> list[Path]:
        """Return the paths of the trace, one a rank.

        Raises :class:`RunWithoutTraceError` where the run left none.
        """
        if not self.run.traces:
            raise RunWithoutTraceError(f"{self.folder} holds no trace: {self._why_none()}")
        return [self.folder / name for name in self.run.traces]

    def _why_none(self) -> str:
        if self.run.status is Status.COMPLETE:
            return "it was recorded without a profiler; record it again without --profiler none"
        return f"its run was {self.run.status} ({self.run.reason or 'nobody knows why'})"


def read_run(folder: str | os.PathLike[str]) -> RecordedRun:
    """Read ``traceana-run.json`` in ``folder``.

    Raises ``NotFoundError``, :class:`UnfinishedRunError` for a recording that goes on or was cut
    off, ``UnreadableError``, and :class:`NotARunError` where the folder is none or the file is
    damaged or of another version.
    """
    path = Path(folder)
    if not path.exists():
        raise NotFoundError(f"{path} does not exist: check the path")
    refuse_partial(path)
    if not (path / RUN_FILE).is_file():
        raise NotARunError(
            f"{path} holds no {RUN_FILE}, so it is no recorded run: make one with "
            f"'traceana record -o {path} …'"
        )
    run = _read(path / RUN_FILE, Run)
    if not is_plain_name(run.traces):
        raise NotARunError(f"{path / RUN_FILE} names traces outside its folder: record it again")
    return RecordedRun(path, run)


def read_sweep(folder: str | os.PathLike[str]) -> Sweep:
    """Read ``traceana-sweep.json`` in ``folder``; raises as :func:`read_run`."""
    path = Path(folder)
    if not path.exists():
        raise NotFoundError(f"{path} does not exist: check the path")
    if not (path / SWEEP_FILE).is_file():
        raise NotARunError(
            f"{path} holds no {SWEEP_FILE}, so it is no sweep: make one with "
            f"'traceana record --sweep … -o {path} …'"
        )
    sweep = _read(path / SWEEP_FILE, Sweep)
    if not is_plain_name([point.folder for point in sweep.points]):
        raise NotARunError(f"{path / SWEEP_FILE} names runs outside its folder: record it again")
    return sweep


def refuse_partial(path: Path) -> None:
    """Raise :class:`UnfinishedRunError` where ``path`` is the folder of an unfinished run."""
    if path.name.endswith(PARTIAL) and path.is_dir():
        raise UnfinishedRunError(
            f"{path} is of a recording that goes on or was cut off: wait for it, or record it again"
        )


def _read_if_there(path: Path, kind: type[File]) -> File | None:
    return _read(path, kind) if path.is_file() else None


def _read(path: Path, kind: type[File]) -> File:
    again = "record it again"
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=_Versioned).version
        if version != VERSION:
            raise NotARunError(f"{path} is of version {version}, not {VERSION}: {again}")
        return msgspec.json.decode(content, type=kind)
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotARunError(f"{path} is damaged: {_one_line(error)}; {again}") from None


class _Versioned(msgspec.Struct):
    version: int


def _one_line(error: Any) -> str:
    return " ".join(str(error).split())
