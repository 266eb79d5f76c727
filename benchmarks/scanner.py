"""Kineto with and without the compiled scanner, beside ``json.loads``.

In every round each way reads the same file in a new process. CPU time is that of the whole process,
with its imports; ratios are within a round, to ``json.loads`` of the file, nothing kept.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks.ingest_kineto import Reader, measure
from benchmarks.measure import Run, run, spread
from benchmarks.outcome import Outcome, Target
from benchmarks.source import SCRATCH
from traceana.readers.compiled import COMPILED

_PARSER: Final = Reader("json_load", "json.loads, nothing kept", peer=False)
_WAYS: Final = {
    name: (
        Reader(f"traceana_{name}", f"{name}, compiled scanner", peer=False),
        Reader(f"traceana_{name}_in_python", f"{name}, decoded in Python", peer=False),
    )
    for name in ("read", "open", "report")
}
_AT_MOST: Final = {"open": 0.25, "report": 0.4}
"""Command -> greatest part of the seconds of ``json.loads``."""


def main() -> None:
    """Generate the trace and print the costs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scanner", description=main.__doc__)
    parser.add_argument("--size", type=float, default=1.0, help="approximate GB to read")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gzip", action="store_true", help="compress the trace")
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder to write to")
    options = parser.parse_args()
    if not COMPILED:
        sys.exit("the scanner is not compiled: python -m tools.build_scanner")
    scratch = options.scratch.resolve()
    size = ["--size", str(options.size), "--scratch", str(scratch)]
    trace = run([sys.executable, "-m", "benchmarks.generate_kineto", *size]).printed
    path = Path(trace["path"])
    readers = [_PARSER, *(reader for pair in _WAYS.values() for reader in pair)]
    if options.gzip:
        path = _compressed(path)
        readers = readers[1:]
    costs = measure(path, readers, options.rounds, 900)
    runs = {
        name: [cost for cost in found if isinstance(cost, Run)] for name, found in costs.items()
    }
    result = Outcome(
        "scanner",
        {"file": path.name, "mb": round(path.stat().st_size / 1e6), "events": trace["events"]},
        [_row(reader, runs) for reader in readers if runs[reader.name]],
        [] if options.gzip else _targets(runs),
    )
    result.show()
    result.save(options.scratch / "results")


def _compressed(path: Path) -> Path:
    compressed = path.with_suffix(".json.gz")
    with path.open("rb") as plain, gzip.open(compressed, "wb", compresslevel=6) as file:
        shutil.copyfileobj(plain, file, 1 << 24)
    return compressed


def _row(reader: Reader, runs: dict[str, list[Run]]) -> dict[str, Any]:
    own = runs[reader.name]
    row = {
        "way": reader.label,
        "seconds": spread(_seconds(one) for one in own),
        "CPU s": spread(_cpu(one) for one in own),
        "peak MB": round(max(one.peak_bytes for one in own) / 1e6),
    }
    parsed = runs.get(_PARSER.name)
    if not parsed:
        return row
    pairs = list(zip(own, parsed, strict=False))
    return {
        **row,
        "ratio": spread(_seconds(one) / _seconds(other) for one, other in pairs),
        "CPU ratio": spread(_cpu(one) / _cpu(other) for one, other in pairs),
    }


def _targets(runs: dict[str, list[Run]]) -> list[Target]:
    parsed = runs[_PARSER.name]
    return [
        Target(
            f"{_WAYS[name][0].label}, seconds of those of json.loads",
            bound,
            statistics.median(
                _seconds(one) / _seconds(other)
                for one, other in zip(runs[_WAYS[name][0].name], parsed, strict=False)
            ),
        )
        for name, bound in _AT_MOST.items()
    ]


def _seconds(cost: Run) -> float:
    return float(cost.printed["seconds"])


def _cpu(cost: Run) -> float:
    return cost.user_s + cost.system_s


if __name__ == "__main__":
    main()
