"""The progress bar covers the whole command, and names what it does."""

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
from traceana.cli.opening import SHARES, Course


class Clock:
    """A clock that is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_reading_is_its_share_of_the_whole() -> None:
    course = Course(Clock())
    course.open("a", 0, 1)
    shares = []
    for done in range(11):
        course(done, 10)
        shares.append(course.share)
    assert shares == pytest.approx([done / 10 * SHARES["reading"] for done in range(11)])
    course(3, 10)
    assert course.share == pytest.approx(SHARES["reading"])


def test_other_phases_take_their_estimated_time_and_end_with_the_command() -> None:
    clock = Clock()
    course = Course(clock)
    course.open("a", 0, 1)
    before = 0.0
    for phase, share in list(SHARES.items())[1:]:
        clock.now += 10
        course.enter(phase)
        begin = course.share
        assert begin >= before
        for _ in range(100):
            clock.now += 1
            assert begin < course.share < begin + share + 1e-9
            assert course.share >= before
            before = course.share
    assert sum(SHARES.values()) == pytest.approx(1)
    assert 0.95 < course.share <= 1


def test_of_two_files_each_takes_half_of_the_opening() -> None:
    course = Course(Clock())
    opening = 1 - SHARES["analyzing"]
    for number in range(2):
        course.open("ab"[number], number, 2)
        assert course.share == pytest.approx(number * opening / 2)
        course(1, 1)
        assert course.share == pytest.approx((number * opening + SHARES["reading"]) / 2)
    course.enter("analyzing")
    assert course.share == pytest.approx(opening)


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
    phases = re.findall(rf"({'|'.join(SHARES)}) {re.escape(path.name)}", bar)
    assert list(dict.fromkeys(phases)) == [one for one in SHARES if one in phases]
    assert {"reading", "analyzing"} <= {*phases}
    percent = [int(found) for found in re.findall(r"(\d+)%", bar)]
    assert percent == sorted(percent)
