"""Standard streams that are closed, full, or without a reader; Ctrl-C at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from traceana.errors import ExitCode

COMMAND = f"{sys.executable} -m traceana"
# A limit of the file size stands in for a full disk; Python 3.11 would cut its own caches too.
LIMITED = "export PYTHONDONTWRITEBYTECODE=1; ulimit -f 1;"
HELP, VERSION = "kernels --help", "--version"
INTERRUPTED_IMPORT = """
import os, signal, sys
left = int(sys.argv.pop(1))
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGINT)
from traceana.__main__ import main
sys.meta_path.insert(0, Interrupting())
main()
"""


def shell(
    line: str, *, cwd: Path | None = None, text: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run ``line``, in which ``traceana`` is the command under test, with ``text`` as its input."""
    line = line.replace("traceana", COMMAND, 1)
    return subprocess.run(
        ["/bin/sh", "-c", line], capture_output=True, check=False, timeout=60, cwd=cwd, input=text
    )


def commands(bundle: Path) -> dict[str, str]:
    return {
        "page": f"kernels {bundle}",
        "json": f"kernels {bundle} --format json",
        "help": HELP,
        "version": VERSION,
    }


def test_what_python_printed_before_comes_first(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('sitecustomize of the user')\n")
    line = f'PYTHONPATH="{tmp_path}:$PYTHONPATH" traceana --version'
    done = shell(line)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.decode().splitlines()
    assert first == "sitecustomize of the user"
    assert second.startswith("traceana ")


@pytest.mark.parametrize("what", ["page", "json", "help", "version"])
@pytest.mark.parametrize(("to", "why"), [(">/dev/full", b"No space left"), (">&-", b"closed")])
def test_output_that_cannot_be_written_is_an_error(
    bundle: Path, what: str, to: str, why: bytes
) -> None:
    done = shell(f"traceana {commands(bundle)[what]} {to}")
    assert done.returncode == ExitCode.CANNOT_WRITE
    assert done.stderr.startswith(b"traceana: cannot write standard output: ")
    assert why in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("what", ["page", "json", "help", "version"])
def test_a_reader_that_goes_away_is_no_error(bundle: Path, what: str) -> None:
    done = shell(f"{{ traceana {commands(bundle)[what]}; echo $? >&2; }} | true")
    assert done.stderr == b"0\n"


@pytest.mark.exhaustive(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("to", ["2>&-", "2>/dev/full"])
def test_messages_that_cannot_be_written_change_no_exit_code(
    bundle: Path, tmp_path: Path, to: str
) -> None:
    missing = shell(f"traceana kernels {tmp_path}/missing {to}")
    assert (missing.returncode, missing.stdout) == (ExitCode.NOT_FOUND, b"")
    usage = shell(f"traceana kernels --no-such-option {to}")
    assert (usage.returncode, usage.stdout) == (ExitCode.USAGE, b"")
    shown = shell(f"traceana kernels {bundle} {to}")
    assert shown.returncode == ExitCode.OK
    assert shown.stdout == shell(f"traceana kernels {bundle}").stdout


@pytest.mark.slow
def test_all_streams_may_be_closed(bundle: Path, tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    assert shell(f"traceana kernels {bundle} -o {target} <&- >&- 2>&-").returncode == ExitCode.OK
    assert target.read_bytes() == shell(f"traceana kernels {bundle} -f json").stdout
    code = shell(f"traceana kernels {bundle} <&- >&- 2>&-").returncode
    assert code == ExitCode.CANNOT_WRITE


@pytest.mark.slow
def test_closed_input_is_an_error_where_it_is_read(bundle: Path) -> None:
    assert shell(f"traceana kernels {bundle} <&-").returncode == ExitCode.OK
    closed = shell("traceana classify - <&-")
    assert (closed.returncode, closed.stdout) == (ExitCode.NOT_FOUND, b"")
    assert closed.stderr == b"traceana: standard input is closed: give names as arguments\n"
    unreadable = shell("traceana classify - 0>/dev/null")
    assert (unreadable.returncode, unreadable.stdout) == (ExitCode.NOT_FOUND, b"")
    assert unreadable.stderr.startswith(b"traceana: standard input cannot be read: ")


@pytest.mark.slow
def test_a_full_disk_is_an_error_of_the_output_file(bundle: Path) -> None:
    done = shell(f"traceana kernels {bundle} --force -o /dev/full/rows.json")
    assert done.returncode == ExitCode.CANNOT_WRITE
    limited = shell(f"{LIMITED} traceana kernels {bundle} -f json -o rows.json", cwd=bundle)
    assert limited.returncode == ExitCode.CANNOT_WRITE
    assert limited.stderr.startswith(b"traceana: cannot write rows.json: ")
    assert not [path for path in bundle.iterdir() if "rows.json" in path.name]


@pytest.mark.exhaustive(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [4, 20, 100])
def test_a_full_temporary_folder_is_an_error_of_the_database(
    bundle: Path, tmp_path: Path, kilobytes: int
) -> None:
    pytest.importorskip("duckdb")
    limit = f"export PYTHONDONTWRITEBYTECODE=1; ulimit -f {kilobytes}; export TMPDIR={tmp_path};"
    limited = shell(f"{limit} traceana export {bundle} -o {tmp_path}/run.duckdb")
    assert limited.returncode == ExitCode.CANNOT_WRITE
    assert b"/run.duckdb: temporary files in " in limited.stderr
    assert limited.stderr.count(b"\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
def test_a_full_disk_is_an_error_of_the_baseline(bundle: Path, tmp_path: Path) -> None:
    line = f"traceana diff {bundle} --save-baseline main"
    assert shell(f"export XDG_DATA_HOME={tmp_path}; {line}").returncode == ExitCode.OK
    saved = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    limited = shell(f"export XDG_DATA_HOME={tmp_path}; {LIMITED} {line}")
    assert limited.returncode == ExitCode.CANNOT_WRITE
    assert limited.stderr.startswith(b"traceana: cannot write ")
    assert limited.stderr.count(b"\n") == 1
    # The earlier baseline is whole, and nothing lies beside it.
    left = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == saved


def test_names_are_read_line_by_line() -> None:
    """A line without an end is refused when its limit is reached, not when memory is."""
    endless = shell("traceana classify - </dev/zero")
    assert endless.returncode == ExitCode.NOT_FOUND
    assert b"a line longer than 1,048,576 bytes" in endless.stderr
    names = b"sgemm\r\nvolta\x0bsgemm\n\n\xff"
    done = shell("traceana classify - --format json", text=names)
    assert done.returncode == ExitCode.OK
    found = [line for line in done.stdout.decode().splitlines() if '"name"' in line]
    assert found == [
        '      "name": "sgemm",',
        '      "name": "volta\\u000bsgemm",',
        '      "name": "",',
        '      "name": "\\ufffd",',
    ]


def interrupted_at_import(number: int, words: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    """Run a command that gets SIGINT when it imports its ``number``-th module."""
    return subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, str(number), *words],
        capture_output=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("number", [1, 2, 3, 5, 9, 30, 75, 120, 150, 300, 450])
def test_an_interrupt_during_imports_has_no_traceback(bundle: Path, number: int) -> None:
    done = interrupted_at_import(number, ["kernels", str(bundle)])
    assert (done.returncode, done.stderr) == (ExitCode.INTERRUPTED, b"traceana: interrupted\n")


def test_an_ignored_interrupt_stays_ignored(bundle: Path) -> None:
    """As in ``traceana … &`` in a script: Ctrl-C is for the foreground."""
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, "20", "kernels", str(bundle)]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (done.returncode, done.stderr) == (0, b"")
    assert os.fsencode("name") in done.stdout


DROPS = """
import os, signal, sys
from traceana.cli import interrupt
from traceana.files import scratch_folder
from pathlib import Path
interrupt.install()
try:
    os.kill(os.getpid(), signal.SIGTERM)
except:
    pass
with scratch_folder(parent=Path(sys.argv[1])) as folder:
    try:
        while True:
            pass
    finally:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
        (folder / "cleaned").touch()
        assert folder.is_dir()
        print("cleaned", flush=True)
"""


def test_an_interrupt_that_a_library_drops_comes_again(tmp_path: Path) -> None:
    """And others, while temporary files are removed, change nothing."""
    done = subprocess.run(
        [sys.executable, "-c", DROPS, tmp_path], capture_output=True, check=False, timeout=20
    )
    assert done.stdout == b"cleaned\n"
    assert done.stderr.endswith(b"KeyboardInterrupt\n")
    assert list(tmp_path.iterdir()) == []


LOGS = """
import logging, os, signal
from traceana.cli import interrupt
interrupt.install()
try:
    os.kill(os.getpid(), signal.SIGTERM)
except KeyboardInterrupt:
    logging.exception("a server logs it")
    interrupt.end()
"""


def test_what_a_library_logs_of_an_interrupt_is_not_shown() -> None:
    done = subprocess.run([sys.executable, "-c", LOGS], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (ExitCode.INTERRUPTED, b"traceana: interrupted\n")


PARSING = """
import os, signal
from traceana.__main__ import main
from traceana.cli import main as application
application._configure = lambda *_, **options: os.kill(os.getpid(), signal.SIGTERM)
main()
"""


def test_an_interrupt_outside_of_commands_is_no_exit_without_a_word(bundle: Path) -> None:
    """Typer makes an exit of it."""
    done = subprocess.run(
        [sys.executable, "-c", PARSING, "report", bundle], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (ExitCode.INTERRUPTED, b"traceana: interrupted\n")
