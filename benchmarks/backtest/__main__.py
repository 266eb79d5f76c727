"""Run the experiments and compare predictions with what happened.

``python -m benchmarks.backtest --output FILE.json`` records both programs of every case, predicts
the second from the recordings of the first, and writes one row a case.
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
from typing import Any

import msgspec
import polars as pl

import traceana
from benchmarks.backtest.cases import CASES, Case
from benchmarks.backtest.recording import ROUNDS
from traceana import Trace


def recorded(case: Case, folder: Path) -> tuple[list[Trace], list[Trace]]:
    """Record both programs of ``case`` in turn, in one process, and return their traces."""
    programs = msgspec.json.encode([case.before, case.after]).decode()
    words = ("-m", "benchmarks.backtest.recording", folder, programs)
    subprocess.run([sys.executable, *map(str, words)], check=True, capture_output=True)
    before, after = (
        [traceana.open(folder / f"{number}-{turn}") for turn in range(1, ROUNDS + 1)]
        for number in (0, 1)
    )
    return before, after


def row(case: Case) -> dict[str, Any]:
    """Return what was predicted of ``case`` and what happened; times in milliseconds.

    Each recording of the program before is asked alone; all figures are medians over the
    recordings. ``drift`` is how far apart the recordings of the program before are.
    """
    with tempfile.TemporaryDirectory() as folder:
        before, after = recorded(case, Path(folder))
        asked = pl.concat([trace.whatif(case.scenario).frame for trace in before])
        happened = statistics.median(map(_step_ns, after))
    found = asked.select(pl.col("step_ns", "predicted_ns", "low_ns", "high_ns").median() / 1e6)
    step, predicted, low, high = found.row(0)
    without = asked.select((pl.col("step_ns") - pl.col("at_most_ns")).median() / 1e6).item()
    steps = asked["step_ns"].to_list()
    return {
        "case": case.name,
        "scenario": case.scenario,
        "before_ms": step,
        "after_ms": happened / 1e6,
        "predicted_ms": predicted,
        "low_ms": low,
        "high_ms": high,
        "at_most_ms": without,
        "drift": (max(steps) - min(steps)) / 1e6 / step,
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
