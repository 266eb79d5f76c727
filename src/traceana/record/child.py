"""Runs the command as a child, whose text goes to the terminal as it is."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from traceana.errors import NotFoundError
from traceana.record.subject import Launch

_PATIENCE: Final = ((None, 3.0), (signal.SIGINT, 10.0), (signal.SIGTERM, 5.0))
"""What a child gets that should end, and the seconds it then has. A terminal has sent it the first
SIGINT itself."""


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit status, negative for a signal.

    ``interrupted`` tells that the user ended it, ``out_of_memory`` that the system did for want of
    memory.
    """

    exit_status: int
    interrupted: bool = False
    out_of_memory: bool = False


def run(launch: Launch) -> Ended:
    """Run the command and wait for its end. Raises ``NotFoundError`` where it cannot be started."""
    killed = _killed_for_memory()
    try:
        process = subprocess.Popen(launch.words, env={**os.environ, **launch.environment})
    except OSError as error:
        raise NotFoundError(
            f"{launch.words[0]} cannot be run ({error.strerror}): check the command behind --"
        ) from error
    interrupted = False
    with _ending_signals():
        try:
            status = process.wait()
        except KeyboardInterrupt:
            interrupted = True
            status = _end(process)
    by_kill = status in (-signal.SIGKILL, 128 + signal.SIGKILL)
    return Ended(status, interrupted, by_kill and _killed_for_memory() > killed)


def _end(process: subprocess.Popen[bytes]) -> int:
    for number, seconds in _PATIENCE:
        if number is not None:
            process.send_signal(number)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:
            break
    process.kill()
    return process.wait()


@contextmanager
def _ending_signals() -> Iterator[None]:
    """Take what ends a session for Ctrl-C, so that no child is left behind."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # What is ignored, as under nohup, stays so.
    ending = (signal.SIGTERM, signal.SIGHUP)
    numbers = [number for number in ending if signal.getsignal(number) is signal.SIG_DFL]
    try:
        before = [signal.signal(number, interrupt) for number in numbers]
    except ValueError:  # not in the main thread, where signals do not arrive
        yield
        return
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _killed_for_memory() -> int:
    """Count the processes that this system has killed for want of memory."""
    try:
        lines = Path("/proc/vmstat").read_text("ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
