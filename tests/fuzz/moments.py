"""``python -m tests.fuzz.moments``: commands get INT, TERM or KILL at a random moment.

A moment follows from (seed, command, number). The first two signals are one line and the exit code
130, or come too late; a killed process leaves at most temporary files, which the next write
deletes. After each, no process of the command runs, an output is the old one or the whole new one,
and the user's other files are as they were.

Moments begin when the command line has its handlers: until then, Python's own start-up has 30 ms.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import traceana
from tests.support.manifest import FIXTURES

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
INTERRUPTED: Final = "traceana: interrupted\n"
END_S: Final = 30
"""Seconds until a command that was interrupted has ended."""
WORKER_S: Final = 10
_SCRATCH: Final = ".traceana-tmp"
_TRACE: Final = "alexnet-cpu-ranges.json.gz"
_SCRIPT: Final = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(20):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
_REQUESTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    },
    {"method": "notifications/initialized"},
    *(
        {
            "id": number,
            "method": "tools/call",
            "params": {"name": name, "arguments": {"trace": _TRACE}},
        }
        for number, name in enumerate(("report", "layers", "advise"), 2)
    ),
)  # fmt: skip
REQUESTS: Final = "".join(f"{json.dumps({'jsonrpc': '2.0', **one})}\n" for one in _REQUESTS)


@dataclass(frozen=True)
class Case:
    """A command: its words, its output in the user's folder, and whether an old one is there."""

    words: tuple[str, ...]
    output: str = ""
    old: bool = False
    asks: str = ""
    """What the standard input has; it stays open."""
    children: bool = False
    """Whether it runs a program of the user's, which may outlive a killed recorder."""
    ends_by_signal: bool = False


CASES: Final = {
    "report": Case(("report", _TRACE, "-o", "o.html", "--force"), "o.html", old=True),
    "save": Case(("save", _TRACE, "-o", "bundle", "--force"), "bundle", old=True),
    "export": Case(("export", _TRACE, "-o", "o.duckdb"), "o.duckdb"),
    "perfetto": Case(
        ("export", _TRACE, "-o", "o.perfetto.json.gz", "--force"), "o.perfetto.json.gz", old=True
    ),
    "record": Case(
        ("record", "-q", "-o", "run", "--no-baseline", "--", sys.executable, "train.py"),
        "run",
        children=True,
        ends_by_signal=True,
    ),
    "mcp": Case(("mcp", "--root", "."), asks=REQUESTS),
    "ranks": Case(("ranks", "job", "--workers", "2", "--keep", "kept")),
}


@dataclass
class Place:
    """A user's folder, its files before a command, and an old output."""

    folder: Path
    before: dict[str, str]


