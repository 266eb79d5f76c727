"""``-`` reads a trace from standard input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.readers.nvprof import test_printed as nvprof
from tests.readers.summary import writing

ROOT = Path(__file__).parents[2]


def piped(*words: object, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "traceana", *map(str, words)],
        input=stdin,
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )


@pytest.mark.slow
@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize(
    "text", [nvprof.BEGIN + nvprof.TEXT, writing.nvprof_text(writing.ROWS)], ids=["trace", "table"]
)
def test_a_pipe_is_a_trace(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.log"
    file.write_text(text)
    known = piped("report", file, "--format", "json", stdin=b"")
    read = piped("report", "-", "--format", "json", stdin=text.encode())
    assert read.returncode == known.returncode == 0
    assert read.stderr == b""
    one, other = json.loads(known.stdout), json.loads(read.stdout)
    assert other["meta"]["file"] == "standard input"
    assert one["rows"] == other["rows"]


@pytest.mark.slow
def test_one_of_two_runs_can_be_piped(tmp_path: Path) -> None:
    text = writing.nvprof_text(writing.ROWS)
    (tmp_path / "a.log").write_text(text)
    words = ("diff", tmp_path / "a.log", "-", "--format", "json")
    assert piped(*words, stdin=text.encode()).returncode == 0
    assert piped("diff", "-", "-", stdin=text.encode()).returncode == 2


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (b"", 17, "standard input is empty"),
        (b"hello\n", 14, "standard input: unrecognized format"),
        (b"==7== Profiling result:\nNo kernels were profiled.\n", 14, "No kernels were profiled"),
        (b"======== Error: Application received signal 9\n", 14, "received signal 9"),
        (b"Err:510\nErr:510\n", 14, "spreadsheet"),
    ],
)
def test_what_is_no_trace_is_one_line(text: bytes, code: int, words: str) -> None:
    done = piped("report", "-", stdin=text)
    assert (done.returncode, done.stdout) == (code, b"")
    (line,) = done.stderr.decode().splitlines()
    assert words in line
    assert line.startswith("traceana: standard input")
