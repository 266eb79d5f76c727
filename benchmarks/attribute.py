"""The innermost range of each launch: 5 million launches, 1 million nested ranges, several threads.

Compared with sorting the launches' times, the lower bound of any method, and with a ``join_asof``
for each depth of nesting. Both methods must find the innermost range, which the generated input
defines.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.measure import significant, spread
from benchmarks.nested_ranges import Ints, Timeline, chain, timeline, tree
from benchmarks.outcome import Outcome
from benchmarks.source import SCRATCH
from traceana.columns.nesting import NONE, Nesting


def measure(ranges: int, launches: int, threads: int, rounds: int) -> Outcome:
    """Return the times of attributing ``launches`` to ``ranges`` of several shapes."""
    shapes = {
        "4 deep, in order": (tree(), False),
        "4 deep, shuffled": (tree(), True),
        "40 deep, in order": (chain(40), False),
    }
    rows: list[dict[str, Any]] = []
    for name, (unit, shuffled) in shapes.items():
        line = timeline(unit, ranges, launches, threads, shuffled=shuffled)
        rows += _of_shape(name, line, rounds)
    about = {"ranges": ranges, "launches": launches, "threads": threads}
    return Outcome(
        "attribute",
        about,
        rows,
        [],
        ["ratio: to sorting the launches' times in the same order"],
    )


def _of_shape(name: str, line: Timeline, rounds: int) -> list[dict[str, Any]]:
    took: dict[str, list[float]] = {}
    for _ in range(rounds):
        _clock(took, "sort the launches", partial(np.sort, line.launch_time))
        nesting = _clock(
            took,
            "nest the ranges",
            partial(Nesting.of, line.range_key, line.range_start, line.range_duration),
        )
        found = _clock(
            took,
            "innermost of each launch",
            partial(nesting.innermost, line.launch_key, line.launch_time),
        )
        joined = _clock(took, "innermost by join_asof a depth", partial(by_joins, nesting, line))
        if not (np.array_equal(found, line.expected) and np.array_equal(joined, line.expected)):
            sys.exit("wrong innermost ranges: the times are invalid")
    floor = float(np.median(took["sort the launches"]))
    return [
        {
            "shape": name,
            "what": what,
            "seconds": spread(seconds),
            "ratio": significant(float(np.median(seconds)) / floor),
        }
        for what, seconds in took.items()
    ]


def _clock(took: dict[str, list[float]], what: str, work: Callable[[], Any]) -> Any:
    begin = time.perf_counter()
    result = work()
    took.setdefault(what, []).append(time.perf_counter() - begin)
    return result


def by_joins(nesting: Nesting, line: Timeline) -> Ints:
    """Return the innermost ranges by one ``join_asof`` per depth; the deepest open range counts."""
    launches = pl.DataFrame({"key": line.launch_key, "time": line.launch_time})
    launches = launches.with_row_index("launch").sort("time")
    found = np.full(launches.height, NONE, dtype=np.int64)
    for rows in nesting.levels:
        level = pl.DataFrame(
            {
                "row": rows,
                "key": nesting.key[rows],
                "time": nesting.start[rows],
                "end": nesting.end[rows],
            }
        ).sort("time")
        joined = launches.join_asof(level, on="time", by="key", check_sortedness=False)
        inside = joined.filter(pl.col("time") < pl.col("end"))
        found[inside["launch"].to_numpy()] = inside["row"].to_numpy()
    return found


def main() -> None:
    """Print the time of nesting and attribution for many launches."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attribute", description=main.__doc__
    )
    parser.add_argument("--ranges", type=int, default=1_000_000)
    parser.add_argument("--launches", type=int, default=5_000_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder to write to")
    options = parser.parse_args()
    result = measure(options.ranges, options.launches, options.threads, options.rounds)
    result.show()
    result.save(options.scratch / "results")


if __name__ == "__main__":
    main()
