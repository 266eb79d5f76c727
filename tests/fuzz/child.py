"""Processes that run inputs: forked, limited, watched, and ended without mercy.

The parent has imported everything and never runs a query: the threads of polars start with the
first query and do not survive a fork, so each child starts its own.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.fuzz import answers
from tests.fuzz.answers import Facts, Outcome
from tests.fuzz.mutations import Input

CPU_SECONDS: Final = 10.0
"""An input that takes longer hangs; the slowest sound seed takes two."""
WALL_SECONDS: Final = 90.0
"""Other programs may have the machine."""
PERIOD: Final = 12
"""After so many inputs the turn to be analyzed shifts by one, so that every seed has it."""
RUNAWAY_BYTES: Final = 2 << 30
_ADDRESS_SPACE: Final = 16 << 30
"""The allocator reserves more than it uses; this protects the machine alone."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Done:
    """The outcome of one input, and what it cost."""

    number: int
    given: Input
    outcome: Outcome
    cpu_seconds: float
    peak_bytes: int


class Child:
    """A forked process that answers inputs one after another, until one fails."""

    def __init__(
        self,
        inputs: Sequence[tuple[int, Input]],
        references: Mapping[str, Facts],
        analyzed: set[str],
        analyze: int = 1,
        shift: int = 0,
    ) -> None:
        """Fork; the child begins with the first of ``inputs``, numbered.

        Every ``analyze``-th number is run through the commands, none where it is 0; the others are
        read only. ``shift`` moves the turn, so that not all formats have it with the same number.
        """
        self._analyze, self._shift = analyze, shift
        self.inputs = list(inputs)
        self.folder = Path(tempfile.mkdtemp(prefix="traceana-fuzz-"))
        self._references = references
        self._analyzed = analyzed
        self._received = b""
        if not can_fork():
            raise RuntimeError(
                "polars has run a query in this process: a fork would lose its threads"
            )
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            self._be_child(writing)
        os.close(writing)
        self.pipe = reading
        self._begin()

    def _begin(self) -> None:
        self._since, self._cpu_before = time.monotonic(), self._cpu()
        self._peak = 0

    def _be_child(self, pipe: int) -> None:
        """Answer the inputs; never returns."""
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
            log = os.open(self.folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            faulthandler.enable()
            faulthandler.register(signal.SIGUSR1)
            os.environ["XDG_CONFIG_HOME"] = os.environ["XDG_CACHE_HOME"] = str(self.folder / "home")
            for number, given in self.inputs:
                place = self.folder / "input"
                place.mkdir()
                reset_peak()
                os.ftruncate(log, 0)
                reference = self._references.get(given.seed.name)
                turn = number + number // PERIOD + self._shift
                whole = self._analyze > 0 and turn % self._analyze == 0
                outcome = answers.answered(
                    given, place, number, reference, self._analyzed, analyze=whole
                )
                printed = (self.folder / "stderr").read_text(errors="replace")
                if "panicked at" in printed and not outcome.failed:
                    outcome = Outcome(
                        "abort", outcome.command, "panic", f"panic at {_panic(printed)}"
                    )
                peak = peak_bytes()
                if peak > RUNAWAY_BYTES and not outcome.failed:
                    outcome = Outcome("memory", outcome.command, frame=given.what)
                line = json.dumps({"number": number, "peak": peak, **outcome.as_dict()})
                os.write(pipe, line.encode() + b"\n")
                if outcome.failed or peak > 600 << 20:
                    break
                shutil.rmtree(place)
            status = 0
        finally:
            os._exit(status)

    def read(self) -> list[Done]:
        """Return the outcomes that the child has written; call it when ``pipe`` is readable."""
        data = os.read(self.pipe, 1 << 20)
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        done = []
        for line in lines:
            fields: dict[str, Any] = json.loads(line)
            number, peak = fields.pop("number"), fields.pop("peak")
            fields["facts"] = Facts(**fields["facts"])
            seconds = self._cpu() - self._cpu_before
            _, given = self.inputs.pop(0)
            done.append(Done(number, given, Outcome(**fields), seconds, peak))
            self._begin()
        if not data:
            self._ended(done)
        return done

    def _ended(self, done: list[Done]) -> None:
        """Reap the child; an input without an outcome killed it, if it began at all."""
        os.close(self.pipe)
        self.pipe = -1
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status) or os.WEXITSTATUS(status):
            name = (
                signal.Signals(os.WTERMSIG(status)).name
                if os.WIFSIGNALED(status)
                else f"exit {os.WEXITSTATUS(status)}"
            )
            self._lost("abort", name, done)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _lost(self, kind: str, error: str, done: list[Done]) -> None:
        printed = (self.folder / "stderr").read_text(errors="replace") if self.inputs else ""
        frame = _frame(printed)
        if "memory allocation of" in printed or "MemoryError" in printed:
            kind = "memory"
        number, given = self.inputs.pop(0)
        message = " ".join(printed.split())[:300]
        outcome = Outcome(kind, "", error, frame or _panic(printed), message, 1)
        done.append(Done(number, given, outcome, self._cpu_used, self._peak))

    _cpu_used = 0.0

    def check(self) -> Done | None:
        """Return the outcome of an input that is over its limits, after killing the child."""
        self._cpu_used = self._cpu() - self._cpu_before
        self._peak = max(self._peak, self._resident())
        wall = time.monotonic() - self._since
        if self._peak > RUNAWAY_BYTES:
            kind, error = "memory", f"more than {RUNAWAY_BYTES >> 30} GB"
        elif self._cpu_used > CPU_SECONDS or wall > WALL_SECONDS:
            kind, error = "hang", f"more than {CPU_SECONDS:g} s"
        else:
            return None
        os.kill(self.pid, signal.SIGUSR1)
        time.sleep(0.2)
        self.kill()
        done: list[Done] = []
        self._lost(kind, error, done)
        shutil.rmtree(self.folder, ignore_errors=True)
        return done[0]

    def kill(self) -> None:
        """End the child."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.pipe)
        self.pipe = -1

    def _cpu(self) -> float:
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return self._cpu_used
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def _resident(self) -> int:
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError):
            return 0


def readable(children: Sequence[Child], seconds: float) -> list[Child]:
    """Return the children that have written, after at most ``seconds``."""
    ready, _, _ = select.select([child.pipe for child in children], [], [], seconds)
    return [child for child in children if child.pipe in ready]


def reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # the peak is then that of the process


def peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _panic(printed: str) -> str:
    lines = [line for line in printed.splitlines() if "panicked at" in line]
    return lines[-1].partition("panicked at")[2].strip()[:200] if lines else ""


def _frame(printed: str) -> str:
    """Return the innermost line of traceana in what faulthandler printed."""
    for line in printed.splitlines():
        if "/src/traceana/" in line and line.lstrip().startswith("File"):
            _, _, rest = line.partition("/src/traceana/")
            path, _, where = rest.partition('", line ')
            at, _, function = where.partition(" in ")
            return f"{path}:{at} {function}"
    return ""


def can_fork() -> bool:
    """Return whether polars has not started its threads in this process."""
    names = [
        Path(f"/proc/self/task/{task.name}/comm").read_text().strip()
        for task in Path("/proc/self/task").iterdir()
    ]
    return not any(name.startswith(("polars-0", "tokio", "async-executor")) for name in names)


if sys.platform != "linux":
    raise RuntimeError("the campaign reads /proc: it needs Linux")
