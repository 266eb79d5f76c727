"""Every command prints equal bytes in two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.every_command import COMMANDS, as_json, digest
from tests.support.manifest import FIXTURES, small_traces_at_hand

# Running all of them twice takes minutes: the smallest of each folder.
FILES = small_traces_at_hand(slice(1))


class OtherProcess:
    """The same commands beside this process, with another seed for hashes and more threads."""

    def __init__(self, errors: Path) -> None:
        environment = {**os.environ, "PYTHONHASHSEED": "1", "POLARS_MAX_THREADS": "2"}
        self._errors = errors
        with errors.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.every_command"],
                cwd=FIXTURES.parent,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._files, self._digests = self._process.stdin, self._process.stdout

    def begin(self, file: Path) -> None:
        """Let it run the commands on ``file``."""
        self._files.write(f"{file}\n")
        self._files.flush()

    def digests(self) -> dict[str, str]:
        """Return the digests of the file it began, once they are there."""
        line = self._digests.readline()
        assert line, self._errors.read_text()[-2000:]
        found: dict[str, str] = json.loads(line)
        return found

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="session")
def other_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherProcess]:
    other = OtherProcess(tmp_path_factory.mktemp("commands") / "errors")
    yield other
    other.end()


@pytest.mark.slow
@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_two_processes_print_the_same_bytes(file: Path, other_process: OtherProcess) -> None:
    other_process.begin(file)
    first = {command: digest(as_json(command, file)) for command in COMMANDS}
    assert first == other_process.digests()
