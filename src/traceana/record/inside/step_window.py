"""Step counting, and recording of a window of steps."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any

from .lines import LineRanges
from .machine_load import Load
from .process_report import Report, Settings, guarded

AFTER_STEPS = "traceana: after the last step"
"""An empty range: the step around it has begun and did not end."""


class Recorder:
    """A profiler; the base class records nothing."""

    def prepare(self, number: int) -> None:
        """Start the profiler's warm-up, in step ``number``, the last one before the window."""

    def begin(self, number: int) -> None:
        """Begin the window; ``number`` is that of its first step in the script, from 1."""

    def step(self, number: int) -> None:
        """End a step of the window; ``number`` is that of the next one."""

    def abandon_step(self) -> None:
        """Mark the step that has begun as none: it does not end before the recording."""

    def stop(self) -> None:
        """End the window in any state; a process that exits with an active profiler may crash."""

    def write(self) -> str | None:
        """Write the trace of a stopped window and return its file name, or None."""
        return None


class Clock:
    """The host clock, exact if the host waits for each step."""

    def synchronized(self) -> bool:
        """Return whether the device has finished the last step."""
        return True

    def wait(self) -> None:
        """Wait for the device."""

    def now(self) -> Any:
        """Return the time now."""
        return perf_counter_ns()

    def between(self, moments: list[Any]) -> list[int]:
        """Return the time from each of ``moments`` to the next, in ns."""
        return [after - before for before, after in zip(moments, moments[1:])]  # noqa: B905, RUF007


class Block:
    """Steps in a row that are timed, from the end of step ``begin`` to the end of step ``end``.

    ``moments`` are when it began and when each of its steps ended, ``cpu_moments`` the processor
    time of the process then; ``synchronized``: the device had finished the step then.
    """

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end
        self.moments: list[Any] = []
        self.cpu_moments: list[int] = []
        self.synchronized = True
        self.load = Load()

    def mark(self, clock: Clock) -> None:
        """Note that it begins, or that a step of it has ended."""
        self.moments.append(clock.now())
        self.cpu_moments.append(process_time_ns())

    def times(self, clock: Clock) -> dict[str, Any]:
        """Return the times of its steps, and the load of the machine meanwhile."""
        cpu = self.cpu_moments
        return {
            "steps_ns": clock.between(self.moments),
            "cpu_ns": [after - before for before, after in zip(cpu, cpu[1:])],  # noqa: B905, RUF007
            "synchronized": self.synchronized,
            "ready_ns": self.load.ready_ns,
            "other_cores": self.load.other_cores,
            "gpus": self.load.gpus,
        }


