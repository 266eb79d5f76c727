"""Transfers of ten million activities, by direction, operator, size and step.

Compared with summing their durations by device and kind, the lower bound of any such table.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from benchmarks.measure import significant, spread
from benchmarks.outcome import Outcome
from benchmarks.source import SCRATCH
from traceana.analyze.transfers import transfers
from traceana.trace import Tables, Trace, TraceMeta
from traceana.vocabulary.option_words import TransfersBy

DEVICES: Final = 8
STEPS: Final = 1_000
_BYS: Final[tuple[TransfersBy, ...]] = ("direction", "operator", "size", "step")
_KINDS: Final = np.array(["HtoD", "DtoH", "DtoD"])
_PERIOD: Final = 1_000
"""Period of a device's activities in ns: a kernel lasts 600, the concurrent copy 500."""
_HIDDEN: Final = 150
"""Overlap of each copy in ns: it begins this long before the kernel ends."""


def trace(activities: int, copies: float) -> tuple[Trace, int]:
    """Return a trace of ``activities``, a share of them ``copies``, and its exposed time (ns).

    Eight devices run kernels one after the other. Each copy overlaps with one of the first kernels
    for 150 of its 500 ns.
    """
    each = activities // DEVICES
    of_copies = int(each * copies)
    of_kernels = each - of_copies
    kernels, beside = np.arange(of_kernels) * _PERIOD, np.arange(of_copies) * _PERIOD
    start = np.concatenate([kernels, beside + 600 - _HIDDEN])
    is_copy = np.concatenate([np.zeros(of_kernels, bool), np.ones(of_copies, bool)])
    turn = np.concatenate([np.arange(of_kernels), np.arange(of_copies)])
    order = np.argsort(start, kind="stable")
    start, is_copy, turn = (np.tile(array[order], DEVICES) for array in (start, is_copy, turn))
    rows = len(start)
    frame = pl.DataFrame(
        {
            "kind": pl.Series(np.where(is_copy, 1, 0)).replace_strict({0: "kernel", 1: "memcpy"}),
            "start": start,
            "duration": np.where(is_copy, 500, 600),
            "device": np.repeat(np.arange(DEVICES), rows // DEVICES),
            "correlation": np.arange(rows),
            "bytes": np.where(is_copy, 1 << (turn % 24), 0),
            "copy_kind": pl.Series(np.where(is_copy, turn % 3, 3)).replace_strict(
                {0: "HtoD", 1: "DtoH", 2: "DtoD", 3: None}
            ),
            "source_memory": pl.Series(np.where(is_copy, turn % 3, 3)).replace_strict(
                {0: "pageable", 1: "device", 2: "device", 3: None}
            ),
            "destination_memory": pl.Series(np.where(is_copy, turn % 3, 3)).replace_strict(
                {0: "device", 1: "pinned", 2: "device", 3: None}
            ),
            "call": np.arange(rows),
            "op": np.arange(rows) // 4,
            "step": turn * STEPS // of_kernels,
        }
    )
    length = of_kernels * _PERIOD // STEPS
    tables = {
        "activities": frame,
        "calls": pl.DataFrame(
            {"start": start, "duration": np.full(rows, 5), "name": np.full(rows, "cudaMemcpyAsync")}
        ).with_columns(pl.col("name").cast(pl.Categorical)),
        "ops": pl.DataFrame({"name": (np.arange(rows // 4 + 1) % 300).astype(str)}).with_columns(
            pl.format("aten::op_{}", "name").cast(pl.Categorical)
        ),
        "steps": pl.DataFrame(
            {
                "number": np.arange(STEPS),
                "start": np.arange(STEPS) * length,
                "duration": np.full(STEPS, length),
            }
        ),
    }
    exposed = DEVICES * of_copies * (500 - _HIDDEN)
    return Trace(TraceMeta(source="made", format="kineto"), Tables(tables)), exposed


def measure(activities: int, copies: float, rounds: int) -> Outcome:
    """Return the times of the transfers of a trace of ``activities``, ``rounds`` times each."""
    made, exposed = trace(activities, copies)
    took: dict[str, list[float]] = {}
    for _ in range(rounds):
        _clock(took, "add up by device and kind", partial(_added_up, made.tables.activities))
        for by in _BYS:
            result = _clock(took, f"by {by}", partial(transfers, made, by))
            if result.totals["exposed_ns"] != exposed:
                sys.exit("wrong exposed time: the times are invalid")
    floor = float(np.median(took["add up by device and kind"]))
    rows: list[dict[str, Any]] = [
        {
            "what": what,
            "CPU s": spread(seconds),
            "ratio": significant(float(np.median(seconds)) / floor),
        }
        for what, seconds in took.items()
    ]
    about = {"activities": activities, "copies": int(activities * copies), "devices": DEVICES}
    return Outcome("transfers", about, rows, [], ["CPU s: user and system time of all threads"])


def _added_up(activities: pl.DataFrame) -> pl.DataFrame:
    return activities.group_by("device", "kind").agg(pl.len(), pl.col("duration", "bytes").sum())


def _clock(took: dict[str, list[float]], what: str, work: Callable[[], Any]) -> Any:
    begin = time.process_time()
    result = work()
    took.setdefault(what, []).append(time.process_time() - begin)
    return result


def main() -> None:
    """Print the time of computing the transfers of many activities."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.transfers", description=main.__doc__
    )
    parser.add_argument("--activities", type=int, default=10_000_000)
    parser.add_argument("--copies", type=float, default=0.25, help="share of copies")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder to write to")
    options = parser.parse_args()
    result = measure(options.activities, options.copies, options.rounds)
    result.show()
    result.save(options.scratch / "results")


if __name__ == "__main__":
    main()
