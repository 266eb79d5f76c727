"""Idle time of ten million activities: its causes, the table of them, and the devices'.

The generated input defines the causes, against which the result is checked.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from benchmarks.idle_trace import DEVICES, known, trace
from benchmarks.measure import FailedError, Run, run, spread
from benchmarks.outcome import Outcome
from benchmarks.source import SCRATCH
from traceana.advise.saved import save
from traceana.analyze.devices import devices
from traceana.timeline.idle import idle, idle_time
from traceana.trace import Trace
from traceana.trace.bundle import load

_PARTS: Final = ("causes of the gaps", "the table of causes", "the table of devices")


def measure(made: Trace, expected: dict[str, tuple[int, int]]) -> dict[str, float]:
    """Return the CPU seconds of each part of ``traceana idle``; exits on a wrong cause."""
    took: dict[str, float] = {}
    found = _clock(took, _PARTS[0], partial(idle_time, made))
    result = _clock(took, _PARTS[1], partial(idle, made, found=found))
    _clock(took, _PARTS[2], partial(devices, made, found=found))
    sums = result.frame.group_by("cause").agg(pl.col("count", "time_ns").sum())
    if {cause: (count, time) for cause, count, time in sums.iter_rows()} != expected:
        sys.exit("wrong causes: the times are invalid")
    return took


def outcome(activities: int, runs: list[Run]) -> Outcome:
    """Return the cost of ``runs`` of :func:`measure`."""
    rows: list[dict[str, Any]] = [
        {"what": part, "CPU s": spread(one.printed["took"][part] for one in runs)}
        for part in _PARTS
    ]
    rows.append(
        {"what": "together", "CPU s": spread(sum(one.printed["took"].values()) for one in runs)}
    )
    rows.append({"what": "process", "peak MB": spread(one.peak_bytes / 1e6 for one in runs)})
    about = {
        "activities": activities,
        "gaps": sum(count for count, _ in known(activities).values()),
        "devices": DEVICES,
        "tables MB": runs[0].printed["tables_mb"],
    }
    notes = ["CPU s: user and system time of all threads", "peak: with the tables of the trace"]
    return Outcome("idle", about, rows, [], notes)


def _clock(took: dict[str, float], what: str, work: Callable[[], Any]) -> Any:
    begin = _cpu()
    result = work()
    took[what] = _cpu() - begin
    return result


def _cpu() -> float:
    times = os.times()
    return times.user + times.system


def _measured(bundle: Path, activities: int) -> None:
    made = load(bundle)
    tables = [made.tables[name] for name in ("activities", "calls", "ops", "ranges", "steps")]
    size = sum(table.estimated_size() for table in tables) // 10**6
    print(json.dumps({"took": measure(made, known(activities)), "tables_mb": size}))


def main() -> None:
    """Print the cost of computing idle time and its causes for many activities."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle", description=main.__doc__)
    parser.add_argument("--activities", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder to write to")
    # Each runs in its own process, so that its peak memory is its own.
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    bundle = options.scratch.resolve() / f"idle-{options.activities}"
    if options.make:
        bundle.parent.mkdir(parents=True, exist_ok=True)
        save(trace(options.activities), bundle, overwrite=True)
        return
    if options.measure:
        _measured(bundle, options.activities)
        return
    command = [sys.executable, "-m", "benchmarks.idle", "--activities", str(options.activities)]
    command += ["--scratch", str(options.scratch.resolve())]
    try:
        run([*command, "--make"])
        runs = [run([*command, "--measure"]) for _ in range(options.rounds)]
    except FailedError as error:
        sys.exit(str(error))
    result = outcome(options.activities, runs)
    result.show()
    result.save(options.scratch / "results")


if __name__ == "__main__":
    main()
