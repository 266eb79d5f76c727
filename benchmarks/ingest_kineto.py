"""Reading a large Kineto trace: traceana, HolisticTraceAnalysis and plain JSON decoders.

In every round each reader reads the same file in a new process, so that other load on the machine
affects all readers. Ratios are within a round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import machine, peers
from benchmarks.measure import FailedError, Run, run, significant, spread
from benchmarks.outcome import Outcome, Target
from benchmarks.source import SCRATCH

_CONTENDER: Final = Path(__file__).with_name("contender.py")
_SUBJECT: Final = "traceana_read"
_PEERS: Final = ("hta_parse", "hta_parse_ijson")
_TIMES_FASTER: Final = 4.0
_MB_PER_MILLION_EVENTS: Final = 450.0
_LARGE: Final = 500_000_000
"""Smallest file for the targets: with smaller ones the libraries' import dominates."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A function of ``contender.py`` and its label."""

    name: str
    label: str
    peer: bool = True


WAYS: Final = (
    Reader(_SUBJECT, "traceana, read", peer=False),
    Reader("hta_parse", "HTA parse, its default (json)"),
    Reader("traceana_open", "traceana, read + classify + attribute", peer=False),
    Reader("hta_parse_ijson", "HTA parse, ijson batches"),
    Reader("json_load", "json.loads, nothing kept"),
    Reader("orjson_polars", "orjson whole file -> polars, 6 columns"),
)
ANALYSIS: Final = Reader("hta_analysis", "HTA TraceAnalysis(...)")


def measure(
    path: Path, readers: Sequence[Reader], rounds: int, limit_s: float
) -> dict[str, list[Run | str]]:
    """Return the costs of every reader in every round; one that failed is not run again."""
    costs: dict[str, list[Run | str]] = {reader.name: [] for reader in readers}
    for number in range(rounds):
        for reader in readers:
            if any(isinstance(cost, str) for cost in costs[reader.name]):
                continue
            cost = _once(reader, path, limit_s)
            costs[reader.name].append(cost)
            shown = cost if isinstance(cost, str) else f"{cost.printed['seconds']:.1f} s"
            print(f"round {number + 1} of {rounds}, {reader.label}: {shown}", file=sys.stderr)
    return costs


def _once(reader: Reader, path: Path, limit_s: float) -> Run | str:
    python = peers.PYTHON if reader.peer else Path(sys.executable)
    if not python.exists():
        return "not installed: python -m benchmarks.peers"
    try:
        return run([python, "-P", _CONTENDER, reader.name, path], limit_s)
    except FailedError as error:
        return str(error)


def outcome(
    trace: dict[str, Any], costs: dict[str, list[Run | str]], readers: Sequence[Reader]
) -> Outcome:
    """Return rows, ratios and verdicts of ``costs``; ``trace`` is the generator's description."""
    rows = [_row(reader, costs, trace) for reader in readers if costs[reader.name]]
    path = Path(trace["path"])
    return Outcome(
        "ingest_kineto",
        {"file": path.name, "mb": round(trace["bytes"] / 1e6), "events": trace["events"]},
        rows,
        _targets(costs, trace),
        [
            "seconds: reading without imports; process: from start to end",
            "ratio: seconds of this reader over those of traceana's read in the same round",
            "CPU ratio: of user and system time of the whole process, less affected by other load "
            "on the machine",
        ],
        {**machine.facts(), "peers": _versions(costs)},
    )


def _row(
    reader: Reader, costs: dict[str, list[Run | str]], trace: dict[str, Any]
) -> dict[str, Any]:
    runs = _runs(costs[reader.name])
    row: dict[str, Any] = {"reader": reader.label}
    if not runs:
        return {**row, "seconds": str(costs[reader.name][-1])}
    seconds = statistics.median(map(_seconds, runs))
    return {
        **row,
        "seconds": spread(map(_seconds, runs)),
        "process": significant(statistics.median(cost.wall_s for cost in runs)),
        "user": significant(statistics.median(cost.user_s for cost in runs)),
        "peak MB": round(max(cost.peak_bytes for cost in runs) / 1e6),
        "MB/M events": round(_memory(runs, trace)),
        "events/s": round(trace["events"] / seconds),
        "MB/s": round(trace["bytes"] / 1e6 / seconds),
        "ratio": _ratios(costs, reader.name, _seconds),
        "CPU ratio": _ratios(costs, reader.name, _cpu),
        "rows": runs[-1].printed["rows"],
    }


def _targets(costs: dict[str, list[Run | str]], trace: dict[str, Any]) -> list[Target]:
    subject = _runs(costs[_SUBJECT])
    if not subject or trace["bytes"] < _LARGE:
        return []
    targets = [
        Target("peak MB per million events", _MB_PER_MILLION_EVENTS, _memory(subject, trace))
    ]
    for reader in WAYS:
        if reader.name in _PEERS and (ratios := _ratios(costs, reader.name, _seconds)):
            what = f"times faster than {reader.label}"
            targets.append(Target(what, _TIMES_FASTER, ratios["median"], at_least=True))
    return targets


def _ratios(
    costs: dict[str, list[Run | str]], name: str, cost: Callable[[Run], float]
) -> dict[str, float] | None:
    ratios = [
        cost(other) / cost(own)
        for own, other in zip(costs[_SUBJECT], costs[name], strict=False)
        if isinstance(own, Run) and isinstance(other, Run)
    ]
    return spread(ratios) if ratios else None


def _seconds(cost: Run) -> float:
    return float(cost.printed["seconds"])


def _cpu(cost: Run) -> float:
    return cost.user_s + cost.system_s


def _memory(runs: Sequence[Run], trace: dict[str, Any]) -> float:
    return max(cost.peak_bytes for cost in runs) / float(trace["events"])


def _runs(costs: Sequence[Run | str]) -> list[Run]:
    return [cost for cost in costs if isinstance(cost, Run)]


def _versions(costs: dict[str, list[Run | str]]) -> dict[str, str]:
    # traceana's versions are among the facts of the machine.
    return {
        package: found
        for name, of_way in costs.items()
        if not name.startswith("traceana")
        for cost in _runs(of_way)
        for package, found in cost.printed["versions"].items()
    }


def main() -> None:
    """Generate the trace, read it with every reader and print the costs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ingest_kineto", description=main.__doc__
    )
    parser.add_argument("--source", type=Path, help="the Kineto trace to repeat")
    parser.add_argument("--size", type=float, default=1.0, help="approximate GB to read")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--limit", type=float, default=300, help="time limit of a reader in seconds"
    )
    parser.add_argument(
        "--analysis", action="store_true", help="also HTA's TraceAnalysis, which takes minutes"
    )
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder to write to")
    options = parser.parse_args()
    generator = [sys.executable, "-m", "benchmarks.generate_kineto", "--size", str(options.size)]
    if options.source:
        generator += ["--source", str(options.source.resolve())]
    # In a separate process: its memory would count in the peak memory of later child processes.
    try:
        trace = run([*generator, "--scratch", str(options.scratch.resolve())]).printed
    except FailedError as error:
        sys.exit(str(error))
    readers = [*WAYS, ANALYSIS] if options.analysis else WAYS
    costs = measure(Path(trace["path"]), readers, options.rounds, options.limit)
    result = outcome(trace, costs, readers)
    result.show()
    result.save(options.scratch / "results")


if __name__ == "__main__":
    main()
