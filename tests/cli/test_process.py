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

from tests.support.manifest import FIXTURES
from traceana.errors import ExitCode

COMMAND = [sys.executable, "-m", "traceana"]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from traceana.cli.main import application;"
        "from typer.testing import CliRunner;"
        "assert CliRunner().invoke(application(), ['--help']).exit_code == 0;"
        "heavy = {'polars', 'numpy', 'rich', 'msgspec', 'pydantic', 'torch'} & set(sys.modules);"
        "sys.exit(' '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_of_a_command_has_its_own_options_first() -> None:
    def said(*words: str) -> str:
        done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=True)
        return done.stdout

    text = said("help", "idle")
    assert text == said("idle", "--help")
    assert text.index("--by") < text.index("--step") < text.index("--format")
    assert said("help") == said("--help")


def test_help_imports_no_command() -> None:
    code = (
        "import atexit, sys; from traceana.cli.main import COMMANDS, main;"
        "imported = lambda: {f'traceana.cli.{name}' for name in COMMANDS} & {*sys.modules};"
        "atexit.register(lambda: print(sorted(imported())));"
        "sys.argv = ['traceana', '--help'];"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


@pytest.mark.slow
def test_report_imports_at_most_166_modules() -> None:
    """What other formats, rank folders and counters need is imported where they are read.

    So is the replay, where a recommendation is replayed.
    """
    code = (
        "import atexit, sys; from traceana.__main__ import main;"
        "atexit.register(lambda: print(sum(name.startswith('traceana') for name in sys.modules)));"
        f"sys.argv = ['traceana', 'report', {str(FIXTURES / 'alexnet-cpu-ranges.json.gz')!r}];"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count = int(done.stdout.split()[-1])
    assert 100 < count <= 166


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_with_its_code(bundle: Path, number: signal.Signals) -> None:
    # Under nohup a process begins with SIGHUP ignored, and traceana leaves that as it is.
    before = signal.signal(number, signal.SIG_DFL)
    process = subprocess.Popen(
        [*COMMAND, "classify", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    signal.signal(number, before)
    time.sleep(4.0)  # by now it waits for names, on a busy machine too
    process.send_signal(number)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == ExitCode.INTERRUPTED
    assert stderr == b"traceana: interrupted\n"


def test_a_killed_export_leaves_no_temporary_files(bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    output = tmp_path / "run.duckdb"
    for _ in range(20):
        process = subprocess.Popen(
            [*COMMAND, "export", str(bundle), "-o", str(output)],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stderr=subprocess.PIPE,
        )
        # The scratch file of the output and the folder of the tables.
        while len(list(tmp_path.iterdir())) < 2 and process.poll() is None:
            time.sleep(0.002)
        process.terminate()
        process.communicate(timeout=20)
        if process.returncode != ExitCode.OK:
            break
        # It was done before the signal came.
        output.unlink()
    assert process.returncode == ExitCode.INTERRUPTED
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_a_command_is_answered_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    words = [sys.executable, "-m", "traceana", "run.json"]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "run.json is not a command: did you mean traceana report run.json?" in ended.stderr
