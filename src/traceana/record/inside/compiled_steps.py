"""Steps of frameworks that compile them: a step is a call of the function that takes a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_EAGER = object()
"""In place of a function: a gradient that is taken outside of any."""


class CompiledSteps:
    """Finds the outermost compiled function in which gradients are taken, and tells its calls.

    A gradient taken outside of any is a step itself. ``ended`` gets the step's result. Replicas
    trace in threads of their own, so the function at work is that of all threads.
    """

    def __init__(self, ended: Callable[[Any], None]) -> None:
        self._ended = ended
        self._at_work: object | None = None
        self._trains: object | None = None

    def call(self, function: object, run: Callable[[], Any]) -> Any:
        """Run a call of ``function``."""
        if self._at_work is not None:
            return run()
        self._at_work = function
        try:
            result = run()
        finally:
            self._at_work = None
        if self._trains is function:
            self._ended(result)
        return result

    def gradient(self, run: Callable[[], Any], traced: Callable[[Any], bool]) -> Any:
        """Run what takes a gradient; ``traced`` tells whether its result stands for a value."""
        if self._at_work is not None:
            if self._trains is None and self._at_work is not _EAGER:
                self._trains = self._at_work
            return run()
        self._at_work = _EAGER
        try:
            result = run()
        finally:
            self._at_work = None
        if self._trains in (None, _EAGER) and not traced(result):
            self._trains = _EAGER
            self._ended(result)
        return result
