"""A line about a reading that takes minutes, where no progress bar is shown."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from traceana.ingest.source import Progress

_FIRST_S: Final = 10
"""Seconds until the rest is estimated; the imports are over by then."""
_LONG_S: Final = 60


def notice(
    what: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Progress:
    """Return a progress that says once, after ten seconds, that reading ``what`` takes over a
    minute."""
    begin = clock()
    said = False

    def progress(done: int, total: int) -> None:
        nonlocal said
        passed = clock() - begin
        if said or passed < _FIRST_S or not done or not total:
            return
        whole = passed * total / done
        if whole > _LONG_S:
            said = True
            say(
                f"reading {what} takes about {whole / 60:.0f} min; "
                "traceana save makes a bundle of it, which opens faster"
            )

    return progress
