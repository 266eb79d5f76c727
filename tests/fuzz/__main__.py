"""``python -m tests.fuzz``: run the campaign and print what came of it."""

from __future__ import annotations

import os

# One thread for each process: several run side by side, and a fork copies only one.
os.environ.setdefault("POLARS_MAX_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import regressions
from tests.fuzz.campaign import Campaign, Tally
from tests.fuzz.reports import kept, printed


def main() -> int:
    """Run the campaign of the command line; return 1 where an input broke the promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    today = int(time.strftime("%Y%m%d"))
    parser.add_argument("--seed", type=int, default=today, help="default: the day")
    parser.add_argument("--count", type=int, default=2_000, help="inputs, over all formats")
    parser.add_argument("--first", type=int, default=0, help="number of the first of each format")
    parser.add_argument("--formats", default="", help="separated by commas; default: all")
    parser.add_argument("--minutes", type=float, default=None, help="end after these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--keep", type=Path, default=None, help="folder for failing inputs")
    parser.add_argument("--one", type=int, default=None, help="run this number of one format only")
    parser.add_argument("--shrink", type=float, default=20, help="seconds for each kind of failure")
    parser.add_argument(
        "--analyze",
        type=int,
        default=1,
        help="run the commands on every Nth input only",
    )
    parser.add_argument(
        "--regressions",
        choices=["read", "all"],
        help="first what once failed, a line of JSON each; all: also those that need every command",
    )
    given = parser.parse_args()
    formats = [one for one in given.formats.split(",") if one]
    campaign = Campaign(given.seed, formats, given.jobs, given.analyze)
    if given.regressions:
        regressions.run(campaign, commands_too=given.regressions == "all")
    first, count = given.first, given.count
    if given.one is not None:
        first, count = given.one, len(campaign.formats)
    seconds = None if given.minutes is None else given.minutes * 60
    tally = campaign.run(count, first=first, seconds=seconds, watch=_progress)
    print(printed(tally, given.seed), flush=True)
    if tally.failures:
        folder = given.keep or Path(tempfile.mkdtemp(prefix="traceana-fuzz-kept-"))
        print(kept(campaign, tally, folder, given.shrink))
    return 1 if tally.failures else 0


_last = [0.0]


def _progress(tally: Tally) -> None:
    if time.monotonic() - _last[0] > 30:
        _last[0] = time.monotonic()
        failed = len(tally.failures)
        print(f"{tally.inputs:,} inputs, {failed:,} failures", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
