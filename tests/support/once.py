"""Results shared by all workers of a test run: computed by the first, awaited by the others."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder that ``make`` filled, in this worker or in another.

    Whoever comes while it is being made waits. Where ``make`` raises the next one tries again.
    """
    base = factory.getbasetemp()
    # The workers' folders lie side by side in that of the run.
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = root / f"shared-{name}", root / f"shared-{name}.done"
    with (root / f"shared-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(folder)
            done.touch()
    return folder
