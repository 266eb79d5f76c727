"""Runs every benchmark with its defaults, each in a process of its own, the peers set up first."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks import peers
from benchmarks.source import ROOT, SCRATCH

_BENCHMARKS: Final = ("startup", "classify", "attribute", "ingest_kineto")


def main() -> None:
    """Run all benchmarks; about a quarter of an hour on two cores."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder to write to")
    options = parser.parse_args()
    peers.install()
    failed = [name for name in _BENCHMARKS if not _ran(name, options.scratch.resolve())]
    print(f"\nresults as JSON: {options.scratch / 'results'}")
    if failed:
        sys.exit(f"did not run to the end: {', '.join(failed)}")


def _ran(name: str, scratch: Path) -> bool:
    begin = time.perf_counter()
    command = [sys.executable, "-m", f"benchmarks.{name}", "--scratch", str(scratch)]
    ended = subprocess.run(command, cwd=ROOT, check=False)
    print(f"({name}: {time.perf_counter() - begin:.0f} s in all)", flush=True)
    return ended.returncode == 0


if __name__ == "__main__":
    main()
