"""From a path to a Trace that is classified and attributed: the whole way of the data."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from traceana.errors import CountersError, NotARunError, NotFoundError
from traceana.ingest.source import Progress, silent
from traceana.trace import Trace

if TYPE_CHECKING:
    from traceana.model import Manifest


def open_trace(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    steps: Collection[int] | None = None,
    ranks: Collection[int] | None = None,
    devices: Collection[int] | None = None,
    model: Manifest | str | os.PathLike[str] | None = None,
    step_marker: str | None = None,
    rules: str | os.PathLike[str] | None = None,
    counters: str | os.PathLike[str] | None = None,
    device_model: str | None = None,
    progress: Progress = silent,
) -> Trace:
    """Open a trace file of any format, a saved bundle, a folder that ``traceana record`` made, or
    the recordings of a distributed run.

    The latter are a list of files, or a folder that holds them: one Trace with the rank of every
    row, the times aligned by each file's epoch.

    ``steps``, ``ranks`` and ``devices`` are numbers: only their activities are kept
    (:meth:`Trace.select`). ``model`` is a layer manifest or its file; without it the manifest that
    lies beside the trace, if any.
    ``rules`` names a TOML file of classification rules that come before those of the user's
    configuration directory and traceana's own. A bundle keeps the classes that it was saved with,
    unless ``rules`` are given.
    ``device_model`` names the device of a trace that names none, as data sheets do; a part of the
    name is enough. A device that the trace names keeps its name.
    ``counters`` names a table of Nsight Compute (``ncu --csv --page raw``) of the same program,
    whose launches are joined to the kernels (``trace.counters``, column ``activity``).
    ``step_marker`` is the text of the ranges that are steps, or a regular expression that their
    texts match: :func:`traceana.enrich.steps.marked_by`. A bundle keeps its layers then, and
    gets other steps.
    The names of the result carry their classes, the activities their launching call, operator,
    range, layer, step and direction, and the class that all this makes of the name's. Raises the
    errors of :mod:`traceana.errors`.
    """
    from traceana.ingest.ranks import find, read_ranks
    from traceana.trace.bundle import is_bundle

    given = None if model is None else _given(model)
    if not isinstance(path, str | os.PathLike | Sequence):
        raise TypeError(f"open() takes the path of a trace, or a list of paths, not {path!r}")
    sources = [Path(path)] if isinstance(path, str | os.PathLike) else [Path(one) for one in path]
    if not sources:
        raise NotFoundError("no input: give a trace, or the files of one run's ranks")
    (source, *others) = sources
    bundle = not others and is_bundle(source)
    read_one = partial(_read, step_marker=step_marker)
    timeline = partial(_timeline, step_marker=step_marker)
    if bundle:
        trace = read_one(source, progress)
    elif others:
        trace = read_ranks(str(source.parent), sources, timeline, progress, found_in_folder=False)
    elif recorded := _recorded(source):
        trace = (
            read_one(recorded[0], progress)
            if len(recorded) == 1
            else read_ranks(str(source), recorded, timeline, progress, found_in_folder=False)
        )
    elif source.is_dir():
        trace = read_ranks(str(source), find(source), timeline, progress, found_in_folder=True)
    else:
        trace = read_one(source, progress)
    if rules is not None or not bundle:
        from traceana.enrich import with_classes
        from traceana.enrich.classify import rules_in_use

        trace = with_classes(trace, rules_in_use(None if rules is None else Path(rules)))
    if device_model is not None:
        from traceana.flops.peaks import with_device_model

        trace = with_device_model(trace, device_model)
    if counters is not None:
        trace = _measured(trace, Path(counters), progress)
    trace = trace.with_manifest(given or _beside(source))
    return trace.select(steps=steps, devices=devices, ranks=ranks)


def _given(model: Manifest | str | os.PathLike[str]) -> Manifest:
    from traceana.model import read

    return read(model) if isinstance(model, str | os.PathLike) else model


def _beside(source: Path) -> Manifest | None:
    """Return the manifest that lies beside ``source``; one that cannot be read is a warning."""
    from traceana.errors import ManifestWarning, TraceanaError
    from traceana.model import find, read

    found = find(source)
    if found is None:
        return None
    try:
        return read(found)
    except TraceanaError as error:
        warnings.warn(f"left out: {error}", ManifestWarning, stacklevel=3)
        return None


def _recorded(source: Path) -> list[Path]:
    """Return the traces of the recorded run ``source``, nothing where it is none.

    Raises where it holds several runs, one that goes on, or one without a trace.
    """
    from traceana.runs.run_folders import is_run, read_run, refuse_partial, runs_below

    if not source.is_dir():
        return []
    refuse_partial(source)
    if is_run(source):
        return read_run(source).traces()
    if below := runs_below(source):
        raise NotARunError(
            f"{source} holds {len(below)} recorded runs: give one of them, the first is {below[0]}"
        )
    return []


def _measured(trace: Trace, path: Path, progress: Progress) -> Trace:
    from traceana.enrich.counters import with_counters
    from traceana.ingest import read_counters

    if trace.activities.is_empty() and trace.counters.height:
        raise CountersError(
            f"{trace.meta.source} is a table of counters: give the timeline to join {path} to"
        )
    measured = read_counters(path, progress)
    joined = with_counters(trace, measured.counters)
    with_ledger = joined.with_tables(ledger=pl.concat([joined.ledger, measured.ledger]))
    properties = {**trace.meta.properties, "counters_file": str(path)}
    return with_ledger.with_meta(properties=properties)


def _timeline(source: Path, progress: Progress, step_marker: str | None = None) -> Trace:
    trace = _read(source, progress, step_marker)
    if trace.activities.is_empty() and trace.counters.height:
        raise CountersError(
            f"{source} is a table of counters, not a timeline: give it with --counters"
        )
    return trace


def _read(source: Path, progress: Progress, step_marker: str | None = None) -> Trace:
    from traceana.trace.bundle import is_bundle

    if is_bundle(source):
        trace = Trace.from_bundle(source)
        if step_marker is None:
            return trace
        from traceana.enrich.steps import remarked

        return remarked(trace, step_marker)
    from traceana.enrich import attribute
    from traceana.ingest import read

    return attribute(read(source, progress), step_marker)
