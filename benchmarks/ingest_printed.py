"""The same kernels as nvprof prints them, as text and CSV, and as nvprof's database.

Each file is given to the whole command ``traceana kernels``, in a new process, in every round.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.measure import FailedError, Run, run, significant, spread
from benchmarks.outcome import Outcome, Target
from benchmarks.source import SCRATCH

_TIMES: Final = 3.0
_NAMES: Final = 200
_BYTES_OF_A_LINE: Final = 240
_TEXT: Final = "{:>8} {:>9} {:>20} {:>15} {:>9} {:>9} {:>9} {:>9} {:>11} {:>20} {:>9} {:>9}  {}\n"
_TEXT_TITLES: Final = (
    *("Start", "Duration", "Grid Size", "Block Size", "Regs*", "SSMem*", "DSMem*", "Size"),
    *("Throughput", "Device", "Context", "Stream", "Name"),
)
_CSV_TITLES: Final = (
    *("Start", "Duration", "Grid X", "Grid Y", "Grid Z", "Block X", "Block Y", "Block Z"),
    *("Registers Per Thread", "Static SMem", "Dynamic SMem", "Size", "Throughput"),
    *("SrcMemType", "DstMemType", "Device", "Context", "Stream", "Name", "Correlation_ID"),
)
_CSV_UNITS: Final = "us,us,,,,,,,,B,B,,,,,,,,,"
_DEVICE: Final = "Built GPU (0)"
_TABLES: Final = """
CREATE TABLE Version (version INTEGER);
INSERT INTO Version VALUES (16);
CREATE TABLE StringTable (_id_ INTEGER PRIMARY KEY AUTOINCREMENT, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL (
    _id_ INTEGER PRIMARY KEY AUTOINCREMENT, start INTEGER, end INTEGER, deviceId INTEGER,
    contextId INTEGER, streamId INTEGER, correlationId INTEGER, name INTEGER,
    registersPerThread INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER,
    gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER
);
"""


class Kernel(NamedTuple):
    """A kernel; times in ns."""

    start: int
    duration: int
    grid: int
    name: int
    correlation: int


def kernels(rows: int) -> Iterator[Kernel]:
    """Yield ``rows`` kernels, one after the other, no two with the same times."""
    start = 1_000_000
    for number in range(rows):
        duration = 1_000 + 7 * (number % 9_973)
        yield Kernel(start, duration, 1 + number % 65_535, number % _NAMES, number + 1)
        start += duration + 13


def name(number: int) -> str:
    """Return one of the kernels' names, as long as templates make them."""
    tile = f"{32 * (1 + number % 8)}x{32 * (1 + number // 8)}"
    return f"void built::volta_sgemm_{tile}_nn<float, int={number}, bool=1>(float*, float const *)"


def write(folder: Path, megabytes: float) -> dict[str, Path]:
    """Write the files, the one of text with ``megabytes``; return them by kind."""
    rows = round(1e6 * megabytes / _BYTES_OF_A_LINE)
    stem = folder / f"printed-{rows}"
    paths = {kind: stem.with_suffix(f".{kind}") for kind in ("txt", "csv", "nvvp")}
    if all(path.exists() for path in paths.values()):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    with paths["txt"].open("w") as text, paths["csv"].open("w") as csv:
        text.write("==1== Profiling result:\n" + _TEXT.format(*_TEXT_TITLES))
        titles = ",".join(f'"{title}"' for title in _CSV_TITLES)
        csv.write(f"==1== Profiling result:\n{titles}\n{_CSV_UNITS}\n")
        for one in kernels(rows):
            text.write(
                _TEXT.format(
                    f"{one.start / 1e6:.5g}ms" if one.start < 1e9 else f"{one.start / 1e9:.5g}s",
                    f"{one.duration / 1e3:.5g}us",
                    *(f"({one.grid} 1 1)", "(256 1 1)", 32, "1.0000KB", "0B", "-", "-"),
                    *(_DEVICE, 1, 7, f"{name(one.name)} [{one.correlation}]"),
                )
            )
            csv.write(
                f"{one.start / 1e3:.6f},{one.duration / 1e3:.6f},{one.grid},1,1,256,1,1,32,1024,0,"
                f',,,,"{_DEVICE}","1","7","{name(one.name)}",{one.correlation}\n'
            )
    paths["nvvp"].unlink(missing_ok=True)
    with closing(sqlite3.connect(paths["nvvp"])) as database:
        database.executescript(_TABLES)
        texts = ((number + 1, name(number)) for number in range(_NAMES))
        database.executemany("INSERT INTO StringTable VALUES (?, ?)", texts)
        table = "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL"
        database.executemany(
            f"INSERT INTO {table} VALUES (NULL, {', '.join('?' * 16)})",
            (
                (
                    *(one.start, one.start + one.duration, 0, 1, 7, one.correlation, one.name + 1),
                    *(32, 1024, 0, one.grid, 1, 1, 256, 1, 1),
                )
                for one in kernels(rows)
            ),
        )
        database.commit()
    return paths


def outcome(paths: dict[str, Path], rounds: int) -> Outcome:
    """Run the command on each file in every round; return times and ratios to the database."""
    costs: dict[str, list[Run]] = {kind: [] for kind in paths}
    for _ in range(rounds):
        for kind, path in paths.items():
            command = [sys.executable, "-m", "traceana", "kernels", str(path), "--limit", "1"]
            costs[kind].append(run(command))
    ratios = {
        kind: [
            (one.user_s + one.system_s) / (own.user_s + own.system_s)
            for one, own in zip(of, costs["nvvp"], strict=True)
        ]
        for kind, of in costs.items()
    }
    rows = [
        {
            "file": path.name,
            "mb": round(path.stat().st_size / 1e6),
            "wall": spread(one.wall_s for one in costs[kind]),
            "CPU": significant(statistics.median(o.user_s + o.system_s for o in costs[kind])),
            "peak MB": round(max(one.peak_bytes for one in costs[kind]) / 1e6),
            "CPU ratio": spread(ratios[kind]),
        }
        for kind, path in paths.items()
    ]
    targets = [
        Target(f"CPU of {kind} over that of the database", _TIMES, statistics.median(ratios[kind]))
        for kind in ("txt", "csv")
    ]
    return Outcome("ingest_printed", {"rounds": rounds}, rows, targets)


def main() -> None:
    """Write the files, and read each with the whole command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ingest_printed", description=main.__doc__
    )
    parser.add_argument("--size", type=float, default=500.0, help="MB of the text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder to write to")
    options = parser.parse_args()
    try:
        result = outcome(write(options.scratch, options.size), options.rounds)
    except FailedError as error:
        sys.exit(str(error))
    result.show()
    result.save(options.scratch / "results")


if __name__ == "__main__":
    main()
