"""Scratch files are gone at the end, at whatever moment an interrupt comes."""

from __future__ import annotations

import os
import signal
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
