"""Adds the targets of finished benchmarks to ``benchmarks/history.tsv``: one line per figure.

python -m benchmarks.history
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.source import ROOT, SCRATCH

FILE: Final = ROOT / "benchmarks" / "history.tsv"
COLUMNS: Final = (
    *("date", "commit", "benchmark", "input", "figure", "reached", "target"),
    *("processor", "cores", "load_after"),
)


def main() -> None:
    """Add the results of a folder; what is there already stays once."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history", description=main.__doc__)
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder of the results")
    options = parser.parse_args()
    added = add(options.scratch / "results", FILE)
    print(f"{added} figures added to {FILE.relative_to(ROOT)}")


def add(results: Path, file: Path) -> int:
    """Append the targets in ``results`` (a folder of JSON files) to ``file``, and return how many.

    Lines that ``file`` has are not added again.
    """
    known = set(file.read_text(encoding="utf-8").splitlines()) if file.is_file() else set()
    lines = [line for line in _lines(results) if line not in known]
    if lines:
        head = [] if known else ["\t".join(COLUMNS)]
        with file.open("a", encoding="utf-8") as out:
            out.writelines(f"{line}\n" for line in (*head, *lines))
    return len(lines)


def _lines(results: Path) -> Iterator[str]:
    for path in sorted(results.glob("*.json")):
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        machine = found["machine"]
        # Measured figures that a benchmark lists with its input differ from run to run.
        given = {name: one for name, one in found["input"].items() if not isinstance(one, float)}
        size = ", ".join(f"{name} {value}" for name, value in given.items())
        for target in found["targets"]:
            sign, bound = next(
                (one, target[one]) for one in ("at_least", "at_most") if one in target
            )
            cells = (
                *(machine["date"], machine["commit"], found["benchmark"], size, target["what"]),
                *(f"{target['reached']:.3g}", f"{sign.replace('_', ' ')} {bound:g}"),
                *(machine["processor"], machine["cores"], machine["load_after"]),
            )
            yield "\t".join(" ".join(str(cell).split()) for cell in cells)


if __name__ == "__main__":
    main()
