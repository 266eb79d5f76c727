"""Run the experiments and compare predictions with what happened.

``python -m benchmarks.backtest --output FILE.json`` records both programs of every case, predicts
the second from the recording of the first, and writes one row a case.
``--table FILE.json`` prints the rows as Markdown. The results stand in ``docs/whatif.md``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec

import traceana
from benchmarks.backtest.cases import CASES, Case
from benchmarks.backtest.programs import Program
from traceana.trace import Trace

_STEADY: Final = 0.03
"""Relative difference of two recordings of one program, on a machine of one speed."""
_TRIES: Final = 3


def recorded(programs: list[Program], folder: Path) -> list[Trace]:
    """Record ``programs`` one after the other in one process, and return their traces."""
    words = ("-m", "benchmarks.backtest.programs", folder, msgspec.json.encode(programs).decode())
    subprocess.run([sys.executable, *map(str, words)], check=True, capture_output=True)
    return [traceana.open(folder / str(at)) for at in range(len(programs))]


def row(case: Case) -> dict[str, Any]:
    """Return what was predicted of ``case`` and what happened; times in milliseconds.

    The program before is recorded again after the changed one. A machine whose speed changed
    meanwhile tells nothing: then all three are recorded again.
    """
    tries: list[dict[str, Any]] = []
    while not tries or (tries[-1]["drift"] > _STEADY and len(tries) < _TRIES):
        with tempfile.TemporaryDirectory() as folder:
            tries.append(_tried(case, Path(folder)))
    return min(tries, key=lambda one: float(one["drift"]))


def _tried(case: Case, folder: Path) -> dict[str, Any]:
    before, after, again = recorded([case.before, case.after, case.before], folder)
    (found,) = before.whatif(case.scenario).frame.to_dicts()
    step = found["step_ns"]
    return {
        "case": case.name,
        "scenario": case.scenario,
        "before_ms": step / 1e6,
        "after_ms": _step_ns(after) / 1e6,
        "predicted_ms": found["predicted_ns"] / 1e6,
        "low_ms": found["low_ns"] / 1e6,
        "high_ms": found["high_ns"] / 1e6,
        "at_most_ms": (step - found["at_most_ns"]) / 1e6,
        "drift": abs(_step_ns(again) / step - 1),
    }


def _step_ns(trace: Trace) -> int:
    """Return the step time that predictions are of."""
    return int(trace.whatif("host x 1").frame["step_ns"][0])


def error(one: dict[str, Any], of: str) -> float:
    """Return how far ``of`` is from what happened, relative to the step before."""
    return float(abs(one[of] - one["after_ms"]) / one["before_ms"])


def summary(rows: list[dict[str, Any]]) -> str:
    """Return the figures of all rows, in words."""
    inside = sum(one["low_ms"] <= one["after_ms"] <= one["high_ms"] for one in rows)
    errors = [error(one, "predicted_ms") for one in rows]
    naive = [error(one, "at_most_ms") for one in rows]
    nearer = sum(a < b for a, b in zip(errors, naive, strict=True))
    nothing = sum(a > b for a, b in zip(errors, naive, strict=True))
    lines = (
        f"{len(rows)} cases: {inside} within the interval ({inside / len(rows):.0%})",
        f"median error {statistics.median(errors):.1%} of the step before",
        f"by summed time {statistics.median(naive):.1%}",
        f"nearer than by summed time in {nearer}, farther in {nothing}",
    )
    return ", ".join(lines)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "| case | scenario | before | predicted | interval | happened | error | by summed time |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for one in rows:
        within = one["low_ms"] <= one["after_ms"] <= one["high_ms"]
        happened = f"{one['after_ms']:.1f}" if within else f"**{one['after_ms']:.1f}**"
        cells = (
            *(one["case"], f"`{one['scenario']}`", f"{one['before_ms']:.1f}"),
            *(f"{one['predicted_ms']:.1f}", f"{one['low_ms']:.1f} to {one['high_ms']:.1f}"),
            *(happened, f"{error(one, 'predicted_ms'):.1%}", f"{error(one, 'at_most_ms'):.1%}"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the experiments, or print the table of a file of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backtest", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("backtest.json"))
    parser.add_argument("--table", type=Path, help="print the rows of this file, and run nothing")
    options = parser.parse_args()
    if options.table is not None:
        rows = json.loads(options.table.read_text("utf-8"))
        print(table(rows), summary(rows), sep="\n\n")
        return
    rows = []
    if options.output.exists():
        # An interrupted run goes on.
        rows = json.loads(options.output.read_text("utf-8"))
    done = {one["case"] for one in rows}
    for case in CASES:
        if case.name in done:
            continue
        rows.append(row(case))
        print(json.dumps(rows[-1]), flush=True)
        options.output.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    print(summary(rows))


if __name__ == "__main__":
    main()
