"""Start time of the command line: ``traceana --help`` compared with an empty interpreter."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.measure import FailedError, run, significant, spread
from benchmarks.outcome import Outcome, Target, table
from benchmarks.source import SCRATCH

_ENTRY: Final = "from traceana.__main__ import main; import sys; sys.argv[1:] = ['--help']; main()"
"""The code of the installed script, which also runs where the script is not installed."""
_FLOOR: Final = "python -c pass"
_HELP: Final = "traceana --help"
_TIMES_SLOWER: Final = 10.0
"""0.2 s when an empty interpreter takes 0.02 s."""


def measure(rounds: int) -> Outcome:
    """Return the start times of each command, ``rounds`` times each, with a warm disk cache."""
    commands = {
        _FLOOR: [sys.executable, "-c", "pass"],
        _HELP: [sys.executable, "-c", _ENTRY],
        "python -c 'import traceana'": [sys.executable, "-c", "import traceana"],
        "python -c 'import polars'": [sys.executable, "-c", "import polars"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            cost = run(command)
            if number:
                seconds[name].append(cost.wall_s)
    floor = statistics.median(seconds[_FLOOR])
    rows = [
        {
            "command": name,
            "ms": spread(1000 * second for second in took),
            "ratio": significant(statistics.median(took) / floor),
        }
        for name, took in seconds.items()
    ]
    times = statistics.median(seconds[_HELP]) / floor
    target = Target(f"times as long as {_FLOOR}", _TIMES_SLOWER, times)
    return Outcome("startup", {"rounds": rounds}, rows, [target])


def slowest_imports(limit: int) -> list[dict[str, object]]:
    """Return the modules with the longest import time in ``--help``, without nested imports."""
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", _ENTRY],
        capture_output=True,
        text=True,
        check=True,
    )
    rows: list[dict[str, object]] = []
    for line in ended.stderr.splitlines():
        own, _, rest = line.removeprefix("import time:").partition("|")
        if line.startswith("import time:") and own.strip().isdecimal():
            cumulative, _, module = rest.partition("|")
            rows.append(
                {
                    "module": module.strip(),
                    "own ms": int(own) / 1000,
                    "with imports ms": int(cumulative) / 1000,
                }
            )
    return sorted(rows, key=lambda row: -float(str(row["own ms"])))[:limit]


def main() -> None:
    """Print the start times and, on request, the slowest imports."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--imports", type=int, default=0, metavar="N", help="show the N slowest")
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder to write to")
    options = parser.parse_args()
    try:
        result = measure(options.rounds)
    except FailedError as error:
        sys.exit(f"a command did not run: {error}")
    result.show()
    result.save(options.scratch / "results")
    if options.imports:
        print()
        print(table(slowest_imports(options.imports)))


if __name__ == "__main__":
    main()
