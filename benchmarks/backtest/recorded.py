"""Predictions for pairs of recorded GPU programs, held against their step times without a profiler.

``python -m benchmarks.backtest.recorded FOLDER …`` reads ``variants.jsonl`` of each folder, a line
for each program with its ``before``, the ``change`` and its step times without a profiler, and the
traces beside it or in ``traces/``. It predicts each program from the trace of the one before alone,
and prints a Markdown table and a summary, which stand in ``docs/whatif.md``.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any, Final

import traceana
from benchmarks.backtest.__main__ import summary, table
from traceana.errors import TraceanaError
from traceana.timeline.steps import step_time

_SCENARIOS: Final = {
    "nothing": "host x 1",
    "class relu x 0 (activations)": "relu x 0",
    "largest branch x 0.5": None,
    "optimizer as a loop": None,
    "foreach-optimizer": None,
    "no-item": None,
    "synchronize each step": None,
    "smallest branch x 0": None,
    "bf16": None,
    "products x 0.5": "gemm x 0.5",
    "overlapped-copies": "overlapped-copies",
}
"""Scenarios of changes that are called otherwise, None where no scenario stands for one."""


def _unprofiled(one: dict[str, Any]) -> float:
    """Return the step time without a profiler, in ns: before and after the recording."""
    before = float(one.get("mean_before_ns") or one["mean_ns"])
    return (before + float(one["mean_after_ns"])) / 2


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return one row a pair; times in milliseconds."""
    lines = [json.loads(line) for line in (folder / "variants.jsonl").read_text().splitlines()]
    known = {one["name"]: one for one in lines if one.get("mean_after_ns")}
    found = []
    for one in known.values():
        before, change = known.get(one.get("before")), one.get("change")
        scenario = _SCENARIOS.get(change, change)
        files = [place / f"{one.get('before')}.json.gz" for place in (folder, folder / "traces")]
        there = [file for file in files if file.is_file()]
        if before is None or scenario is None or not there:
            continue
        if scenario.startswith("recording:"):
            other = scenario.partition(":")[2]
            scenario = f"recording:{there[0].parent / other}.json.gz"
        if one["name"].endswith("prefetch") and "pinned" not in one["before"]:
            scenario = "pinned + overlapped-copies"
        try:
            trace = traceana.open(there[0])
            (asked,) = trace.whatif(scenario).frame.to_dicts()
        except TraceanaError as error:
            print(f"{one['name']}: {error}")
            continue
        base = asked["step_ns"]
        recorded = step_time(trace.recorded or trace)
        found.append(
            {
                "case": one["name"],
                "scenario": scenario.rpartition("/")[2],
                "recorded_ms": recorded.median_ns / 1e6 if recorded else None,
                "unprofiled_ms": _unprofiled(before) / 1e6,
                "before_ms": base / 1e6,
                "after_ms": _unprofiled(one) / 1e6,
                "predicted_ms": asked["predicted_ns"] / 1e6,
                "low_ms": asked["low_ns"] / 1e6,
                "high_ms": asked["high_ns"] / 1e6,
                "at_most_ms": (base - asked["at_most_ns"]) / 1e6,
            }
        )
    return found


def main() -> None:
    """Print the table and the summary."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backtest.recorded")
    parser.add_argument("folder", type=Path, nargs="+")
    found = [row for folder in parser.parse_args().folder for row in rows(folder)]
    half = [(one["high_ms"] - one["low_ms"]) / 2 / one["before_ms"] for one in found]
    print(table(found), summary(found), sep="\n\n")
    print(f"median half-width of the interval {statistics.median(half):.1%} of the step")


if __name__ == "__main__":
    main()
