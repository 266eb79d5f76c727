"""Records the window with TensorFlow's or JAX's profiler, which write the same files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .settings import Settings
from .window import Recorder


class XplaneRecorder(Recorder):
    """``start`` is given a folder to write to; ``mark`` gives a step's context manager.

    ``describe`` is to write the model's layers to the folder that it is given.
    """

    def __init__(
        self,
        settings: Settings,
        start: Callable[[str], None],
        stop: Callable[[], None],
        mark: Callable[[int], Any],
        rank: Callable[[], tuple[int, int] | None] = lambda: None,
        describe: Callable[[Path], None] = lambda _: None,
    ) -> None:
        self._folder = Path(settings.folder)
        self._start, self._stop, self._mark, self._rank = start, stop, mark, rank
        self._describe = describe
        self._log = self._folder / f"log-{os.getpid()}"
        self._step: Any = None

    def begin(self) -> None:
        """Begin the window."""
        self._start(str(self._log))
        self._enter(0)

    def step(self, number: int) -> None:
        """Mark the step."""
        self._leave()
        self._enter(number)

    def stop(self) -> None:
        """Stop, if it was begun."""
        if self._step is not None:
            self._leave()
            self._stop()

    def write(self) -> str | None:
        """Take the trace out of the profiler's own folders, and describe the model."""
        found = sorted(self._log.rglob("*.xplane.pb"))
        if not found:
            return None
        rank = self._rank()
        name = "trace.xplane.pb" if rank is None else f"trace.rank{rank[0]}.xplane.pb"
        found[0].replace(self._folder / name)
        shutil.rmtree(self._log, ignore_errors=True)
        self._describe(self._folder)
        return name

    def _enter(self, number: int) -> None:
        self._step = self._mark(number)
        self._step.__enter__()

    def _leave(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)
