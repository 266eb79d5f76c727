"""The recorded command as a child process, with its output on the terminal."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Final

import msgspec

from traceana.errors import NotFoundError
from traceana.files import undisturbed
from traceana.record.inside.process_report import EXITING
from traceana.record.outcome import Launch

EXIT_TIMEOUT: Final = 60.0
"""Default time limit for the exit of a recorded process, in seconds."""

_PERIOD: Final = 1.0
"""Seconds between two checks of the exiting processes; more frequent checks disturb the steps."""
_SIGNAL_PERIOD: Final = 0.5
"""Seconds until a signal is noticed."""
_GRACE: Final = 5.0
"""Seconds from SIGTERM to SIGKILL."""


class Exit(msgspec.Struct, frozen=True):
    """The end of a child, and its causes."""

    status: int
    """The exit status, negative for a signal."""
    interrupted: int = 0
    """The signal by which the user ended it; 0 if it ended by itself."""
    out_of_memory: bool = False
    """Whether the kernel's OOM killer ended it."""
    overdue: bool = False
    """Whether one of its processes exceeded the time limit for its exit and was killed."""


def run_child(
    launch: Launch,
    reports: Path,
    exit_timeout: float = EXIT_TIMEOUT,
    meanwhile: Callable[[], bool] = lambda: True,
) -> Exit:
    """Run the command, whose processes report in the folder ``reports``, and return its end.

    A process has ``exit_timeout`` seconds after it has reported its exit. ``meanwhile`` is called
    every second on another thread until it returns true. Raises ``NotFoundError`` if the command
    cannot be started.
    """
    killed = _killed_for_memory()
    interrupted = 0
    process = watch = None
    try:
        with _ending_signals():
            # The child may be interrupted as soon as it runs, before the watch has begun.
            with undisturbed():
                process = _started(launch)
            watch = _ExitWatch(process.pid, reports, exit_timeout, meanwhile)
            watch.start()
            status = _waited(process)
    except KeyboardInterrupt as interrupt:
        if process is None:
            raise
        interrupted = int(interrupt.args[0]) if interrupt.args else signal.SIGINT
        with _ending_signals():
            status = _end(process, interrupted, exit_timeout)
    finally:
        if watch is not None:
            watch.stop()
    was_killed = status in (-signal.SIGKILL, 128 + signal.SIGKILL)
    overdue = watch is not None and watch.overdue
    out_of_memory = was_killed and not overdue and _killed_for_memory() > killed
    return Exit(status, interrupted, out_of_memory, overdue)


def _started(launch: Launch) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(launch.words, env={**os.environ, **launch.environment})
    except OSError as error:
        first = launch.words[0]
        instead = f"-- python {first}" if first.endswith(".py") else "check the command after --"
        raise NotFoundError(f"{first} cannot be run ({error.strerror}): {instead}") from error


def _waited(process: subprocess.Popen[bytes]) -> int:
    """Wait for the child and return its status.

    A signal may come to a thread of a library. Its handler runs in this thread, which therefore has
    to run now and then.
    """
    try:
        ended = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # macOS, old kernels
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_SIGNAL_PERIOD)
    try:
        while not select.select([ended], [], [], _SIGNAL_PERIOD)[0]:
            pass
    finally:
        os.close(ended)
    return process.wait()


class _ExitWatch(threading.Thread):
    """Kills processes that have reported their exit and exceed the time limit.

    Only descendants of ``root`` are killed, with their own descendants, by SIGTERM, then SIGKILL.
    """

    def __init__(
        self, root: int, reports: Path, timeout: float, meanwhile: Callable[[], bool]
    ) -> None:
        super().__init__(daemon=True)
        self._root, self._reports, self._timeout = root, reports, timeout
        self._meanwhile = meanwhile
        self._done = threading.Event()
        self.overdue = False

    def stop(self) -> None:
        """End the thread, if it has begun."""
        self._done.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Check the reports until the command has ended."""
        since: dict[int, float] = {}
        done = False
        while not self._done.wait(min(_PERIOD, self._timeout)):
            done = done or self._meanwhile()
            for path in self._reports.glob(f"{EXITING}*"):
                process = int(path.name.removeprefix(EXITING))
                begun = since.setdefault(process, monotonic())
                if monotonic() - begun >= self._timeout:
                    since[process] = float("inf")
                    self._end(process)

    def _end(self, process: int) -> None:
        running = _processes()
        if process not in _descendants(running, self._root):
            return
        family = {pid: running[pid].started for pid in _descendants(running, process)}
        self.overdue = True
        _signal(family, signal.SIGTERM)
        end = monotonic() + _GRACE
        while _alive(family) and monotonic() < end:
            threading.Event().wait(0.1)
        _signal(family, signal.SIGKILL)


class _Process(msgspec.Struct, frozen=True):
    parent: int
    started: int


def _processes() -> dict[int, _Process]:
    """Return the running processes by id; empty without ``/proc``."""
    processes = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may contain anything.
            values = path.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue
        if values[0] not in "ZX":
            processes[int(path.parent.name)] = _Process(int(values[1]), int(values[19]))
    return processes


def _descendants(processes: dict[int, _Process], root: int) -> set[int]:
    """Return ``root`` and its descendants."""
    descendants: set[int] = set()
    children = {root} & processes.keys()
    while children:
        descendants |= children
        children = {pid for pid, process in processes.items() if process.parent in children}
        children -= descendants
    return descendants


def _alive(family: dict[int, int]) -> set[int]:
    """Return the processes of ``family``, which has their start times, that still run."""
    running = _processes()
    return {
        pid for pid, started in family.items() if pid in running and running[pid].started == started
    }


def _signal(family: dict[int, int], number: signal.Signals) -> None:
    for pid in _alive(family):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _end(process: subprocess.Popen[bytes], received: int, exit_timeout: float) -> int:
    """End the child, which gets the signal that was ``received``; return its status.

    It has ``exit_timeout`` seconds, as to save its state, unless another signal comes.
    """
    # What a terminal sends, it sends to the child too, for which a second one may mean hurry.
    if not _from_terminal(received):
        process.send_signal(received)
    for number, seconds in ((None, exit_timeout), (signal.SIGTERM, _GRACE)):
        if number is not None:
            process.send_signal(number)
        try:
            return process.wait(seconds)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            continue
    process.kill()
    return process.wait()


def _from_terminal(number: int) -> bool:
    """Return whether the signal ``number`` was sent to all processes in a terminal's foreground."""
    if number != signal.SIGINT:
        return False
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


@contextmanager
def _ending_signals() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` with its number at SIGINT, SIGTERM and SIGHUP, so that no child
    is left running."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    # Signals that are ignored, as under nohup, remain ignored.
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    numbers = [number for number in ending if signal.getsignal(number) is not signal.SIG_IGN]
    try:
        before = [signal.signal(number, interrupt) for number in numbers]
    except ValueError:  # signal handlers can be set in the main thread only
        yield
        return
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _killed_for_memory() -> int:
    """Return the number of processes killed by the OOM killer since boot."""
    try:
        lines = Path("/proc/vmstat").read_text("ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
