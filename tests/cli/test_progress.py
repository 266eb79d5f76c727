"""The progress bar names what the command does, as long as it takes."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.generate_database import generate


@pytest.mark.slow
def test_a_terminal_sees_every_phase_and_then_the_answer(tmp_path: Path) -> None:
    path, _ = generate("nsys", "training", 100_000, tmp_path)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "traceana", "report", str(path)],
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "POLARS_MAX_THREADS": "1"},
    )
    os.close(theirs)
    seen = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
    assert process.wait() == 0
    os.close(ours)
    bar, answer, _ = seen.decode().partition("GPU utilization")
    assert answer
    known = ["reading", "attributing", "classifying", "analyzing"]
    phases = re.findall(rf"({'|'.join(known)}) {re.escape(path.name)}", bar)
    assert list(dict.fromkeys(phases)) == [one for one in known if one in phases]
    assert {"reading", "analyzing"} <= {*phases}
    assert re.search(r"\d+%", bar)
