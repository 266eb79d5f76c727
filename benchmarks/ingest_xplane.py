"""Reading a large XPlane file: traceana against loops over protobuf's classes, and xprof.

Every way reads the same file in a fresh process, in turn, round after round. Ratios are taken
within a round.
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
_WAYS: Final = {
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
"""Bytes from which the targets hold."""

Costs = dict[str, list[Run | str]]


def measure(path: Path, rounds: int, limit_s: float) -> Costs:
    """Run every way in every round; a way that failed is not run again."""
    costs: Costs = {way: [] for way in _WAYS}
    for number in range(rounds):
        for way, label in _WAYS.items():
            if any(isinstance(cost, str) for cost in costs[way]):
                continue
            cost = _once(way, path, limit_s)
            costs[way].append(cost)
            shown = cost if isinstance(cost, str) else f"{cost.said['seconds']:.2f} s"
            print(f"round {number + 1} of {rounds}, {label}: {shown}", file=sys.stderr)
    return costs


def _once(way: str, path: Path, limit_s: float) -> Run | str:
    python = Path(sys.executable) if way.startswith("traceana") else peers.XPLANE_PYTHON
    if not python.exists():
        return "not installed: python -m benchmarks.peers"
    try:
        return run([python, "-m", _MODULE, way, path], limit_s)
    except FailedError as error:
        return str(error)


def outcome(trace: dict[str, Any], costs: Costs) -> Outcome:
    """Turn costs into rows, ratios and verdicts; ``trace`` is what the generator said of it."""
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
                what = f"{_WAYS[subject]}: times faster than {_WAYS[other]}"
                targets.append(Target(what, bound, found["median"], at_least=True))
    return Outcome(
        "ingest_xplane",
        {"file": path.name, "mb": round(trace["bytes"] / 1e6), "events": trace["events"]},
        [_row(way, costs, trace) for way in _WAYS],
        targets,
        [
            "seconds: the work alone, imports done before; process: from start to end",
            "the loop keeps one tuple an event; xprof gets a folder without its caches",
        ],
        machine.facts(),
    )


def _row(way: str, costs: Costs, trace: dict[str, Any]) -> dict[str, Any]:
    runs = _runs(costs[way])
    if not runs:
        return {"way": _WAYS[way], "seconds": str(costs[way][-1])}
    seconds = [float(cost.said["seconds"]) for cost in runs]
    return {
        "way": _WAYS[way],
        "seconds": spread(seconds),
        "process": significant(statistics.median(cost.wall_s for cost in runs)),
        "user": significant(statistics.median(cost.user_s for cost in runs)),
        "system": significant(statistics.median(cost.system_s for cost in runs)),
        "loop's CPU, times": _cpu_ratio(costs[way], costs[_LOOP]),
        "peak MB": round(max(cost.peak_bytes for cost in runs) / 1e6),
        "events/s": round(trace["events"] / statistics.median(seconds)),
        "MB/s": round(trace["bytes"] / 1e6 / statistics.median(seconds)),
        "versions": ", ".join(f"{k} {v}" for k, v in runs[-1].said["versions"].items()),
    }


def _ratios(costs: Costs, subject: str, other: str) -> dict[str, float] | None:
    pairs = zip(costs[subject], costs[other], strict=False)
    ratios = [
        theirs.said["seconds"] / own.said["seconds"]
        for own, theirs in pairs
        if isinstance(own, Run) and isinstance(theirs, Run)
    ]
    return spread(ratios) if ratios else None


def _cpu_ratio(own: list[Run | str], loop: list[Run | str]) -> dict[str, float] | str:
    """Return by how much the loop's process took more CPU time than this way's, round by round."""
    ratios = [
        (theirs.user_s + theirs.system_s) / (mine.user_s + mine.system_s)
        for mine, theirs in zip(own, loop, strict=False)
        if isinstance(mine, Run) and isinstance(theirs, Run)
    ]
    return spread(ratios) if ratios else "-"


def _runs(costs: list[Run | str]) -> list[Run]:
    return [cost for cost in costs if isinstance(cost, Run)]


def main() -> None:
    """Make the file, let all ways read it in turn and print what each cost."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ingest_xplane", description=main.__doc__
    )
    parser.add_argument("--source", type=Path, default=default_source(), help="file to repeat")
    parser.add_argument("--size", type=float, default=0.4, help="GB to read, about")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--limit", type=float, default=300, help="seconds after which to stop")
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder to write to")
    options = parser.parse_args()
    generator = [sys.executable, "-m", "benchmarks.generate_xplane", "--size", str(options.size)]
    generator += ["--source", str(options.source.resolve())]
    trace = run([*generator, "--scratch", str(options.scratch.resolve())]).said
    result = outcome(trace, measure(Path(trace["path"]), options.rounds, options.limit))
    result.show()
    result.save(options.scratch / "results")


if __name__ == "__main__":
    main()
