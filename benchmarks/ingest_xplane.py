"""Reading a large XPlane file: traceana, loops over protobuf's classes, and xprof.

In every round each reader reads the same file in a new process. Ratios are within a round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks import machine, peers
from benchmarks.generate_xplane import default_source
from benchmarks.measure import FailedError, Run, run, significant, spread
from benchmarks.outcome import Outcome, Target
from benchmarks.source import SCRATCH

_MODULE: Final = "benchmarks.contender_xplane"
_READERS: Final = {
    "traceana_decode": "traceana, decode: all events and stats",
    "protobuf_loop": "protobuf classes (upb) and a loop",
    "traceana_read": "traceana, read into the tables",
    "xprof_kernel_stats": "xprof, kernel_stats",
    "protobuf_parse": "protobuf classes (upb), parse alone",
}
_LOOP: Final = "protobuf_loop"
_XPROF: Final = "xprof_kernel_stats"
_TIMES_FASTER: Final = 4.0
_LARGE: Final = 300_000_000
"""Smallest file for the targets, in bytes."""

Costs = dict[str, list[Run | str]]


def measure(path: Path, rounds: int, limit_s: float) -> Costs:
    """Return the costs of every reader in every round; one that failed is not run again."""
    costs: Costs = {reader: [] for reader in _READERS}
    for number in range(rounds):
        for reader, label in _READERS.items():
            if any(isinstance(cost, str) for cost in costs[reader]):
                continue
            cost = _once(reader, path, limit_s)
            costs[reader].append(cost)
            shown = cost if isinstance(cost, str) else f"{cost.printed['seconds']:.2f} s"
            print(f"round {number + 1} of {rounds}, {label}: {shown}", file=sys.stderr)
    return costs


def _once(reader: str, path: Path, limit_s: float) -> Run | str:
    python = Path(sys.executable) if reader.startswith("traceana") else peers.XPLANE_PYTHON
    if not python.exists():
        return "not installed: python -m benchmarks.peers"
    try:
        return run([python, "-m", _MODULE, reader, path], limit_s)
    except FailedError as error:
        return str(error)


def outcome(trace: dict[str, Any], costs: Costs) -> Outcome:
    """Return rows, ratios and verdicts of ``costs``; ``trace`` is the generator's description."""
    path = Path(trace["path"])
    targets = []
    if trace["bytes"] >= _LARGE:
        for subject, other in (
            ("traceana_decode", _LOOP),
            ("traceana_read", _LOOP),
            ("traceana_read", _XPROF),
        ):
            if found := _ratios(costs, subject, other):
                bound = 1.0 if other == _XPROF else _TIMES_FASTER
                what = f"{_READERS[subject]}: times faster than {_READERS[other]}"
                targets.append(Target(what, bound, found["median"], at_least=True))
    return Outcome(
        "ingest_xplane",
        {"file": path.name, "mb": round(trace["bytes"] / 1e6), "events": trace["events"]},
        [_row(reader, costs, trace) for reader in _READERS],
        targets,
        [
            "seconds: reading without imports; process: from start to end",
            "the loop keeps one tuple per event; xprof gets a folder without its caches",
        ],
        machine.facts(),
    )


def _row(reader: str, costs: Costs, trace: dict[str, Any]) -> dict[str, Any]:
    runs = _runs(costs[reader])
    if not runs:
        return {"reader": _READERS[reader], "seconds": str(costs[reader][-1])}
    seconds = [float(cost.printed["seconds"]) for cost in runs]
    return {
        "reader": _READERS[reader],
        "seconds": spread(seconds),
        "process": significant(statistics.median(cost.wall_s for cost in runs)),
        "user": significant(statistics.median(cost.user_s for cost in runs)),
        "system": significant(statistics.median(cost.system_s for cost in runs)),
        "loop's CPU, times": _cpu_ratio(costs[reader], costs[_LOOP]),
        "peak MB": round(max(cost.peak_bytes for cost in runs) / 1e6),
        "events/s": round(trace["events"] / statistics.median(seconds)),
        "MB/s": round(trace["bytes"] / 1e6 / statistics.median(seconds)),
        "versions": ", ".join(f"{k} {v}" for k, v in runs[-1].printed["versions"].items()),
    }


def _ratios(costs: Costs, subject: str, other: str) -> dict[str, float] | None:
    pairs = zip(costs[subject], costs[other], strict=False)
    ratios = [
        theirs.printed["seconds"] / own.printed["seconds"]
        for own, theirs in pairs
        if isinstance(own, Run) and isinstance(theirs, Run)
    ]
    return spread(ratios) if ratios else None


def _cpu_ratio(own: list[Run | str], loop: list[Run | str]) -> dict[str, float] | str:
    """Return the ratio of the loop's CPU time to this reader's, over the rounds."""
    ratios = [
        (theirs.user_s + theirs.system_s) / (mine.user_s + mine.system_s)
        for mine, theirs in zip(own, loop, strict=False)
        if isinstance(mine, Run) and isinstance(theirs, Run)
    ]
    return spread(ratios) if ratios else "-"


def _runs(costs: list[Run | str]) -> list[Run]:
    return [cost for cost in costs if isinstance(cost, Run)]


def main() -> None:
    """Generate the file, read it with every reader and print the costs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ingest_xplane", description=main.__doc__
    )
    parser.add_argument("--source", type=Path, default=default_source(), help="file to repeat")
    parser.add_argument("--size", type=float, default=0.4, help="approximate GB to read")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--limit", type=float, default=300, help="time limit of a reader in seconds"
    )
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder to write to")
    options = parser.parse_args()
    generator = [sys.executable, "-m", "benchmarks.generate_xplane", "--size", str(options.size)]
    generator += ["--source", str(options.source.resolve())]
    trace = run([*generator, "--scratch", str(options.scratch.resolve())]).printed
    result = outcome(trace, measure(Path(trace["path"]), options.rounds, options.limit))
    result.show()
    result.save(options.scratch / "results")


if __name__ == "__main__":
    main()
