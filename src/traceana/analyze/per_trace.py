"""Results of pure functions of a Trace, computed once for each Trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from traceana.trace import Trace

P = ParamSpec("P")
R = TypeVar("R")

MOST_ACTIVITIES: Final = 1_000_000
"""Above this nothing is kept: the results of a large trace take as much memory as its tables."""


def per_trace(
    function: Callable[Concatenate[Trace, P], R],
) -> Callable[Concatenate[Trace, P], R]:
    """Return ``function`` with its results kept as long as their Trace lives.

    A Trace is immutable, so a result stays valid. All callers share it: they must not change it,
    and it must not refer to the Trace, which would then never be freed.
    """
    results: WeakKeyDictionary[Trace, list[tuple[Any, R]]] = WeakKeyDictionary()

    @wraps(function)
    def of(trace: Trace, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if trace.activities.height > MOST_ACTIVITIES:
            return function(trace, *args, **kwargs)
        # A list, because a layer manifest cannot be hashed. It has one entry or two.
        known = results.setdefault(trace, [])
        for arguments, result in known:
            if arguments == (args, kwargs):
                return result
        result = function(trace, *args, **kwargs)
        known.append(((args, kwargs), result))
        return result

    return of
