"""Opening of traces with the command-line options, and the progress bar of a whole command."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from traceana.cli import streams
from traceana.cli.options import Reading
from traceana.cli.streams import message, note
from traceana.errors import ExitCode, ManifestWarning

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from traceana.ingest.source import Progress
    from traceana.trace import Trace

_MOST_NUMBERS: Final = 1_000_000
_FIRST_S: Final = 10
"""Seconds until the rest is estimated; the imports are over by then."""
_LONG_S: Final = 60


def open_trace(files: Sequence[Path], reading: Reading, *, number: int = 0, of: int = 1) -> Trace:
    """Return the trace in ``files``, narrowed to the steps, devices and ranks of ``reading``.

    It is the one of ``number`` (from 0) of the ``of`` traces that the command opens.

    A layer manifest beside the trace that cannot be read is ignored, with a line on stderr.
    Raises the errors of :mod:`traceana.errors`.
    """
    from traceana.enrich.classify import keep_classes
    from traceana.files import as_unicode
    from traceana.opening import open_trace as open_any
    from traceana.timeline.steps import select

    steps = None if reading.step is None else numbers(reading.step, "--step")
    devices = None if reading.device is None else numbers(reading.device, "--device")
    ranks = None if reading.rank is None else numbers(reading.rank, "--rank")
    (first, *others) = files
    # The notes come after the progress bar.
    with noted(ManifestWarning), _progress(first.name, number, of) as course:
        trace = open_any(
            files if others else first,
            progress=course,
            model=reading.model,
            rules=reading.rules,
            counters=reading.counters,
            capture=reading.capture,
            inductor_cache=reading.inductor_cache,
            step_marker=reading.step_marker and as_unicode(reading.step_marker),
            device_model=reading.device_model and as_unicode(reading.device_model),
        )
    keep_classes()
    if streams.is_verbose():
        _describe(trace)
    return select(trace, steps=steps, devices=devices, ranks=ranks)


@contextmanager
def noted(category: type[Warning]) -> Iterator[None]:
    """Print warnings as lines on stderr when the block is over, all of ``category``."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", category)
        yield
    for one in caught:
        note(str(one.message))


def exit_code(trace: Trace, reading: Reading, needs: Collection[str] = ("activities",)) -> ExitCode:
    """Return the exit code of a command that printed its output; print a line if it is not 0.

    A trace is an empty selection where all the tables in ``needs`` are empty.
    """
    from traceana.timeline.work import any_work, why_no_work

    meta = trace.meta
    if meta.truncated:
        read = ""
        if meta.bytes_read is not None and meta.bytes_total:
            share = 100 * meta.bytes_read / meta.bytes_total
            read = f": read {meta.bytes_read:,} of {meta.bytes_total:,} bytes ({share:.1f} %)"
        message(f"truncated file{read}")
        return ExitCode.DAMAGED_INPUT
    skipped = trace.tables.ledger.filter(trace.tables.ledger["reason"] == "skipped_file")
    if skipped.height:
        for why in skipped["detail"]:
            message(f"skipped: {why}")
        return ExitCode.DAMAGED_INPUT
    problems = trace.tables.ledger.filter(trace.tables.ledger["severity"] == "problem")
    if reading.strict and problems.height:
        listed = ", ".join(
            f"{count:,} {reason}"
            for reason, count in problems.select("reason", "count").iter_rows()
        )
        message(f"integrity problems: {listed}")
        return ExitCode.DAMAGED_INPUT
    if not needs or any(trace.tables[one].height for one in needs if one != "activities"):
        return ExitCode.OK
    if "activities" not in needs:
        message(f"nothing to show for {meta.source}")
        return ExitCode.EMPTY_SELECTION
    if trace.tables.activities.is_empty() and trace.tables.counters.height:
        message(
            f"{meta.source}: contains counters and no timeline; open a trace of "
            f"the same program with --counters {meta.source}",
        )
        return ExitCode.EMPTY_SELECTION
    if not any_work(trace):
        message(f"nothing to show for {meta.source}: {why_no_work(trace)}")
        return ExitCode.EMPTY_SELECTION
    return ExitCode.OK


def numbers(text: str, option: str) -> list[int]:
    """Return the numbers of ``3``, ``3,5`` or ``3-7``; ``cpu`` is the CPU.

    Raises ``typer.BadParameter`` on other text.
    """
    from traceana.trace.schema import CPU_DEVICE

    found: list[int] = []
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if first == "cpu" and not dash:
            found.append(CPU_DEVICE)
        elif first.isdecimal() and (not dash or (last.isdecimal() and int(first) <= int(last))):
            wanted = range(int(first), int(last if dash else first) + 1)
            if len(found) + wanted.stop - wanted.start > _MOST_NUMBERS:
                raise typer.BadParameter(
                    f"{text!r} is more than {_MOST_NUMBERS:,} numbers", param_hint=option
                )
            found.extend(wanted)
        else:
            raise typer.BadParameter(
                f"{text!r} is not a list of numbers: use 3 or 3,5 or 3-7", param_hint=option
            )
    return found


@contextmanager
def _progress(file: str, number: int, files: int) -> Iterator[Progress]:
    if streams.is_verbose():
        phases = Phases(file)
        yield phases
        phases.end()
        return
    if streams.is_quiet() or not sys.stderr.isatty():
        yield notice(file, note)
        return

    with progress_bar(file, number, files) as course:
        yield course


class Phases:
    """A progress that prints each phase of opening a file with its time."""

    def __init__(self, file: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to read ``file``; ``clock`` returns seconds."""
        self._file, self._clock = file, clock
        self._phase, self._begin = "reading", clock()

    def __call__(self, done: int, total: int) -> None:
        """Ignore the units that were read."""

    def enter(self, phase: str) -> None:
        """Print the time of the phase before."""
        self.end()
        self._phase, self._begin = phase, self._clock()

    def end(self) -> None:
        """Print the time of the phase."""
        streams.detail(f"{self._clock() - self._begin:.2f} s {self._phase} {self._file}")


def _describe(trace: Trace) -> None:
    """Print reader, size and ledger of ``trace``."""
    from traceana.ingest.compiled import COMPILED

    meta = trace.meta
    scanner = "with" if COMPILED else "without"
    streams.detail(
        f"format {meta.format} {meta.format_version or ''}, {meta.bytes_read or 0:,} bytes, "
        f"{trace.tables.activities.height:,} activities; {scanner} the compiled scanner"
    )
    for severity, reason, table, count, text in trace.tables.ledger.select(
        "severity", "reason", "table", "count", "detail"
    ).iter_rows():
        streams.detail(f"{severity}: {count:,} {reason} in {table}{': ' + text if text else ''}")


def notice(
    what: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Progress:
    """Return a progress that prints once, after ten seconds, that reading ``what`` takes over a
    minute: the only sign of progress without a progress bar.
    """
    begin = clock()
    said = False

    def announced(done: int, total: int) -> None:
        nonlocal said
        passed = clock() - begin
        if said or passed < _FIRST_S or not done or not total:
            return
        whole = passed * total / done
        if whole > _LONG_S:
            said = True
            say(
                f"reading {what} takes about {whole / 60:.0f} min; "
                "traceana save makes a bundle of it, which opens faster"
            )

    return announced


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
def progress_bar(file: str, number: int = 0, files: int = 1) -> Iterator[Course]:
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
