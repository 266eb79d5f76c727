"""Measures ``traceana history`` on a store of many runs whose rows are kept.

python -m benchmarks.history_store --runs 10000
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from traceana.comparison.run_rows import ROW
from traceana.comparison.run_store import FILE, state_of
from traceana.trace.bundle import MANIFEST

STEP_NS: Final = 20e6


def write_store(folder: Path, runs: int, changes: int = 5) -> list[int]:
    """Write ``runs`` bundles without tables and their rows; return the first runs after changes.

    A manifest is as long as that of a real bundle.
    """
    rng = np.random.default_rng(runs)
    steps = STEP_NS * (1 + 0.01 * rng.standard_normal(runs))
    places = sorted(rng.choice(np.arange(50, runs - 50), changes, replace=False).tolist())
    for number, place in enumerate(places):
        steps[place:] *= 1.05 if number % 2 == 0 else 1 / 1.05
    items = [{"by": "class", "item": "conv", "time_ns": 1_000_000}] * 20
    rows = []
    for number, step in enumerate(steps):
        bundle = folder / f"run-{number:05}"
        bundle.mkdir()
        (bundle / MANIFEST).write_text(f"{number:08}" * 500)
        rows.append(
            {
                "name": bundle.name,
                "state": state_of(bundle),
                "commit": f"{number:040x}",
                "date": f"2026-01-01T{number // 3600 % 24:02}:{number // 60 % 60:02}"
                f":{number % 60:02}Z",
                **{"devices": "NVIDIA H100", "driver": "580", "framework": "PyTorch 2.11.0"},
                **{"batch": 128, "precision": "fp32", "steps": 5, "measured": 5},
                **{"step_ns": round(step), "low_ns": round(step), "high_ns": round(step)},
                "usual_ns": 200_000,
                "items": items,
            }
        )
    schema = {"name": pl.String, "state": pl.String, **ROW}
    pl.DataFrame(rows, schema=schema).write_parquet(folder / FILE)
    return [place + 1 for place in places]


def main() -> None:
    """Print the CPU time of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.history_store", description=main.__doc__
    )
    parser.add_argument("--runs", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        places = write_store(Path(name), options.runs)
        before = os.times()
        ended = subprocess.run(
            [sys.executable, "-m", "traceana", "history", name, "--limit", "1"],
            capture_output=True,
            text=True,
            check=True,
        )
        after = os.times()
    used = after.children_user + after.children_system
    used -= before.children_user + before.children_system
    print(ended.stdout)
    print(f"changes planted at runs {places}")
    print(f"{options.runs:,} runs: {used:.2f} s CPU, {after.elapsed - before.elapsed:.2f} s")


if __name__ == "__main__":
    main()
