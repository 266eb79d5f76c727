"""The command as a user types it, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.frameworks import imported_sooner
from traceana.errors import TraceanaError
from traceana.record.nsys import check_nsys
from traceana.runs.run_files import Run


def notes(run: Run) -> tuple[str, ...]:
    """Return the notes of a run, less the one on the load of the machine that runs the tests."""
    return tuple(note for note in run.notes if not note.startswith("busy machine"))


Record = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True, scope="package")
def sooner() -> Iterator[None]:
    """Import the frameworks of what is recorded in less time."""
    with imported_sooner():
        yield


@pytest.fixture(scope="session")
def record() -> Record:
    """Return a function that runs ``traceana record`` with these words and returns its result."""

    def run(*words: object, **more: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "traceana", "record", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload, no-any-return]

    return run


@pytest.fixture(scope="session")
def nsys() -> None:
    """Skip where no nsys records here: one is missing, or is installed without its importer."""
    try:
        check_nsys()
    except TraceanaError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that writes a script and returns its path."""

    def write(content: str) -> Path:
        path = tmp_path_factory.mktemp("script") / "my_train.py"
        path.write_text(content)
        return path

    return write
