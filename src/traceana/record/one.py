"""Records one run: its steps without a profiler, then with it, and what belongs beside them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from traceana.comparison.resampling import Statistic, relative_interval, smallest_p, statistic
from traceana.errors import (
    CannotWriteError,
    NoSpaceError,
    NothingRecordedError,
    ProfilerConflictError,
    RefusedOptionsError,
    TraceanaError,
)
from traceana.record import child
from traceana.record.check import why_unusable
from traceana.record.child import Ended
from traceana.record.environment import environment
from traceana.record.folder import PartialFolder, remove
from traceana.record.nsys import check_nsys, runs_beside_us
from traceana.record.reason import reason
from traceana.record.subject import Outcome, Subject
from traceana.runs import model
from traceana.runs.model import Profiler, Run, Status, StepTimes, Timing
from traceana.runs.read import RecordedRun

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OVERHEAD_LEVEL: Final = 0.9
"""Of the overhead's interval: the overhead lies below its lower bound in one case of 20."""
_LEAST_FREE: Final = 1 << 16
"""Bytes; a disk with less is full: a trace that ends in its middle is then no riddle."""


@dataclass(frozen=True)
class Request:
    """How to record: ``baseline`` also without the profiler; ``options`` are the words given.

    ``point`` is the place in a sweep. With ``keep_failures`` a run without a trace is kept with its
    reason, as a sweep wants it; else it raises. A process gets ``exit_timeout`` seconds to exit.
    """

    baseline: bool = True
    options: Sequence[str] = ()
    point: Mapping[str, str] = field(default_factory=dict)
    keep_failures: bool = False
    exit_timeout: float = child.EXIT_TIMEOUT
    say: Callable[[str], None] = lambda _: None


def check_profiler(profiler: Profiler | None) -> None:
    """Raise where no profiler can work here, before the command is run."""
    if profiler is not Profiler.NONE and runs_beside_us():
        raise ProfilerConflictError(
            "this runs under nsys or another profiler already, and CUPTI serves one: record "
            "without it, or with --profiler none"
        )
    if profiler is Profiler.NSYS:
        check_nsys()


def overhead(
    without: StepTimes | None, beside: StepTimes | None
) -> tuple[float | None, tuple[float, float] | None]:
    """Return the profiler's overhead over the step without it, and the bounds of its interval.

    It is the ratio of the medians, less 1; of the means where only the sum of the steps is right.
    The interval is the bootstrap's, of both runs' steps, at :data:`OVERHEAD_LEVEL`. There is none
    where chance orders so few steps as well: 3 and 3 are enough. The overhead is None unless the
    interval lies above 0; below it the runs differ by more than the profiler.
    """
    if without is None or beside is None:
        return None, None
    a, b = (np.array(times.steps_ns, dtype=np.float64) for times in (without, beside))
    if smallest_p(len(a), len(b)) > 1 - OVERHEAD_LEVEL + 1e-9 or min(a.min(), b.min()) <= 0:
        return None, None
    of: Statistic = "median" if without.synchronized and beside.synchronized else "mean"
    interval = relative_interval(a, b, of, OVERHEAD_LEVEL)
    share = statistic(b, of) / statistic(a, of) - 1
    return (share if interval[0] > 0 else None), interval


def record(subject: Subject, target: Path, request: Request) -> RecordedRun:
    """Record ``subject`` into the folder ``target``, which appears whole or not at all.

    A command that dies is a run as well, with its reason. Raises ``NothingRecordedError``,
    ``NoSpaceError``, ``ProfilerConflictError``, ``CannotWriteError`` and what ``subject`` raises;
    then there is no folder.
    """
    subject.check()
    check_profiler(subject.profiler)
    partial = PartialFolder(target)
    try:
        run = _Recording(subject, partial, request).made()
        partial.finish()
    except OSError as error:
        partial.discard()
        if error.errno in _FULL:
            raise _no_space(target) from error
        raise CannotWriteError(f"cannot write {target}: {error.strerror}") from error
    except BaseException:
        partial.discard()
        raise
    return RecordedRun(target, run)


