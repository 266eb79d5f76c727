"""``traceana ranks`` on jobs made from a recorded rank: ``python -m benchmarks.ranks SOURCE``.

Time by number of ranks and of processes, memory of the process that shows the rows, and whether the
rows are those of the made job (``generate_job.py``). With ``--kills N`` the largest job is read N
times while processes that read are killed at random moments, one for twenty files; the output must
be the same bytes. The results stand in ``docs/ranks.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psutil  # type: ignore[import-untyped]

from benchmarks import measure
from benchmarks.generate_job import Truth, make
from benchmarks.outcome import table

_EFFECT: Final = 0.05
_FILES_A_KILL: Final = 20


def command(folder: Path, keep: Path, workers: int) -> list[str]:
    """Return the command that reads the job in ``folder`` and writes ``job.json`` into ``keep``."""
    output = keep / "job.json"
    words = ("ranks", folder, "--workers", workers, "--keep", keep / "kept", "-o", output)
    return [sys.executable, "-m", "traceana", *map(str, words)]


def row(folder: Path, truth: Truth, workers: int) -> dict[str, Any]:
    """Return what reading the job cost, and how its rows differ from the truth."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as keep:
        cost = measure.run(command(folder, Path(keep), workers), limit_s=3600)
        found = json.loads(Path(keep, "job.json").read_bytes())
    rows = {one["rank"]: one for one in found["rows"]}
    read = {rank: one for rank, one in rows.items() if one["status"] == "ok"}
    # Durations are written in nanoseconds.
    sums = [round(1000 * truth.kernel_us[rank]) == one["kernel_ns"] for rank, one in read.items()]
    stragglers = [rank for rank, one in rows.items() if one["straggler"]]
    return {
        "ranks": truth.ranks,
        "processes": workers,
        "wall s": f"{cost.wall_s:.1f}",
        "CPU s": f"{cost.user_s + cost.system_s:.1f}",
        "peak MB": f"{cost.peak_bytes / 1e6:.0f}",
        "exact sums": f"{sum(sums)} of {len(sums)}",
        "offsets within": _offsets(truth, read),
        "straggler": f"{stragglers} of [{truth.straggler}]",
        "not ok": sorted(set(rows) - set(read)) == sorted([*truth.missing, *truth.cut]),
    }


def _offsets(truth: Truth, read: dict[int, dict[str, Any]]) -> str:
    """Return how many clocks are known within their uncertainty.

    Offsets are against a rank in the middle, which damaged ranks move: so only differences count.
    """
    known = {rank: one for rank, one in read.items() if one["clock_offset_ns"] is not None}
    error = {
        rank: one["clock_offset_ns"] / 1000 - truth.offset_us[rank] for rank, one in known.items()
    }
    middle = statistics.median(error.values()) if error else 0.0
    good = [
        abs(error[rank] - middle) <= one["clock_uncertainty_ns"] / 1000
        for rank, one in known.items()
    ]
    return f"{sum(good)} of {len(good)}"


def kill_some(folder: Path, files: int, seed: int) -> tuple[bytes, int]:
    """Return the output of a run whose reading processes are killed, and how many were."""
    rng = random.Random(seed)
    wanted, killed = max(1, files // _FILES_A_KILL), 0
    with tempfile.TemporaryDirectory(dir=folder.parent) as keep:
        running = subprocess.Popen(command(folder, Path(keep), 2), stderr=subprocess.DEVNULL)
        own = psutil.Process(running.pid)
        while running.poll() is None and killed < wanted:
            time.sleep(rng.uniform(0.2, 0.6))
            try:
                below = [one for one in own.children() if "spawn_main" in " ".join(one.cmdline())]
            except psutil.Error:
                break
            for one in rng.sample(below, min(1, len(below))):
                os.kill(one.pid, signal.SIGKILL)
                killed += 1
        running.wait(timeout=3600)
        output = Path(keep, "job.json").read_bytes()
    return output, killed


def main() -> None:
    """Make the jobs, read them, and print what it cost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    parser.add_argument("source", type=Path, help="a Kineto trace with NCCL's kernels")
    parser.add_argument("--ranks", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--kills", type=int, default=0, help="runs in which processes are killed")
    parser.add_argument("--scratch", type=Path, default=None, help="folder to write to")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder = Path(scratch, "job")
        for ranks in options.ranks:
            shutil.rmtree(folder, ignore_errors=True)
            truth = make(
                options.source,
                folder,
                ranks,
                straggler=ranks // 3,
                effect=_EFFECT,
                missing=(ranks // 2,),
                cut=(ranks // 4,),
            )
            for processes in options.processes:
                rows.append(row(folder, truth, processes))
                print(json.dumps(rows[-1]), flush=True)
        if options.kills:
            with tempfile.TemporaryDirectory(dir=scratch) as keep:
                subprocess.run(command(folder, Path(keep), 2), capture_output=True, check=True)
                plain = Path(keep, "job.json").read_bytes()
            for seed in range(options.kills):
                output, killed = kill_some(folder, options.ranks[-1], seed)
                same = "the same bytes" if output == plain else "DIFFERENT"
                print(f"{killed} processes killed: {same}", flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