class Window:
    """The recorded window: ``steps`` steps, between steps that are timed without the profiler.

    In order: ``warm_up`` steps; ``before`` timed steps, and one for the warm-up of the profiler;
    the recorded steps; one in which the process recovers from the writing of the trace; ``after``
    timed steps. Without ``before`` the last warm-up step is that of the profiler.

    :meth:`step_ended` is called after each step. The first process with a step is recorded, or each
    rank of a distributed run. With ``until_next``, a step lasts until :meth:`step_begins`: a call
    that only enqueues work returns before the work ends, and the script waits for it afterwards.
    The last step of a block lasts until its work has ended.
    """

    def __init__(
        self,
        framework: str,
        settings: Settings,
        report: Report,
        recorder: Recorder,
        clock: Clock,
        rank: Callable[[], tuple[int, int] | None] = lambda: None,
        *,
        until_next: bool = False,
    ) -> None:
        self._framework, self._settings, self._report = framework, settings, report
        self._until_next = until_next
        self._recorder, self._clock, self._rank = recorder, clock, rank
        self._over = False
        self._process: int | None = None
        self._claimed = False
        self.remark = ""
        """What the steps are, where that is not as usual: a note of the recording."""
        self._plan()

    def _plan(self) -> None:
        """Lay out the blocks of steps before the first step."""
        settings = self._settings
        self._open, self._taken = False, 0
        warm_up, before = settings.warm_up, settings.before
        first = warm_up + before + 1 if before else warm_up
        last = first + settings.steps
        self._warm_up = Block(1, warm_up)
        self._before = Block(warm_up, warm_up + before)
        self._recorded = Block(first, last)
        self._after = Block(last + 1, last + 1 + settings.after)
        blocks = (self._before, self._recorded, self._after)
        self._later = [block for block in blocks if block.end > block.begin]
        self._block: Block | None = self._warm_up

    @property
    def is_over(self) -> bool:
        """Whether nothing is counted any more."""
        return self._over

    def restart(self) -> None:
        """Count from the beginning: what was counted were no steps.

        A window that is over stays: its recording may be in use.
        """
        if self._over:
            if self._recorded.moments:
                self._report.note("the program trains afterwards: that is not recorded")
            return
        self._recorder.stop()
        if self._recorded.moments:
            self._report.add(times=None, trace=None, without_profiler=None)
        self.remark = ""
        self._plan()

    def step_ended(self) -> None:
        """Count a step; with ``stop``, raise ``SystemExit`` after the last one of the window."""
        # A process forked after the first step does not train; one forked before may.
        if self._taken and os.getpid() != self._process:
            return
        self._process = os.getpid()
        if self._over:
            return
        self._taken += 1
        self._try(self._advance)
        if self._over and self._settings.stop:
            guarded(self._stop, self._report)
            if threading.current_thread() is threading.main_thread():
                raise SystemExit(0)

    def step_begins(self) -> None:
        """End the step before, with ``until_next``."""
        if self._open and not self._over and os.getpid() == self._process:
            self._try(self._end_step)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # the script continues without recording
            self._over = True
            self._report.failed(error)
            guarded(self._recorder.stop, self._report)

    def _stop(self) -> None:
        # A process that exceeds the time limit of its exit is killed without another report.
        self._report.describe_process()
        self._report.add(stopped=True)
        self._report.exiting()

    def _advance(self) -> None:
        if not self._claimed and not self._claim():
            self._over = True
            return
        self._claimed = True
        block = self._block
        if block is not None and self._taken < block.end:
            self._open = True
            if not self._until_next:
                self._end_step()
        elif block is not None:
            self._clock.wait()
            self._open, self._block = False, None
            block.mark(self._clock)
            block.load.stop()
            if block is self._recorded:
                self._write()
        if self._taken == self._recorded.begin - 1:
            self._recorder.prepare(self._taken + 1)
        if self._later and self._taken == self._later[0].begin:
            self._begin(self._later.pop(0))
        if self._block is None and not self._later:
            self._finish()

    def _begin(self, block: Block) -> None:
        self._clock.wait()
        if block is self._recorded:
            self._report.add(steps_begun=self._taken)
            self._recorder.begin(self._taken + 1)
        block.load.start()
        block.mark(self._clock)
        self._block = block

    def _end_step(self) -> None:
        """End a step within a block."""
        self._open = False
        assert self._block is not None
        self._block.synchronized &= self._clock.synchronized()
        self._block.mark(self._clock)
        if self._block is self._recorded:
            self._recorder.step(self._taken + 1)

    def close(self) -> None:
        """End the window; a second call has no effect."""
        if self._over or os.getpid() != self._process:
            return
        self._report.closed_at_exit = True
        block = self._block
        if block is not self._recorded:
            self._recorder.stop()
            self._finish()
            return
        # A step that is open now has no end: the script may have done other work after its steps.
        self._over = True
        if len(block.moments) < 2 and not self._open:
            self._recorder.stop()
            self._finish()
            return
        self._clock.wait()
        block.load.stop()
        self._recorder.abandon_step()
        self._write()
        self._finish()

    def _write(self) -> None:
        """Stop the profiler, and report the recorded steps and the trace."""
        self._recorder.stop()
        self._report.add(times=self._times(self._recorded), **self._timed())
        trace = self._recorder.write()
        if trace is not None:
            self._report.add(trace=trace)

    def _finish(self) -> None:
        """Report the steps that were timed; nothing is counted from here on."""
        self._over = True
        self._report.add(**self._timed())
        if self.remark:
            self._report.note(self.remark)
        self._report.close_window()

    def _timed(self) -> dict[str, Any]:
        """Return the number of steps so far, and the times of those without the profiler."""
        blocks = [block for block in (self._before, self._after) if len(block.moments) > 1]
        if not blocks:
            return {"steps_taken": self._taken}
        timed = [block.times(self._clock) for block in blocks]
        ready = [times["ready_ns"] for times in timed]
        without = {
            **timed[-1],
            "warm_up_ns": self._clock.between(self._warm_up.moments),
            "steps_ns": [time for times in timed for time in times["steps_ns"]],
            "cpu_ns": [time for times in timed for time in times["cpu_ns"]],
            "synchronized": all(block.synchronized for block in blocks),
            "steps_before": max(len(self._before.moments) - 1, 0),
            "ready_ns": None if None in ready else sum(ready),
        }
        return {"steps_taken": self._taken, "without_profiler": without}

    def _times(self, block: Block) -> dict[str, Any]:
        return {
            **block.times(self._clock),
            "warm_up_ns": self._clock.between(self._warm_up.moments),
            "first": block.begin + 1,
        }

    def _claim(self) -> bool:
        rank = self._rank()
        name = "window" if rank is None else f"window-{rank[0]}"
        claimed = Path(self._settings.folder, name)
        try:
            with claimed.open("x", encoding="ascii") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            own = claimed.read_text("ascii") == str(os.getpid())
            other = f"steps of {self._framework}" if own else "those of another process"
            self._report.note(f"further steps were not recorded: {other}")
            return False
        if rank is not None:
            self._report.add(rank=rank[0], world_size=rank[1])
        # A process that os._exit or a signal ends has no later report than those before it.
        self._report.add(framework=self._framework, steps_begun=self._taken)
        self._report.at_close(self.close)
        return True


