"""Critical paths of Kineto traces, compared with HolisticTraceAnalysis: length and GPU share."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any, Final

import polars as pl

import traceana
from benchmarks.peers import CRITICAL_PYTHON
from traceana.timeline.critical import GPU_WORK, segments

_PEER: Final = Path(__file__).with_name("contender_critical.py")


def own_paths(file: Path) -> list[dict[str, Any]]:
    """Return the length (µs) and the shares of each step's path.

    Host time outside operators and calls is left out, as in HTA.
    """
    path = segments(traceana.open(file)).with_columns(pl.col("class").cast(pl.String))
    outside = (pl.col("class") == "host") & ~pl.col("part").is_in(["call", "operator"]).fill_null(
        value=False
    )
    time, what = pl.col("time_ns"), pl.col("class")
    figures = (
        (time.sum() // 1_000).alias("total"),
        time.filter(what.is_in(GPU_WORK)).sum().alias("gpu") // 1_000,
        time.filter(what.is_in(["gap", "launch"])).sum().alias("between") // 1_000,
    )
    shown = path.filter(~outside)
    steps = shown.group_by("step", maintain_order=True).agg(figures).to_dicts()
    return [{"window": f"step {row.pop('step')}", **row} for row in steps] + [
        {"window": "all", **shown.select(figures).to_dicts()[0]}
    ]


def peer_paths(file: Path) -> list[dict[str, Any]]:
    """Return HTA's paths, or its error."""
    command = [str(CRITICAL_PYTHON), str(_PEER), str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        return [{"window": "all", "error": (ended.stderr.strip().splitlines() or ["?"])[-1]}]
    found: list[dict[str, Any]] = json.loads(ended.stdout)["paths"]
    return found


def _line(who: str, row: dict[str, Any]) -> str:
    if "error" in row:
        return f"  {who:9} {row['window']:16} {row['error']}"
    whole = row["total"] or 1
    return (
        f"  {who:9} {row['window']:16} {row['total']:>10} µs  GPU {row['gpu'] / whole:6.1%}"
        f"  gaps and launch delays {row['between'] / whole:6.1%}"
    )


def main() -> None:
    """Print, for each trace, the critical paths of HTA and of traceana."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.critical", description=main.__doc__)
    parser.add_argument("traces", type=Path, nargs="+")
    for file in parser.parse_args().traces:
        print(file.name)
        for row in peer_paths(file):
            print(_line("HTA", row))
        for row in own_paths(file):
            print(_line("traceana", row), flush=True)


if __name__ == "__main__":
    main()
