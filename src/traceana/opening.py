"""From a path to a Trace that is classified and attributed: the whole way of the data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from traceana.ingest.progress import Progress, silent
from traceana.trace import Trace


def open_trace(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    progress: Progress = silent,
    rules: str | os.PathLike[str] | None = None,
) -> Trace:
    """Open a trace file of any format, a saved bundle, or the recordings of a distributed run.

    The latter are a list of files, or a folder that holds them: one Trace with the rank of every
    row, the times aligned by each file's epoch.

    ``rules`` names a TOML file of classification rules that come before those of the user's
    configuration directory and traceana's own. A bundle keeps the classes that it was saved with,
    unless ``rules`` are given.
    The names of the result carry their classes, the activities their launching call, operator,
    range, layer, step and direction, and the class that all this makes of the name's. Raises the
    errors of :mod:`traceana.errors`.
    """
    from traceana.ingest.ranks.files import find
    from traceana.ingest.ranks.reader import read_ranks
    from traceana.trace.bundle import is_bundle, open_bundle

    sources = [Path(path)] if isinstance(path, str | os.PathLike) else [Path(one) for one in path]
    (source, *others) = sources
    bundle = not others and is_bundle(source)
    if bundle:
        trace = open_bundle(source)
    elif others:
        trace = read_ranks(str(source.parent), sources, _read, progress, found_in_folder=False)
    elif source.is_dir():
        trace = read_ranks(str(source), find(source), _read, progress, found_in_folder=True)
    else:
        trace = _read(source, progress)
    if rules is not None or not bundle:
        from traceana.classify import classify_names, rules_in_use
        from traceana.refine import refine

        loaded = rules_in_use(None if rules is None else Path(rules))
        trace = trace.with_tables(names=classify_names(trace.names["name"], loaded))
        trace = refine(trace, loaded)
    return trace


def _read(source: Path, progress: Progress) -> Trace:
    from traceana.attribute import attribute
    from traceana.ingest import read
    from traceana.trace.bundle import is_bundle, open_bundle

    if is_bundle(source):
        return open_bundle(source)
    return attribute(read(source, progress))
