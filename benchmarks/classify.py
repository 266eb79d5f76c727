"""Classification of 100,000 distinct names, compared with one regex search over the same names."""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any, Final

import polars as pl

from benchmarks.kernel_names import lexicon, seeds, varied
from benchmarks.measure import significant, spread
from benchmarks.outcome import Outcome, Target
from benchmarks.source import SCRATCH
from traceana.enrich.classify import classify_names, load_rules

_SECONDS: Final = 3.0
_TARGET_NAMES: Final = 100_000
_PATTERN: Final = r"(?i)\bconv(?:olve|olution)?\w*_(?:fprop|dgrad|wgrad)\b"


def measure(count: int, rounds: int) -> Outcome:
    """Return the times of classifying ``count`` names of each kind, alternating with the search."""
    origin, real = seeds()
    kinds = {f"made from {len(real):,} {origin}": varied(count, real)}
    if (shipped := lexicon(count)) is not None:
        kinds["shipped in libraries"] = shipped
    begin = time.perf_counter()
    rules = load_rules()
    loading = time.perf_counter() - begin
    rows: list[dict[str, Any]] = []
    targets: list[Target] = []
    for kind, names in kinds.items():
        texts = pl.Series("name", names)
        took: list[float] = []
        search: list[float] = []
        for _ in range(rounds):
            begin = time.perf_counter()
            classes = classify_names(texts, rules)
            took.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            texts.str.contains(_PATTERN).sum()
            search.append(time.perf_counter() - begin)
        seconds = statistics.median(took)
        rows.append(
            {
                "names": kind,
                "seconds": spread(took),
                "names/s": round(count / seconds),
                "one search s": spread(search),
                "ratio": significant(seconds / statistics.median(search)),
                "rules that fired": classes["rule"].n_unique(),
            }
        )
        if count == _TARGET_NAMES:
            targets.append(Target(f"seconds for {count:,} names {kind}", _SECONDS, seconds))
    about = {"names": count, "rules": len(rules.rules), "loading rules s": significant(loading)}
    return Outcome("classify", about, rows, targets)


def main() -> None:
    """Print the time of classifying many distinct names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.classify", description=main.__doc__)
    parser.add_argument("--names", type=int, default=_TARGET_NAMES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder to write to")
    options = parser.parse_args()
    result = measure(options.names, options.rounds)
    result.show()
    result.save(options.scratch / "results")


if __name__ == "__main__":
    main()
