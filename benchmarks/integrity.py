"""The CPU time of integrity checks as a share of reading, by format: ``python -m
benchmarks.integrity FILE…``.

The functions that check are timed inside one reading of each file, so the share does not depend on
how busy the machine is. The results stand in ``docs/reliability.md``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final

from isal.isal_zlib import crc32

import traceana
from traceana.readers import integrity, sqlite
from traceana.readers.chrome import event_decoder  # noqa: F401
from traceana.readers.kineto import reader as kineto_reader  # noqa: F401
from traceana.readers.nsys import directory
from traceana.readers.nvprof import reader as nvprof_reader  # noqa: F401
from traceana.readers.xplane import reader as xplane_reader  # noqa: F401
from traceana.trace.bundle import is_bundle

CHECKS: Final[tuple[Callable[..., Any], ...]] = (
    integrity.screen,
    integrity.without_far_times,
    integrity.bounded,
    sqlite.first_problem,
    directory.check_lengths,
    crc32,
)


@contextmanager
def timed(seconds: dict[str, float]) -> Iterator[None]:
    """Add the CPU time of each check to ``seconds``, wherever a module has imported it."""
    replaced = []
    modules = [one for name, one in sys.modules.items() if name.startswith("traceana")]
    for check in CHECKS:
        instead = _timing(check, seconds)
        for holder in modules:
            for name, value in list(vars(holder).items()):
                if value is check:
                    replaced.append((holder, name, check))
                    setattr(holder, name, instead)
    yield
    for holder, name, check in replaced:
        setattr(holder, name, check)


def _timing(check: Callable[..., Any], seconds: dict[str, float]) -> Callable[..., Any]:
    @wraps(check)
    def instead(*given: Any, **named: Any) -> Any:
        begun = time.process_time()
        try:
            return check(*given, **named)
        finally:
            name = check.__qualname__
            seconds[name] = seconds.get(name, 0) + time.process_time() - begun

    return instead


def row(path: Path) -> str:
    """Return the row of the table for one file or folder, read a second time."""
    read = traceana.open if is_bundle(path) else traceana.readers.read
    read(path)
    seconds: dict[str, float] = {}
    with timed(seconds):
        begun = time.process_time()
        trace = read(path)
        whole = time.process_time() - begun
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    megabytes = sum(one.stat().st_size for one in files) / 1e6
    share = 100 * sum(seconds.values()) / whole
    parts = ", ".join(f"`{name}` {1e3 * spent:,.0f}" for name, spent in seconds.items())
    return (
        f"| {trace.meta.format} | {megabytes:,.1f} | {1e3 * whole:,.0f} | {share:.1f} % | {parts} |"
    )


def main() -> None:
    """Print the table of the files named on the command line."""
    print("| format | MB | reading, ms | checks | of these, ms |")
    print("|---|---:|---:|---:|---|")
    for name in sys.argv[1:]:
        print(row(Path(name)), flush=True)


if __name__ == "__main__":
    main()
