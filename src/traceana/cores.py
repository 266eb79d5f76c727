"""The cores of this process."""

from __future__ import annotations

import os
from pathlib import Path

_before: list[int] = []
"""How many cores there were before this process stayed on one."""


def cores() -> int:
    """Return the number of cores that this process may use, or might before it stayed on one."""
    if _before:
        return _before[0]
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def stay_on_one() -> None:
    """Stay on the core on which this process runs, where the system allows that (Linux).

    Polars works in threads of its own, also where that is one thread. A report of a small trace
    hands a thousand queries to it, and waits for each. On one core both take turns; on two they
    wake each other and wait by spinning, which takes a sixth of the CPU time.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    known = cores()
    try:
        # The 39th field; the second is a name in parentheses.
        after_name = Path("/proc/self/stat").read_text("ascii").rpartition(")")[2]
        os.sched_setaffinity(0, {int(after_name.split()[36])})
        _before.append(known)
    except (OSError, ValueError, IndexError):
        # It runs as well on all of them.
        return
