"""Opening of traces with the command-line options, and the progress bar of a whole command."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from traceana.cli import streams
from traceana.cli.options import Reading
from traceana.cli.streams import message, note
from traceana.errors import ExitCode, ManifestWarning

if TYPE_CHECKING:
    from traceana.readers.source import Progress
    from traceana.trace import Trace

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
    from traceana.opening import open_trace as open_any
    from traceana.plain_text import as_unicode
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
            as_recorded=reading.as_recorded,
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
    for warning in caught:
        note(str(warning.message))


def gate_label(*traces: Trace) -> str:
    """Return the beginning of a gate's line, with the clock that the gate is of."""
    by_program = any(trace.recorded is not None for trace in traces)
    return "gate (times without the profiler)" if by_program else "gate"


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
            if meta.bytes_read == meta.bytes_total:
                read = f": {meta.source} ends early, later events are missing"
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
    if not needs or any(trace.tables[table].height for table in needs if table != "activities"):
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
    """Return the numbers in ``text``; raises ``typer.BadParameter`` if it is not a list."""
    from traceana.vocabulary.number_lists import number_list

    try:
        return number_list(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


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
    from traceana.readers.compiled import COMPILED

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


@contextmanager
def progress_bar(file: str, number: int = 0, files: int = 1) -> Iterator[Progress]:
    """Show a bar while ``file`` is opened, and on while it is analyzed.

    Reading reports its units; of the other phases only the beginning is known, and the bar pulses.
    :func:`traceana.cli.streams.remove_bar` ends it.
    """
    bar = streams.bar()
    if bar is None:
        bar = Bar()
        streams.show_bar(bar, bar.stop)
    bar.open(file)
    try:
        yield bar
    except BaseException:
        streams.remove_bar()
        raise
    if number == files - 1:
        bar.enter("analyzing")


class Bar:
    """A progress shown on the terminal: the phase, the file, and how far reading is."""

    def __init__(self) -> None:
        """Show the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self._shown = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._shown.add_task("", total=None)
        self._shown.start()
        self.stop = self._shown.stop

    def open(self, file: str) -> None:
        """Begin to read ``file``."""
        from traceana.plain_text import plain

        self._file = plain(file)
        self.enter("reading")

    def __call__(self, done: int, total: int) -> None:
        """Show the units that were read."""
        if total:
            self._shown.update(self._task, completed=done, total=total)

    def enter(self, phase: str) -> None:
        """Show that ``phase`` begins."""
        self._shown.reset(self._task, total=None, description=f"{phase} {self._file}")
