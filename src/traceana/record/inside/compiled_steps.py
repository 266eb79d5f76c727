"""Steps of frameworks that compile them: a step is a call of the function that takes a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
        inside = self._at_work
        if inside is not None and self._trains is None:
            self._trains = inside
        if inside is not None:
            return run()
        self._at_work = run
        try:
            result = run()
        finally:
            self._at_work = None
        if self._trains is None and not traced(result):
            self._trains = CompiledSteps
        if self._trains is CompiledSteps and not traced(result):
            self._ended(result)
        return result