def content_of(path: Path) -> dict[str, str]:
    """Return the digests of the files in ``path``, which may be one, by relative path."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path] * path.exists()
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file()
    }


class Moments:
    """The moments of one command."""

    def __init__(self, name: str, home: Path) -> None:
        """Run the command once in a folder below ``home``, undisturbed."""
        self.case = CASES[name]
        self.name, self._home = name, home
        self._environment = {
            **os.environ,
            **{"XDG_CACHE_HOME": str(home / "cache"), "TMPDIR": str(home / "tmp")},
            "PYTHONPATH": str(Path(traceana.__file__).parents[1]),
            **{"XDG_CONFIG_HOME": str(home / "config"), "POLARS_MAX_THREADS": "1"},
        }
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        place = self._place("first")
        # What is compiled and cached the first time is not the command's time.
        self._undisturbed(place)
        shutil.rmtree(place.folder)
        place = self._place("first")
        self.seconds = self._undisturbed(place)
        self._whole = content_of(place.folder / self.case.output) if self.case.output else {}
        shutil.rmtree(place.folder)

    def _place(self, name: str) -> Place:
        folder = self._home / name
        folder.mkdir()
        for file in (_TRACE, _TRACE.replace(".json.gz", ".layers.json")):
            shutil.copy(FIXTURES / file, folder)
        (folder / "train.py").write_text(_SCRIPT)
        (folder / ".o.html.mine").write_text("the user's")
        if self.name == "ranks":
            from tests.job.jobs import Job, even

            Job(even(4, 20, 1)).write(folder / "job")
        if self.case.old and self.name == "save":
            from tests.support.traces import cnn_steps

            cnn_steps().save(folder / self.case.output)
        elif self.case.old:
            (folder / self.case.output).write_text("old")
        return Place(folder, content_of(folder))

    def _start(self, place: Place) -> subprocess.Popen[bytes]:
        with (self._home / "stderr").open("wb") as error:
            process = subprocess.Popen(
                [sys.executable, "-m", "traceana", *self.case.words],
                cwd=place.folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self.case.asks else subprocess.DEVNULL,
                stderr=error,
                start_new_session=True,
            )
        assert process.stdin is not None
        process.stdin.write(self.case.asks.encode())
        process.stdin.flush()
        return process

    def _undisturbed(self, place: Place) -> float:
        """Return the seconds from the handlers to the end, or to the last answer."""
        process = self._start(place)
        begun = _has_handlers(process)
        assert begun, (self._home / "stderr").read_text()
        since = time.monotonic()
        if process.stdout is not None:
            answers = REQUESTS.count('"id"')
            for _ in range(answers):
                assert process.stdout.readline().startswith(b"{")
            seconds = time.monotonic() - since
            process.communicate(timeout=60)
        else:
            process.communicate(timeout=120)
            seconds = time.monotonic() - since
        assert process.returncode == 0, (self._home / "stderr").read_text()
        return seconds

    def run(self, number: int, rng: random.Random) -> tuple[str, list[str]]:
        """Return signal and end of one moment, and what is wrong with them."""
        sent, delay = rng.choice(SIGNALS), rng.uniform(0, 1.02 * self.seconds)
        place = self._place(f"{self.name}-{number}")
        process = self._start(place)
        if not _has_handlers(process):
            raise RuntimeError((self._home / "stderr").read_text())
        time.sleep(delay)
        process.send_signal(sent)
        wrong: list[str] = []
        try:
            output, _ = process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            wrong.append("does not end")
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        error = (self._home / "stderr").read_text()
        code = process.returncode
        wrong += self._ended(sent, code, error, output)
        if _still_runs(process.pid) and not (sent is signal.SIGKILL and self.case.children):
            wrong.append("a process of it still runs")
        if self.case.children:
            _kill_group(process.pid)
        wrong += self._left(place, sent, code)
        if sent is signal.SIGKILL:
            wrong += self._cleaned(place)
        if not wrong:
            shutil.rmtree(place.folder)
        moment = f"{self.name} {number}: {sent.name} after {delay:.3f} s, {code}"
        return f"{sent.name} {code}", [f"{moment}: {text}: {error[-300:]!r}" for text in wrong]

    def _ended(
        self, sent: signal.Signals, code: int, error: str, output: bytes | None
    ) -> list[str]:
        wrong = []
        if sent is signal.SIGKILL:
            expected = code in (-sent, 0)
        elif code == 130:
            # Before it, the program that is recorded may have printed something.
            before = error.removesuffix(INTERRUPTED)
            is_own = self.case.children and "traceana/" not in before
            expected = error.endswith(INTERRUPTED) and (is_own or not before)
        elif self.case.ends_by_signal and code == -sent:
            # The program that is recorded may have printed a traceback of its own.
            expected = error.endswith(
                f"traceana: interrupted by {sent.name}: nothing was recorded\n"
            )
        else:
            expected = code == 0 and INTERRUPTED not in error
        if not expected and not (self.case.ends_by_signal and self._recorded(code, error)):
            wrong.append("another end")
        if output and not all(line.startswith(b"{") for line in output.splitlines()):
            wrong.append("output that is no message")
        return wrong

    def _recorded(self, code: int, error: str) -> bool:
        """Return whether the run was recorded before: the end is that of the user's program."""
        return code in (130, -signal.SIGINT, -signal.SIGTERM, 1) and "traceana: in" not in error

    def _left(self, place: Place, sent: signal.Signals, code: int) -> list[str]:
        output = self.case.output
        after = content_of(place.folder)
        is_output = {name for name in after if output and name.split("/")[0] == output}
        wrong = []
        for name, digest in place.before.items():
            if name not in is_output and name.split("/")[0] != output and after.get(name) != digest:
                wrong.append(f"{name} of the user is lost")
        kept = ("kept/",) if self.name == "ranks" else ()
        new = after.keys() - place.before.keys() - is_output
        extra = {name for name in new if not name.startswith(kept)} if kept else new
        if sent is signal.SIGKILL:
            extra = {
                name
                for name in extra
                if _SCRATCH not in name and not name.startswith("run.partial")
            }
        if extra:
            wrong.append(f"left: {sorted(extra)[:3]}")
        folders = [path.name for path in place.folder.iterdir() if path.name.endswith(_SCRATCH)]
        temporary = self._temporary()
        if sent is not signal.SIGKILL and (folders or temporary):
            wrong.append(f"temporary files: {folders + temporary}")
        if output and not self._is_whole(place, code):
            wrong.append(f"{output} is neither the old nor the new one")
        return wrong

    def _temporary(self) -> list[str]:
        """Return traceana's entries in the folder of temporary files; PyTorch has some there."""
        names = [path.name for path in (self._home / "tmp").iterdir()]
        return [name for name in names if name.endswith(_SCRATCH)]

    def _is_whole(self, place: Place, code: int) -> bool:
        path = place.folder / self.case.output
        found = content_of(path)
        old = {
            str(Path(name).relative_to(self.case.output)): digest
            for name, digest in place.before.items()
            if name.split("/")[0] == self.case.output
        }
        if not found or found == old:
            return bool(old) <= bool(found) and code != 0
        if self.name == "record":
            from traceana.runs import read_run

            run = read_run(path)
            return all((path / name).is_file() for name in run.run.traces)
        if self.name == "export":
            import duckdb

            with duckdb.connect(str(path), read_only=True) as base:
                rows = base.execute("SELECT count(*) FROM work").fetchone()
            return rows is not None and rows[0] > 0
        return found == self._whole

    def _cleaned(self, place: Place) -> list[str]:
        """Run the command again: it deletes what the killed process left."""
        if self.name in ("mcp", "record", "ranks"):
            for name in self._temporary():
                shutil.rmtree(self._home / "tmp" / name)
            return []
        if self.name == "export":
            (place.folder / self.case.output).unlink(missing_ok=True)
        self._undisturbed(place)
        left = [path.name for path in place.folder.iterdir() if path.name.endswith(_SCRATCH)]
        left += self._temporary()
        return [f"not deleted by the next write: {left}"] if left else []


