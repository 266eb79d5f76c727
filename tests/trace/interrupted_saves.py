"""``python -m tests.trace.interrupted_saves FOLDER ROUNDS SEED``: programs that save are killed.

In each round two processes save different traces over one bundle, again and again, and a third one
reads it. All are killed at a random moment; the bundle must then be one of the two, whole. Prints
the number of rounds and of bundles read.

Processes are forked: this one imports everything and never runs a query, because the threads of
polars do not survive a fork.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import polars as pl

from tests.support.traces import cnn_steps
from traceana import Trace
from traceana.trace.bundle import load
from traceana.trace.schema import TABLES

SOURCES = ("one", "two")


def version(source: str) -> Trace:
    """Return the trace ``one``, or ``two``, which has neither steps nor ranges."""
    trace = cnn_steps().with_meta(source=source)
    if source == "one":
        return trace
    without = trace.tables.activities.with_columns(
        pl.lit(None).alias(one) for one in ("range", "step")
    )
    return trace.with_tables(steps=pl.DataFrame(), ranges=pl.DataFrame(), activities=without)


def check(path: Path) -> None:
    """Raise unless ``path`` is one of the two traces, whole."""
    found = load(path)
    want = version(found.meta.source)
    for name in TABLES:
        assert found.tables[name].equals(want.tables[name]), f"{name} of {found.meta.source}"


def save_for_ever(path: Path, source: str) -> None:
    """Save one of the traces over ``path`` until the process is killed."""
    trace = version(source)
    while True:
        trace.save(path, overwrite=True)


def read_for_ever(path: Path, log: int) -> None:
    """Check ``path`` until the process is killed; write a byte to ``log`` each time."""
    while True:
        check(path)
        os.write(log, b".")


def forked(run: Callable[[], object]) -> int:
    """Return the id of a new process that runs ``run``, and exits with 1 if it raises."""
    process = os.fork()
    if process:
        return process
    try:
        run()
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def one_round(path: Path, seconds: float) -> int:
    """Return how many times the bundle was read.

    Raises ``AssertionError`` if a process failed, or the bundle is not whole afterwards.
    """
    reading, writing = os.pipe()
    savers = [forked(partial(save_for_ever, path, source)) for source in SOURCES]
    reader = forked(lambda: read_for_ever(path, writing))
    os.close(writing)
    # The moment is measured from the first read, when all programs are running.
    first = os.read(reading, 1)
    time.sleep(seconds)
    failed = [process for process in (*savers, reader) if os.waitpid(process, os.WNOHANG)[0]]
    for process in {*savers, reader} - {*failed}:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    reads = len(first) + len(os.read(reading, 1 << 20))
    os.close(reading)
    checked = forked(lambda: check(path))
    assert not failed, "a process failed"
    assert os.waitpid(checked, 0)[1] == 0, "the bundle is not whole"
    return reads


def main() -> None:
    """Run the rounds of the command line."""
    folder, rounds, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    path = folder / "run.traceana"
    rng = random.Random(seed)
    made = forked(lambda: version("one").save(path))
    assert os.waitpid(made, 0)[1] == 0
    reads = sum(one_round(path, rng.uniform(0, 0.3)) for _ in range(rounds))
    print(f"{rounds} rounds, {reads} bundles read")


if __name__ == "__main__":
    main()
