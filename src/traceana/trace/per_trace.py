"""Results of pure functions of a Trace, computed once for each Trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from traceana.frozen import frozen, handed_out
from traceana.trace import Trace

P = ParamSpec("P")
R = TypeVar("R")

MOST_ACTIVITIES: Final = 1_000_000
"""Above this no result with a row for each activity is kept: it takes as much memory as a table."""


def per_trace(
    function: Callable[Concatenate[Trace, P], R],
) -> Callable[Concatenate[Trace, P], R]:
    """Return ``function`` with its results kept as long as their Trace lives.

    A Trace is immutable, so a result stays valid. All callers share it: its arrays and dictionaries
    are read-only, its lists tuples, and its frames handed out as clones. It must not refer to the
    Trace, which would then never be freed. It has a row for each step,
    layer or device; a result of the size of the tables is kept by :func:`per_small_trace`.
    """
    return _kept(function, None)


def per_small_trace(
    function: Callable[Concatenate[Trace, P], R],
) -> Callable[Concatenate[Trace, P], R]:
    """Return ``function`` as :func:`per_trace` does, for results with a row for each activity.

    They are kept for a Trace of at most :data:`MOST_ACTIVITIES`.
    """
    return _kept(function, MOST_ACTIVITIES)


def _kept(
    function: Callable[Concatenate[Trace, P], R], most: int | None
) -> Callable[Concatenate[Trace, P], R]:
    results: WeakKeyDictionary[Trace, list[tuple[Any, R]]] = WeakKeyDictionary()

    @wraps(function)
    def of(trace: Trace, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if most is not None and trace.activities.height > most:
            return function(trace, *args, **kwargs)
        # A list, because a layer manifest cannot be hashed. It has one entry or two.
        known = results.setdefault(trace, [])
        for arguments, result in known:
            if arguments == (args, kwargs):
                return handed_out(result)
        result = frozen(function(trace, *args, **kwargs))
        known.append(((args, kwargs), result))
        return handed_out(result)

    return of
