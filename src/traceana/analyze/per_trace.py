"""Results of pure functions of a Trace, computed once for each Trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from traceana.trace import Trace

R = TypeVar("R")


def per_trace(function: Callable[[Trace], R]) -> Callable[[Trace], R]:
    """Return ``function`` with its result kept as long as its Trace lives.

    A Trace is immutable, so the result stays valid. It must be immutable too: all callers share it.
    """
    results: WeakKeyDictionary[Trace, R] = WeakKeyDictionary()

    @wraps(function)
    def of(trace: Trace) -> R:
        if trace not in results:
            results[trace] = function(trace)
        return results[trace]

    return of