def _has_handlers(process: subprocess.Popen[bytes]) -> bool:
    """Wait until the process handles SIGTERM; return whether it does."""
    bit = 1 << (signal.SIGTERM - 1)
    end = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < end:
        status = Path(f"/proc/{process.pid}/status").read_text()
        (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
        if int(mask, 16) & bit:
            return True
        time.sleep(0.001)
    return False


def _still_runs(group: int) -> bool:
    """Return whether a process of the group runs, after some seconds in which it may end: a worker
    that has just started notices the end of its parent when its imports are done."""
    end = time.monotonic() + WORKER_S
    while time.monotonic() < end:
        if not _members(group):
            return False
        time.sleep(0.02)
    return True


def _members(group: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            found.append(int(path.parent.name))
    return found


def _kill_group(group: int) -> None:
    for process in _members(group):
        os.kill(process, signal.SIGKILL)
    while _members(group):
        time.sleep(0.02)


def moments(
    names: Sequence[str],
    count: int,
    seed: int,
    home: Path,
    watch: Callable[[str], None] = lambda text: None,
) -> tuple[dict[str, Counter[str]], list[str]]:
    """Return the ends of ``count`` moments of each command, and what is wrong."""
    ends: dict[str, Counter[str]] = {}
    wrong: list[str] = []
    for name in names:
        case = Moments(name, home / name)
        ends[name] = Counter()
        for number in range(count):
            end, failures = case.run(number, random.Random(f"{seed}:{name}:{number}"))
            ends[name][end] += 1
            wrong += failures
            for failure in failures:
                watch(failure)
        watch(f"{name} ({case.seconds:.2f} s): {dict(sorted(ends[name].items()))}")
    return ends, wrong


def main() -> int:
    """Run the moments of the command line; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.moments", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")))
    parser.add_argument("--count", type=int, default=200, help="moments of each command")
    parser.add_argument("--commands", default=",".join(CASES), help="separated by commas")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="traceana-moments-"))
    _, wrong = moments(
        given.commands.split(","),
        given.count,
        given.seed,
        home,
        lambda text: print(text, flush=True),
    )
    if not wrong:
        shutil.rmtree(home)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