CAPTURE = "traceana window"
_DOMAIN = "traceana"
"""The NVTX domain of the lines: a program may open a range in one line and close it in another."""


class NvtxWindow(Recorder):
    """NVTX ranges ``iteration N`` inside one range that starts and stops nsys' recording.

    The ``nvtx`` package opens them. ``model``, if given, marks its layers.
    """

    def __init__(self, settings: Settings, report: Report, model: Any = None) -> None:
        self._settings, self._report, self._model = settings, report, model
        self._nvtx: Any = None
        self._capture: Any = None
        self._operators: Any = None
        self._lines = LineRanges(self._line_range, settings, report)

    def _line_range(self, text: str) -> Any:
        return self._nvtx.annotate(text, domain=_DOMAIN)

    def begin(self, number: int) -> None:
        """Start nsys' recording."""
        try:
            import nvtx
        except ImportError:
            self._report.problem(
                "profiler",
                "the nvtx package is needed to mark the steps for nsys: pip install nvtx",
            )
            return
        self._nvtx = nvtx
        self._capture = nvtx.start_range(CAPTURE)
        nvtx.push_range(f"iteration {number}")
        if self._model is not None:
            self._model.mark(nvtx.annotate)
            self._operators = self._model.operators_as_ranges()
        self._lines.begin()

    def step(self, number: int) -> None:
        """Mark the step."""
        if self._nvtx is None:
            return

        def mark() -> None:
            self._nvtx.pop_range()
            self._nvtx.push_range(f"iteration {number}")

        self._lines.between(mark)

    def abandon_step(self) -> None:
        """Record an empty range in the step."""
        if self._nvtx is not None:
            self._nvtx.push_range(AFTER_STEPS)
            self._nvtx.pop_range()

    def stop(self) -> None:
        """Stop nsys' recording."""
        self._lines.end()
        if self._nvtx is not None:
            if self._operators is not None:
                self._operators.__exit__(None, None, None)
            if self._model is not None:
                self._model.unmark()
            self._nvtx.pop_range()
            self._nvtx.end_range(self._capture)

    def write(self) -> str | None:
        """Write the model's layers and return None, because nsys writes the trace."""
        if self._nvtx is not None and self._model is not None:
            self._model.describe(Path(self._settings.folder))
        if self._nvtx is not None:
            self._lines.keep_files()
        return None


def refuse_torch_profiler(torch: Any, report: Report) -> None:
    """Exit if the script starts torch.profiler, because nsys is the only client of CUPTI."""
    kind = torch.autograd.profiler.profile

    def refused(*_: Any, **__: Any) -> Any:
        report.problem("conflict", "the script runs torch.profiler itself, beside nsys")
        sys.exit(2)

    kind._prepare_trace = refused
