"""The command as a process of its own: start-up, pipes, terminals, signals."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from traceana.errors import ExitCode

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "traceana"]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from traceana.cli.app import app; from typer.testing import CliRunner;"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0;"
        "heavy = {'polars', 'numpy', 'rich', 'msgspec', 'pydantic', 'torch'} & set(sys.modules);"
        "sys.exit(' '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_pipe_is_no_error(bundle: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "kernels", str(bundle), "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as stderr:
        assert stderr.read() == b""
    assert process.wait() == ExitCode.OK


def test_output_through_a_pipe_is_plain_utf8(bundle: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "report", str(bundle)],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "40"},
    )
    assert b"\x1b" not in done.stdout
    assert "█" in done.stdout.decode()
    assert done.stderr == b""


@pytest.mark.parametrize(("extra", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_colours_unless_disabled(
    bundle: Path, extra: dict[str, str], coloured: bool
) -> None:
    ours, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
    process = subprocess.Popen(
        [*COMMAND, "report", str(bundle)],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**environment, "TERM": "xterm", **extra},
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # EIO on Linux when the last writer has closed
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    _, stderr = process.communicate()
    assert process.returncode == 0
    assert stderr == b""
    assert (b"\x1b[" in seen) is coloured


def test_ctrl_c_ends_with_its_code(bundle: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "classify", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    time.sleep(4.0)  # by now it waits for names, on a busy machine too
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == ExitCode.INTERRUPTED
    assert stderr == b"traceana: interrupted\n"
