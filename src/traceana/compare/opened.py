"""A run that is given as a Trace or by its path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceana.describe import Manifest
    from traceana.trace import Trace


def opened(
    given: Trace | str | os.PathLike[str], model: Manifest | None = None
) -> tuple[Trace, Manifest | None]:
    """Return the trace of a run and its layer manifest: ``model``, or the one beside its file.

    Raises the errors of :mod:`traceana.errors`.
    """
    from traceana.describe import find, read
    from traceana.opening import open_trace

    if not isinstance(given, str | os.PathLike):
        return given, model
    beside = find(given) if model is None else None
    return open_trace(given), model if beside is None else read(beside)


def recorded_batch(given: Trace | str | os.PathLike[str]) -> int | None:
    """Return the images of a step as the folder of a recorded run tells them; else null.

    Raises the errors of :func:`traceana.runs.read_run` where that folder is damaged.
    """
    from traceana.runs import is_run, read_run

    if not isinstance(given, str | os.PathLike) or not is_run(Path(given)):
        return None
    timing = read_run(given).timing()
    return None if timing is None else timing.images_per_step
