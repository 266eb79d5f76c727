"""Saves a trace as a bundle, with its recommendations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceana.advise import advise, kept
from traceana.enrich.anonymous import anonymous
from traceana.errors import TraceanaError
from traceana.timeline.cut import cut
from traceana.trace import Trace, bundle
from traceana.whatif.program import without_profiler

if TYPE_CHECKING:
    import os
    from pathlib import Path


def save(
    trace: Trace, path: str | os.PathLike[str], *, anonymize: bool = False, overwrite: bool = False
) -> Path:
    """Write the trace as a directory of Parquet files, a bundle, and return the directory.

    Of a selection of steps it has these steps and few other events, and the selection is what is
    shown of it (:mod:`traceana.timeline.cut`). ``anonymize`` replaces the words that the program
    and the machine gave (:func:`traceana.enrich.anonymous.anonymous`).

    It keeps the recommendations, but of a summary, which has no timeline, and where they cannot
    be found, which ``advise`` on the bundle says. An existing bundle is replaced with
    ``overwrite``; anything else at ``path`` is left alone.
    Raises :class:`~traceana.errors.CannotWriteError`.
    """
    if trace.whole is not trace:
        factors = without_profiler(trace.whole).meta.host_factors
        part = cut(trace).with_meta(host_factors=factors)
        return bundle.save(anonymous(part) if anonymize else part, path, overwrite=overwrite)
    if anonymize:
        trace = anonymous(trace)
    # As it will be opened.
    again = Trace(trace.meta.saved(), trace.tables).with_manifest(trace.manifest)
    try:
        has_no_timeline = trace.is_summary or trace.is_snapshot
        advice = None if has_no_timeline else kept.written(advise(without_profiler(again)))
    except TraceanaError:
        advice = None
    return bundle.save(trace, path, advice=advice, overwrite=overwrite)
