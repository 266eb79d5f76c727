"""A run that is given as a Trace or by its path."""

from __future__ import annotations

import os
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
