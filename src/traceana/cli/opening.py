"""Opening of traces with the command-line options."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from traceana.cli import streams
from traceana.cli.options import Reading
from traceana.cli.streams import message, note
from traceana.errors import ExitCode, ManifestWarning

if TYPE_CHECKING:
    from traceana.ingest.source import Progress
    from traceana.runs import BatchSeries
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
    from traceana import open as open_any
    from traceana.files import as_unicode

    steps = None if reading.step is None else numbers(reading.step, "--step")
    devices = None if reading.device is None else numbers(reading.device, "--device")
    ranks = None if reading.rank is None else numbers(reading.rank, "--rank")
    (first, *others) = files
    with (
        warnings.catch_warnings(record=True) as caught,
        _progress(first.name, number, of) as course,
    ):
        warnings.simplefilter("always", ManifestWarning)
        trace = open_any(
            files if others else first,
            progress=course,
            model=reading.model,
            rules=reading.rules,
            counters=reading.counters,
            capture=reading.capture,
            step_marker=reading.step_marker and as_unicode(reading.step_marker),
            device_model=reading.device_model and as_unicode(reading.device_model),
        )
    for one in caught:
        note(str(one.message))
    if streams.is_verbose():
        _describe(trace)
    return trace.select(steps=steps, devices=devices, ranks=ranks)


def batches_beside(files: Sequence[Path]) -> BatchSeries | None:
    """Return the steps of the recorded run in ``files`` and of its siblings at other batch sizes.

    None if there are none, or one cannot be read, with a line on stderr.
    """
    (first, *others) = files
    if others or not first.is_dir():
        return None
    from traceana.errors import TraceanaError
    from traceana.runs import batch_series

    try:
        return batch_series(first)
    except TraceanaError as error:
        note(f"batch sweep ignored: {error}")
        return None


def exit_code(trace: Trace, reading: Reading, *, needs_work: bool = True) -> ExitCode:
    """Return the exit code of a command that printed its output; print a line if it is not 0.

    With ``needs_work``, a trace without activity is an empty selection.
    """
    from traceana.analyze.work import any_work, why_no_work

    meta = trace.meta
    if meta.truncated:
        read = ""
        if meta.bytes_read is not None and meta.bytes_total:
            share = 100 * meta.bytes_read / meta.bytes_total
            read = f": read {meta.bytes_read:,} of {meta.bytes_total:,} bytes ({share:.1f} %)"
        message(f"truncated file{read}")
        return ExitCode.DAMAGED_INPUT
    skipped = trace.ledger.filter(trace.ledger["reason"] == "skipped_file")
    if skipped.height:
        for why in skipped["detail"]:
            message(f"skipped: {why}")
        return ExitCode.DAMAGED_INPUT
    problems = trace.ledger.filter(trace.ledger["severity"] == "problem")
    if reading.strict and problems.height:
        listed = ", ".join(
            f"{count:,} {reason}"
            for reason, count in problems.select("reason", "count").iter_rows()
        )
        message(f"integrity problems: {listed}")
        return ExitCode.DAMAGED_INPUT
    if needs_work and trace.activities.is_empty() and trace.counters.height:
        message(
            f"{meta.source}: contains counters and no timeline; open a trace of "
            f"the same program with --counters {meta.source}",
        )
        return ExitCode.EMPTY_SELECTION
    if needs_work and not any_work(trace):
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
    from traceana.cli import progress

    with progress.shown(file, number, files) as course:
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
    from traceana.ingest.chrome.compiled import COMPILED

    meta = trace.meta
    scanner = "with" if COMPILED else "without"
    streams.detail(
        f"format {meta.format} {meta.format_version or ''}, {meta.bytes_read or 0:,} bytes, "
        f"{trace.activities.height:,} activities; {scanner} the compiled scanner"
    )
    for severity, reason, table, count, text in trace.ledger.select(
        "severity", "reason", "table", "count", "detail"
    ).iter_rows():
        streams.detail(f"{severity}: {count:,} {reason} in {table}{': ' + text if text else ''}")


def notice(
    what: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Progress:
    """Return a progress that says once, after ten seconds, that reading ``what`` takes over a
    minute: where no progress bar is shown, nothing else tells how long it takes.
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
