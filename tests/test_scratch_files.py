"""Scratch files are gone at the end, at whatever moment an interrupt comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from traceana.files import scratch_folder, write_whole


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a SIGINT come while the scratch file or folder is made."""

    def disturb(make: Any) -> Any:
        def made(*args: Any, **options: Any) -> Any:
            found = make(*args, **options)
            os.kill(os.getpid(), signal.SIGINT)
            return found

        return made

    for name in ("mkdtemp", "mkstemp"):
        monkeypatch.setattr(tempfile, name, disturb(getattr(tempfile, name)))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupted")
def test_an_interrupt_while_a_folder_is_made_leaves_none(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), scratch_folder("x", tmp_path):
        pytest.fail("the interrupt comes before the folder is used")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("interrupted")
def test_an_interrupt_while_a_file_is_made_leaves_none(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "output", b"content")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_there_until_the_end(tmp_path: Path) -> None:
    with scratch_folder("x", tmp_path) as folder:
        (folder / "file").write_bytes(b"1")
        assert [one.name.startswith("x") for one in tmp_path.iterdir()] == [True]
    assert list(tmp_path.iterdir()) == []


LEAVES = """
import os, signal, sys
from pathlib import Path
from traceana.files import scratch_folder, write_whole
target = Path(sys.argv[1])

def parts():
    yield b"part"
    print("begun", flush=True)
    signal.pause()

with scratch_folder(parent=target.parent) as folder:
    (folder / "file").write_bytes(b"1")
    write_whole(target, parts())
"""


def test_what_a_killed_process_left_is_deleted_by_the_next_write(tmp_path: Path) -> None:
    """What a running one needs stays, and what is the user's."""
    target = tmp_path / "o.duckdb"
    own = [tmp_path / name for name in (".o.duckdb.abcdefgh", "traceana-examples", "x.tmp")]
    for path in own:
        path.write_text("mine")
    running = [
        subprocess.Popen([sys.executable, "-c", LEAVES, target], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
        assert len(list(tmp_path.iterdir())) == 4 + len(own)
        write_whole(tmp_path / "other", b"1")
        assert len(list(tmp_path.iterdir())) == 5 + len(own)
        running[0].kill()
        running[0].wait()
        write_whole(tmp_path / "other", b"1")
        assert len(list(tmp_path.iterdir())) == 3 + len(own)
    finally:
        for process in running:
            process.kill()
            process.communicate()
    with scratch_folder(parent=tmp_path):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"other", *(path.name for path in own)}


def test_a_scratch_file_that_another_process_deletes_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its making and its lock, another process takes it for one that was left."""
    make, deleted = tempfile.mkstemp, list[str]()

    def disturbed(**options: Any) -> tuple[int, str]:
        descriptor, name = make(**options)
        if not deleted:
            deleted.append(name)
            Path(name).unlink()
        return descriptor, name

    monkeypatch.setattr(tempfile, "mkstemp", disturbed)
    write_whole(tmp_path / "output", b"content")
    assert (tmp_path / "output").read_bytes() == b"content"
    assert deleted
