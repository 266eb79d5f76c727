"""Installs the peers, then runs every benchmark with its defaults, each in its own process."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks import history, peers
from benchmarks.source import ROOT, SCRATCH

_BENCHMARKS: Final = (
    *("startup", "classify", "attribute", "transfers", "idle"),
    *("ingest_kineto", "scanner", "ingest_xplane", "ingest_printed", "commands"),
)


def main() -> None:
    """Run all benchmarks; about a quarter of an hour on two cores."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder to write to")
    parser.add_argument("--size", type=float, default=1.0, help="GB of the trace that is read")
    options = parser.parse_args()
    peers.install()
    for_all = ["--scratch", str(options.scratch.resolve())]
    own = {
        "ingest_kineto": ["--size", str(options.size)],
        "scanner": ["--size", str(options.size)],
        "ingest_printed": ["--size", str(500 * options.size)],
        # The other shapes are traces that nobody records.
        "commands": ["--size", str(options.size / 10), "--shapes", "training"],
    }
    failed = [name for name in _BENCHMARKS if not _ran(name, [*for_all, *own.get(name, [])])]
    added = history.add(options.scratch / "results", history.FILE)
    print(f"\nresults as JSON: {options.scratch / 'results'}; {added} figures added to the history")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _ran(name: str, options: list[str]) -> bool:
    begin = time.perf_counter()
    command = [sys.executable, "-m", f"benchmarks.{name}", *options]
    ended = subprocess.run(command, cwd=ROOT, check=False)
    print(f"({name}: {time.perf_counter() - begin:.0f} s in all)", flush=True)
    return ended.returncode == 0


if __name__ == "__main__":
    main()
