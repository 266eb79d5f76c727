"""Traces that a worker opens once: a Trace is immutable, and its results are kept with it."""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

from tests.support.traces import with_methods
from traceana import Trace, opening
from traceana.opening import open_trace
from traceana.report.pages import report
from traceana.report.pages.overview import Overview
from traceana.report.pages.overview import overview as overview_of
from traceana.whatif import program

MOST: Final = 40

_kept: OrderedDict[Hashable, Trace] = OrderedDict()
_overviews: dict[tuple[int, bool], Overview] = {}
"""What the report on a kept trace says, by the trace's ``id`` and whether it is on the clock of its
program: every format and test shares it."""
_overview: Final = overview_of


def no_cost(_: Trace) -> None:
    """Stand in for ``profiler_cost``: the profiler of a synthetic program costs nothing."""


def opened(path: Any, **options: Any) -> Trace:
    """Return the trace of ``path``, opened anew where a file or an option is not as before.

    Opened anew, too, where the opening warns.
    """
    options = {name: value for name, value in options.items() if value is not None}
    options.pop("progress", None)
    rules = Path(os.environ.get("XDG_CONFIG_HOME", "")) / "traceana" / "rules.toml"
    try:
        given = [(name, _state(value)) for name, value in sorted(options.items())]
        key = (_files(path), _state(rules), vars(program)["profiler_cost"] is no_cost, *given)
    except OSError:
        return with_methods(open_trace(path, **options))
    if key in _kept:
        _kept.move_to_end(key)
        return _kept[key]
    with warnings.catch_warnings(record=True) as caught:
        trace = with_methods(open_trace(path, **options))
    for one in caught:
        warnings.warn(one.message, stacklevel=2)
    if not caught:
        _kept[key] = trace
        if len(_kept) > MOST:
            dropped = id(_kept.popitem(last=False)[1])
            for by_program in (False, True):
                _overviews.pop((dropped, by_program), None)
    return trace


def overview(trace: Trace, **options: Any) -> Overview:
    """Return the sections of the report on ``trace``, found once for a trace that is kept."""
    given = {name: value for name, value in options.items() if value is not None}
    recorded = trace.recorded or trace
    if given or all(recorded is not kept for kept in _kept.values()):
        return _overview(trace, **options)
    key = id(recorded), recorded is not trace
    if key not in _overviews:
        _overviews[key] = _overview(trace)
    return _overviews[key]


# A trace is immutable, and so is what is found of it: JSON, screen and pictures differ in how they
# are written alone. Most tests that run a report ask for one that another has asked for.
setattr(report, "overview", overview)  # noqa: B010


def forget() -> None:
    """Free the traces that are open."""
    _overviews.clear()
    _kept.clear()


@contextmanager
def opened_once() -> Iterator[None]:
    """Let the command line open traces with :func:`opened`."""
    with mock.patch.object(opening, "open_trace", opened):
        yield


def _files(path: Any) -> Hashable:
    """Return the state of every file that is read to open ``path``: its own and those beside."""
    if isinstance(path, list | tuple):
        return tuple(_files(one) for one in path)
    path = Path(path)
    inside = sorted(path.rglob("*")) if path.is_dir() else []
    return tuple(_state(one) for one in (path, *inside, *sorted(path.parent.iterdir())))


def _state(value: Any) -> Hashable:
    """Return what changes with the file ``value``, or ``value`` where it is no file."""
    if not isinstance(value, str | os.PathLike) or not Path(value).exists():
        return repr(value)
    known = Path(value).stat()
    times = known.st_mtime_ns, known.st_ctime_ns
    return os.fspath(value), known.st_dev, known.st_ino, known.st_size, *times