class _Recording:
    """The launches of one run, in their order."""

    def __init__(self, subject: Subject, partial: PartialFolder, request: Request) -> None:
        self._subject, self._partial, self._request = subject, partial, request
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._recorded = subject.profiler is not Profiler.NONE
        self._scratch: list[Path] = []
        self._overdue: str | None = None

    def made(self) -> Run:
        """Launch, and write the files; returns what ``traceana-run.json`` says."""
        plain, ended = Outcome(), Ended(0)
        if self._request.baseline or not self._recorded:
            self._request.say("without a profiler")
            plain, ended = self._launched(recorded=False)
            if ended.interrupted or _died(plain, ended):
                return self._written(plain, None, ended)
            if plain.times is None and self._subject.profiler is not Profiler.NSYS:
                # The profiler would see no step either.
                return self._written(plain, plain, ended)
            if not self._recorded:
                return self._written(plain, None, ended)
        self._request.say("with the profiler")
        profiled, ended = self._launched(recorded=True)
        return self._written(plain, profiled, ended)

    def _launched(self, *, recorded: bool) -> tuple[Outcome, Ended]:
        scratch = self._partial.scratch(".profiled" if recorded else ".plain")
        self._scratch.append(scratch)
        launch = self._subject.launch(scratch, recorded=recorded)
        ended = child.run(launch, scratch, self._request.exit_timeout)
        if ended.overdue:
            self._overdue = (
                f"a process did not exit within {self._request.exit_timeout:g} s (--exit-timeout) "
                "and was ended"
            )
        outcome = self._subject.outcome(scratch, recorded=recorded)
        for process in outcome.processes:
            if process.problem is not None and process.problem.kind == "no space":
                raise _no_space(self._partial.target)
            if process.problem is not None and process.problem.kind == "conflict":
                raise ProfilerConflictError(
                    f"{process.problem.text}, and CUPTI serves one profiler: take it out of the "
                    "script, or open what the script wrote"
                )
        return outcome, ended

    def _written(self, plain: Outcome, profiled: Outcome | None, ended: Ended) -> Run:
        last = profiled or plain
        names, unusable = self._kept(profiled) if profiled is not None else ((), None)
        nothing = None
        if profiled is not None and not names:
            nothing = unusable or self._nothing(profiled)
        if ended.interrupted and not names:
            raise KeyboardInterrupt
        if isinstance(nothing, NoSpaceError):
            raise nothing
        status, why = self._judged(last, ended, nothing)
        notes = dict.fromkeys([*plain.notes, *last.notes])
        if self._overdue is not None:
            notes[self._overdue] = None
        if nothing is not None and why != str(nothing):
            notes[str(nothing)] = None
        run = Run(
            status=status,
            reason=why,
            workload=last.workload or plain.workload,
            point=dict(self._request.point),
            argv=self._subject.argv,
            profiler=self._subject.profiler or last.profiler or Profiler.NONE,
            traces=names,
            started_at=self._started,
            exit_status=ended.exit_status,
            notes=tuple(notes),
        )
        beside = profiled.times if profiled is not None and names else None
        share, interval = overhead(plain.times, beside)
        timing = Timing(
            images_per_step=last.images_per_step or plain.images_per_step,
            without_profiler=plain.times,
            with_profiler=beside,
            overhead=share,
            overhead_interval=interval,
        )
        processes = (*last.processes, *plain.processes)
        made = environment(processes, run.profiler, self._request.options)
        for scratch in self._scratch:
            remove(scratch)
        self._partial.write(model.TIMING_FILE, timing)
        self._partial.write(model.ENVIRONMENT_FILE, made)
        self._partial.write(model.RUN_FILE, run)
        return run

    def _judged(
        self, last: Outcome, ended: Ended, nothing: TraceanaError | None
    ) -> tuple[Status, str | None]:
        """How the run ended, and why; raises where it is not to be kept."""
        if ended.interrupted:
            return Status.INTERRUPTED, "interrupted (Ctrl-C)"
        if _died(last, ended):
            if last.refused is not None and not self._request.keep_failures:
                raise RefusedOptionsError(f"the workload refused its options: {last.refused}")
            why = reason(ended, last.refused, last.processes)
            if "No space left on device" in why and self._is_full():
                raise _no_space(self._partial.target)
            return Status.FAILED, why
        if nothing is not None:
            if not self._request.keep_failures:
                raise nothing
            return Status.FAILED, str(nothing)
        return Status.COMPLETE, None

    def _kept(self, profiled: Outcome) -> tuple[tuple[str, ...], TraceanaError | None]:
        """Move the traces into the run's folder; or say why they are none."""
        if not profiled.traces:
            return (), None
        unusable = why_unusable(profiled.traces)
        if unusable is not None:
            if self._is_full():
                raise _no_space(self._partial.target)
            return (), unusable
        for path in profiled.traces:
            path.replace(self._partial.path / path.name)
            report = path.with_suffix(".nsys-rep")
            if report.is_file():
                report.replace(self._partial.path / report.name)
        if profiled.layers is not None:
            profiled.layers.replace(self._partial.path / model.LAYERS_FILE)
        return tuple(path.name for path in profiled.traces), None

    def _nothing(self, profiled: Outcome) -> TraceanaError:
        if self._is_full():
            return _no_space(self._partial.target)
        return NothingRecordedError(f"nothing was recorded: {profiled.why_nothing}")

    def _is_full(self) -> bool:
        disk = os.statvfs(self._partial.path)
        return disk.f_bavail * disk.f_frsize < _LEAST_FREE


def _died(outcome: Outcome, ended: Ended) -> bool:
    """Whether the command failed; of one that was ended here its exceptions tell."""
    if not ended.overdue:
        return ended.exit_status != 0
    return any(one.exception is not None and not one.stopped for one in outcome.processes)


def _no_space(target: Path) -> NoSpaceError:
    return NoSpaceError(
        f"no space is left for {target}: nothing of this run is kept; make room, or record fewer "
        "--steps, or name a folder on another disk"
    )
