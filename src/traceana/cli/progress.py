"""The progress bar of a whole command, from reading its files to its answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from traceana.cli import streams

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

SHARES: Final = {"reading": 0.4, "attributing": 0.2, "classifying": 0.1, "analyzing": 0.3}
"""Each phase's share of the time of ``report``: between those measured on Kineto and on nsys."""
_ENDS: Final = dict(zip(SHARES, accumulate(SHARES.values()), strict=True))
_ANALYSIS: Final = "analyzing"


class Course:
    """How far a command has come, from 0 to 1.

    Reading reports its units. Of the other phases only the beginning is known; their time is
    estimated by that of the phases before, and they come near their end without reaching it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin; ``clock`` returns seconds."""
        self._clock = clock
        self._begin = self._entered = clock()
        self.phase, self.file = "reading", ""
        self._number, self._files = 0, 1
        self._read = 0.0

    def open(self, file: str, number: int, files: int) -> None:
        """Begin to read ``file``, the one of ``number`` (from 0) of ``files`` that are compared."""
        self.file, self._number, self._files = file, number, files
        self.enter("reading")

    def __call__(self, done: int, total: int) -> None:
        """Take the units that were read; the share never falls."""
        if total:
            self._read = max(self._read, min(done / total, 1.0))

    def enter(self, phase: str) -> None:
        """Begin ``phase``, one of :data:`SHARES`."""
        self._entered, self._read, self.phase = self._clock(), 0.0, phase

    @property
    def share(self) -> float:
        """The share of the command that is done."""
        begin, end = self._between()
        if self.phase == "reading":
            return begin + (end - begin) * self._read
        passed = self._entered - self._begin
        expected = passed * (end - begin) / begin if begin else 0.0
        if expected <= 0:
            return begin
        done = 1 - math.exp(-2 * (self._clock() - self._entered) / expected)
        return begin + (end - begin) * done

    def _between(self) -> tuple[float, float]:
        """Return the shares at which the phase begins and ends."""
        begin, end = _ENDS[self.phase] - SHARES[self.phase], _ENDS[self.phase]
        if self.phase == _ANALYSIS:
            return begin, end
        # The files are opened one after the other, and analyzed together.
        opening = 1 - SHARES[_ANALYSIS]
        before = self._number * opening / self._files
        return before + begin / self._files, before + end / self._files


@contextmanager
def shown(file: str, number: int = 0, files: int = 1) -> Iterator[Course]:
    """Show the bar while ``file`` is opened, and on while it is analyzed.

    :func:`traceana.cli.streams.remove_bar` ends it.
    """
    course = streams.bar()
    if course is None:
        course = Course()
        bar = _bar(course)
        bar.start()
        streams.show_bar(course, bar.stop)
    course.open(file, number, files)
    try:
        yield course
    except BaseException:
        streams.remove_bar()
        raise
    if number == files - 1:
        course.enter(_ANALYSIS)


def _bar(course: Course) -> RichProgress:
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from traceana.report.text import plain

    class Bar(Progress):
        """A bar that asks the course how far it is each time it is drawn."""

        def get_renderables(self) -> Iterator[RenderableType]:
            # Columns with the time left would guess from jumps between phases.
            for task in self.tasks:
                text = f"{course.phase} {plain(course.file)}"
                self.update(task.id, completed=course.share, description=text)
            yield from super().get_renderables()

    bar = Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task("", total=1.0)
    return bar
