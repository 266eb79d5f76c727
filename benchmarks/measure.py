"""Runs a command in a separate process and measures its time and memory."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.source import ROOT

RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024
"""Bytes of a unit of ``ru_maxrss``."""


@dataclass(frozen=True, slots=True)
class Run:
    """Time and memory of a process, and the JSON object that it printed last."""

    wall_s: float
    user_s: float
    system_s: float
    peak_bytes: int
    printed: dict[str, Any] = field(default_factory=dict)


class FailedError(Exception):
    """The process failed or exceeded the time limit; the message is one line."""


def run(command: Sequence[str | Path], limit_s: float = 900) -> Run:
    """Run ``command`` to its end and return its cost; raises :class:`FailedError`.

    Costs are those of the process itself, by ``wait4``. The caller should use little memory: on
    Linux a process starts with the peak memory of its parent.
    """
    begin = time.perf_counter()
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(limit_s, stop)
    timer.start()
    errors: list[str] = []
    assert process.stdout is not None and process.stderr is not None
    reader = threading.Thread(target=lambda pipe: errors.extend(pipe), args=(process.stderr,))
    reader.start()
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    timer.cancel()
    reader.join()
    process.stdout.close()
    process.stderr.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    if late.is_set():
        raise FailedError(f"time limit of {limit_s:.0f} s exceeded")
    if process.returncode:
        raise FailedError((errors or [f"exit code {process.returncode}"])[-1].strip())
    return Run(
        wall, usage.ru_utime, usage.ru_stime, usage.ru_maxrss * RSS_UNIT, _last_object(output)
    )


def _last_object(output: str) -> dict[str, Any]:
    last = output.strip().rpartition("\n")[2]
    if not last.startswith("{"):
        return {}
    printed: dict[str, Any] = json.loads(last)
    return printed


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return median, minimum and maximum of ``values``, rounded to four digits."""
    known = sorted(values)
    return {
        "median": significant(statistics.median(known)),
        "least": significant(known[0]),
        "greatest": significant(known[-1]),
    }


def significant(value: float) -> float:
    """Return ``value`` rounded to four significant digits."""
    return float(f"{value:.4g}")
