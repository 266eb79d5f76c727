"""From a path to a Trace that is classified and attributed: the whole way of the data."""

from __future__ import annotations

import os
from pathlib import Path

from traceana.ingest.progress import Progress, silent
from traceana.trace import Trace


def open_trace(
    path: str | os.PathLike[str],
    *,
    progress: Progress = silent,
    rules: str | os.PathLike[str] | None = None,
) -> Trace:
    """Open a trace file of any format, or a saved bundle.

    ``rules`` names a TOML file of classification rules that come before traceana's own.
    The names of the result carry their classes, the activities their launching call, operator,
    range, layer, step and direction. Raises the errors of :mod:`traceana.errors`.
    """
    from traceana.trace.bundle import is_bundle, open_bundle

    source = Path(path)
    trace = open_bundle(source) if is_bundle(source) else _read(source, progress)
    if rules is not None or not is_bundle(source):
        from traceana.classify import classify_names, load_rules

        extra = None if rules is None else Path(rules)
        trace = trace.with_tables(names=classify_names(trace.names["name"], load_rules(extra)))
    return trace


def _read(source: Path, progress: Progress) -> Trace:
    from traceana.attribute import attribute
    from traceana.ingest import read

    return attribute(read(source, progress))
