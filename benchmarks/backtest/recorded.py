"""Predictions for pairs of recorded GPU programs, held against their step times without a profiler.

``python -m benchmarks.backtest.recorded FOLDER …`` reads ``variants.jsonl`` of each folder, a line
for each program with its ``before``, the ``change`` and its step times without a profiler, and the
traces beside it or in ``traces/``. It predicts each program from the trace of the one before alone,
and prints a Markdown table and a summary, which stand in ``docs/whatif.md``. With ``--held-out``
the profiler's cost is fitted anew for each program, to the recordings of all others.
"""

from __future__ import annotations

import argparse
import json
import statistics
from math import log
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import traceana
from benchmarks.backtest.__main__ import summary, table
from traceana.errors import TraceanaError
from traceana.settings import UNPROFILED_LEAST, UNPROFILED_MOST
from traceana.timeline.steps import step_time
from traceana.whatif import profiler
from traceana.whatif.profiler import ProfilerCost, profiler_cost
from traceana.whatif.whatif import Model, median_ns, unchanged

_SCENARIOS: Final = {
    "nothing": "host x 1",
    "class relu x 0 (activations)": "relu x 0",
    "largest branch x 0.5": None,
    "optimizer as a loop": None,
    "foreach-optimizer": None,
    "no-item": None,
    "synchronize each step": None,
    "smallest branch x 0": None,
    "bf16": "amp",
    "torch.compile default": "compile",
    "products x 0.5": "gemm x 0.5",
    "overlapped-copies": "overlapped-copies",
}
"""Scenarios of changes that are called otherwise, None where no scenario stands for one."""


def _unprofiled(one: dict[str, Any]) -> float:
    """Return the step time without a profiler, in ns: before and after the recording."""
    before = float(one.get("mean_before_ns") or one["mean_ns"])
    return (before + float(one["mean_after_ns"])) / 2


def measurements(folder: Path) -> dict[str, dict[str, Any]]:
    """Return {name: the line of the program} of ``folder`` whose times were measured."""
    lines = [json.loads(line) for line in (folder / "variants.jsonl").read_text().splitlines()]
    return {line["name"]: line for line in lines if line.get("mean_after_ns")}


def trace_of(folder: Path, name: str) -> Path | None:
    """Return the trace of the program ``name``, if it is there."""
    files = [place / f"{name}.json.gz" for place in (folder, folder / "traces")]
    return next((file for file in files if file.is_file()), None)


def rows(folder: Path, program: str | None = None) -> list[dict[str, Any]]:
    """Return one row a pair, of one ``program`` if given; times in milliseconds."""
    known = measurements(folder)
    found = []
    for one in known.values():
        name = str(one.get("before"))
        before, change = known.get(name), str(one.get("change"))
        scenario = _SCENARIOS.get(change, change)
        there = trace_of(folder, name)
        if before is None or scenario is None or there is None:
            continue
        if program is not None and program_of(one["name"]) != program:
            continue
        if scenario.startswith("recording:"):
            other = scenario.partition(":")[2]
            scenario = f"recording:{there.parent / other}.json.gz"
        if one["name"].endswith("prefetch") and "pinned" not in one["before"]:
            scenario = "pinned + overlapped-copies"
        try:
            trace = traceana.open(there)
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


def program_of(name: str) -> str:
    """Return the network of a program: ``resnet18`` of ``resnet18_b64_tf32``."""
    return name.partition("_b")[0]


_SLOWDOWNS: Final = [1.2 + 0.04 * step for step in range(21)]


def held_out(folder: Path) -> list[dict[str, Any]]:
    """Return :func:`rows`, those of each program with the profiler's slowdown of the others.

    It is the one with the least mean error (of the logarithms) of their steps without a profiler.
    """
    errors: dict[str, list[list[float]]] = {}
    for name, line in measurements(folder).items():
        file = trace_of(folder, name)
        model = None if file is None else Model.of_marked(traceana.open(file))
        if model is None or profiler_cost(model.trace) is None:
            continue
        costs = [
            ProfilerCost(1 / slower, UNPROFILED_LEAST, UNPROFILED_MOST) for slower in _SLOWDOWNS
        ]
        models = [model.without(cost) for cost in costs]
        steps = [median_ns(without, unchanged(without)) for without in models]
        true = statistics.median(line["steps_ns"])
        errors.setdefault(program_of(name), []).append([abs(log(ns / true)) for ns in steps])
    fitted: list[dict[str, Any]] = []
    for program in errors:
        others = [
            each for other, of_other in errors.items() if other != program for each in of_other
        ]
        means = [statistics.mean(column) for column in zip(*others, strict=True)]
        slowdown = _SLOWDOWNS[means.index(min(means))]
        with patch.dict(profiler.SLOWDOWN, dict.fromkeys(profiler.SLOWDOWN, slowdown)):
            fitted += rows(folder, program)
    return fitted


def main() -> None:
    """Print the table and the summary."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backtest.recorded")
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--held-out", action="store_true")
    given = parser.parse_args()
    predicted = held_out if given.held_out else rows
    found = [row for folder in given.folder for row in predicted(folder)]
    half = [(one["high_ms"] - one["low_ms"]) / 2 / one["before_ms"] for one in found]
    print(table(found), summary(found), sep="\n\n")
    print(f"median half-width of the interval {statistics.median(half):.1%} of the step")


if __name__ == "__main__":
    main()
