"""Files with the numbers of an attacker: bounded time and memory, and a message that names what is
wrong. :mod:`tests.fuzz.shapes` has many more."""

from __future__ import annotations

import gzip
import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.readers.kineto.writing import kernel
from tests.readers.xplane.writing import PlaneWriter
from tests.support.command_line import Run
from traceana.errors import ExitCode
from traceana.readers import source

PEAK = """
import atexit, re, sys
peak = lambda: re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
atexit.register(lambda: print("peak", peak(), file=sys.stderr))
from traceana.__main__ import main
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_empty_events_are_counted_and_not_stored(tmp_path: Path) -> None:
    count = 8_000_000
    bomb = tmp_path / "x.xplane.pb.gz"
    plane = PlaneWriter("/device:GPU:0")
    plane.line("Stream #7(Kernel)", [b"\x22\x00" * count, plane.event("k", 10, 1_000)], number_=7)
    bomb.write_bytes(gzip.compress(plane.encode(), 9))
    assert bomb.stat().st_size < 20_000
    done = subprocess.run(
        [sys.executable, "-c", PEAK, "info", bomb, "-f", "json"], capture_output=True, check=True
    )
    kilobytes = int(re.findall(rb"peak (\d+)", done.stderr)[0])
    assert kilobytes < 700_000  # 3.5 GB once
    row = json.loads(done.stdout)
    assert row["kernels"] == 1
    assert {entry["reason"]: entry["count"] for entry in row["ledger"]}["empty"] == count


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"schemaVersion":1,"traceEvents":[' + b"{}," * 300_000 + b"{}]}", "valid trace event"),
        (bytes(40_000_000), "unrecognized format"),
        (b" " * 40_000_000, ""),
    ],
    ids=["empty events", "zeros", "spaces"],
)
def test_what_inflates_is_decided_soon(tmp_path: Path, run: Run, content: bytes, says: str) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(content, 9))
    before = resource.getrusage(resource.RUSAGE_SELF)
    result = run("info", path)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert result.exit_code in (ExitCode.UNRECOGNIZED_FORMAT, ExitCode.DAMAGED_INPUT)
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert after.ru_utime - before.ru_utime < 10


def test_what_inflates_beyond_all_traces_is_called_that(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_LARGEST", 1 << 20)
    path = tmp_path / "x.json.gz"
    text = json.dumps({"schemaVersion": 1, "traceEvents": [kernel("k", 10, 5)]}).encode()
    path.write_bytes(gzip.compress(text[:-2] + b" " * 80_000_000 + text[-2:], 9))
    result = run("info", path)
    assert result.exit_code == ExitCode.DAMAGED_INPUT
    assert "inflates to more than 500 times its size: no profiler writes that" in result.stderr


def test_an_event_that_is_too_long_is_called_that(tmp_path: Path, run: Run) -> None:
    """Also the last one: the file is not truncated."""
    path = tmp_path / "x.json"
    events = [kernel("k", 10, 5), kernel("a" * (20 << 20), 20, 5)]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    result = run("info", path, "-f", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    row = json.loads(result.stdout)
    assert {entry["reason"] for entry in row["ledger"]} >= {"oversized"}
    assert not row["truncated"]
    assert run("info", path, "--strict").exit_code == ExitCode.DAMAGED_INPUT
    # One that is cut stays truncated.
    path.write_bytes(path.read_bytes()[:-100])
    assert "truncated file" in run("info", path).stderr


@pytest.mark.slow
def test_a_device_for_each_kernel(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "x.json"
    events = [kernel("k", 10 * at + 10, 5, device=at, pid=at) for at in range(1_200)]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    before = resource.getrusage(resource.RUSAGE_SELF)
    assert run("report", path).exit_code == 0
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime - before.ru_utime < 15
