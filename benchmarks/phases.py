"""Runs one command of traceana and prints the CPU time and the peak memory of its phases as JSON.

``python -m benchmarks.phases report FILE`` is the whole command, with clocks around the functions
that it calls. User and system time of all threads; memory is the peak of the process so far.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, Final

from benchmarks.measure import RSS_UNIT

START: Final = "start"
ANALYSIS: Final = "analyze"
_PHASES: Final = {
    # phase: module, and the attribute of it that the command calls
    "read": ("traceana.readers", "read"),
    "attribute": ("traceana.enrich", "attribute"),
    "classify": ("traceana.enrich", "with_classes"),
    "print": ("traceana.cli.output", "Output.write"),
}
PHASES: Final = (START, *_PHASES, ANALYSIS)


class Clock:
    """CPU seconds and peak memory by phase; what no phase has is analysis."""

    def __init__(self) -> None:
        """Count what the process has used as its start."""
        self._last = _cpu()
        self.seconds = dict.fromkeys(PHASES, 0.0) | {START: self._last}
        self.peaks: dict[str, int] = {START: _peak()}
        self._now = ANALYSIS

    def around(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` with its time counted as ``phase``."""

        @wraps(function)
        def counted(*arguments: Any, **options: Any) -> Any:
            before = self._now
            self.enter(phase)
            try:
                return function(*arguments, **options)
            finally:
                self.enter(before)

        return counted

    def enter(self, phase: str) -> None:
        """Count the time from here on as ``phase``."""
        now = _cpu()
        self.seconds[self._now] += now - self._last
        self.peaks[self._now] = _peak()
        self._last, self._now = now, phase


def _cpu() -> float:
    used = os.times()
    return used.user + used.system


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT


def main(arguments: list[str]) -> None:
    """Run the command of ``arguments`` and print the phases."""
    from traceana.__main__ import main as run
    from traceana.cli import main

    # Before polars is imported, as the command does.
    main.choose_threads(arguments)
    for module, _ in _PHASES.values():
        import_module(module)
    clock = Clock()
    for phase, (module, name) in _PHASES.items():
        owner: Any = import_module(module)
        *path, attribute = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, attribute, clock.around(phase, getattr(owner, attribute)))
    sys.argv[1:] = arguments
    try:
        run()
    finally:
        clock.enter(START)
        print(json.dumps({"seconds": clock.seconds, "peaks": clock.peaks}))


if __name__ == "__main__":
    main(sys.argv[1:])
