"""Builds the job of the how-to on slow ranks: ``python -m tools.tutorials FOLDER``.

No recording of a job with a slow rank is at hand: in this one the size of the cause is known.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.job.jobs import Job, even

SLOW_RANK: Final = 5
"""The rank that computes a fifth longer than the others."""


def build(folder: Path) -> None:
    """Write the job into ``folder``."""
    compute = even(8, 12, seed=3)
    compute[SLOW_RANK] = compute[SLOW_RANK] * 6 // 5
    Job(compute).write(folder / "job")


@functools.cache
def built() -> Path:
    """Return a folder with the job, built once; it lasts as long as the process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    build(folder)
    return folder


if __name__ == "__main__":
    build(Path(sys.argv[1]))
