"""Counts the steps of a training run and records a window of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from .report import Report, guarded
from .settings import Settings


class Recorder:
    """A profiler; this one records nothing."""

    def prepare(self) -> None:
        """Warm up, one step before the window."""

    def begin(self) -> None:
        """Begin the window."""

    def step(self, number: int) -> None:
        """One step of the window is over; ``number`` is the next one's."""

    def stop(self) -> None:
        """End the window, in whatever state: a process that ends under a profiler may crash."""

    def write(self) -> str | None:
        """Write the trace of a window that was stopped; returns the name of its file."""
        return None


class Clock:
    """The host's clock, which is right where the host waits for each step."""

    synchronized = True

    def wait(self) -> None:
        """Wait until the device is done."""

    def now(self) -> Any:
        """A moment."""
        return perf_counter_ns()

    def between(self, moments: list[Any]) -> list[int]:
        """The time from each of ``moments`` to the next, in ns; the device is done with them."""
        return [after - before for before, after in zip(moments, moments[1:])]  # noqa: B905, RUF007


class Window:
    """After ``warm_up`` steps ``steps`` are recorded; :meth:`step_ended` is called after each.

    Only the first process that comes so far is recorded, or each rank of a distributed run.
    """

    def __init__(
        self,
        settings: Settings,
        report: Report,
        recorder: Recorder,
        clock: Clock,
        rank: Callable[[], tuple[int, int] | None] = lambda: None,
    ) -> None:
        self._settings, self._report = settings, report
        self._recorder, self._clock, self._rank = recorder, clock, rank
        self._taken = 0
        self._warm_up: list[Any] = []
        self._moments: list[Any] = []
        self._over = False
        self._process: int | None = None

    def step_ended(self) -> None:
        """Count a step. Ends the process by ``SystemExit`` after the window if that is asked."""
        # A fork of a process that trains is no part of the training; one from before may train.
        if self._taken and os.getpid() != self._process:
            return
        self._process = os.getpid()
        if self._over:
            return
        self._taken += 1
        try:
            self._advance()
        except Exception as error:  # noqa: BLE001  # the script runs on, unrecorded
            self._over = True
            self._report.failed(error)
            guarded(self._recorder.stop, self._report)
        if self._over and self._settings.stop:
            guarded(self._stop, self._report)
            if _in_main_thread():
                raise SystemExit(0)

    def _stop(self) -> None:
        from .facts import facts

        # A process that does not exit by itself is ended, and then reports nothing more.
        self._report.tell(stopped=True, **facts())
        self._report.exiting()

    def _advance(self) -> None:
        settings = self._settings
        if self._taken == 1 and not self._claim():
            self._over = True
            return
        left = settings.warm_up - self._taken
        if left == 1:
            self._recorder.prepare()
        if left > 0:
            self._warm_up.append(self._clock.now())
            return
        if left == 0:
            self._clock.wait()
            self._warm_up.append(self._clock.now())
            self._recorder.begin()
            self._moments.append(self._clock.now())
            return
        last = -left == settings.steps
        if last:
            self._clock.wait()
        self._moments.append(self._clock.now())
        if last:
            self.close()
        else:
            self._recorder.step(-left)

    def close(self) -> None:
        """End the window, also one that is not full; nothing the second time."""
        if self._over or os.getpid() != self._process:
            return
        self._over = True
        if len(self._moments) < 2:
            self._report.tell(steps_taken=self._taken)
            self._recorder.stop()
            return
        self._clock.wait()
        self._recorder.stop()
        times = {
            "warm_up_ns": self._clock.between(self._warm_up),
            "steps_ns": self._clock.between(self._moments),
            "synchronized": self._clock.synchronized,
        }
        self._report.tell(times=times, steps_taken=self._taken)
        trace = self._recorder.write()
        if trace is not None:
            self._report.tell(trace=trace)

    def _claim(self) -> bool:
        rank = self._rank()
        name = "window" if rank is None else f"window-{rank[0]}"
        try:
            Path(self._settings.folder, name).touch(exist_ok=False)
        except FileExistsError:
            self._report.note("another process trained as well and is not recorded")
            return False
        if rank is not None:
            self._report.tell(rank=rank[0], world_size=rank[1])
        self._report.at_close(self.close)
        return True


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
