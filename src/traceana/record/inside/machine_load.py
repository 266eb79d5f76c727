"""The load of the machine while steps run: threads without a processor, other processes, GPUs."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any

_SHORTEST = 100_000_000
"""The kernel counts processor time in ticks of 10 ms: fewer than ten (in ns) tell nothing."""


class Load:
    """The load from :meth:`start` to :meth:`stop`.

    ``ready_ns`` is for how long a thread was ready to run and did not, of the thread with most.
    ``other_cores`` is how many processors other processes kept busy, on average; the workers of a
    script are such processes. ``gpus`` are the GPUs at the end, as the management library (NVML)
    tells: clock of the multiprocessors, power, temperature. What is not known is None, or empty.
    """

    def __init__(self) -> None:
        self.ready_ns: int | None = None
        self.other_cores: float | None = None
        self.gpus: list[dict[str, Any]] = []
        self._ready: dict[str, int] = {}
        self._busy_ns: int | None = None
        self._own_ns = self._begun = 0

    def start(self) -> None:
        """Begin to count."""
        self._ready = ready_times()
        self._busy_ns = busy_time()
        self._own_ns, self._begun = process_time_ns(), perf_counter_ns()

    def stop(self) -> None:
        """Keep what was counted."""
        own, wall = process_time_ns() - self._own_ns, perf_counter_ns() - self._begun
        busy, ready = busy_time(), ready_times()
        if self._busy_ns is not None and busy is not None and wall >= _SHORTEST:
            self.other_cores = max(busy - self._busy_ns - own, 0) / wall
        if self._ready and ready:
            before = self._ready
            self.ready_ns = max(time - before.get(thread, 0) for thread, time in ready.items())
        self.gpus = gpu_states()


def ready_times() -> dict[str, int]:
    """Return for how long each thread was ready to run and did not, in ns since its start.

    The second number of ``/proc/PID/task/TID/schedstat`` of Linux; empty elsewhere.
    """
    times = {}
    try:
        for thread in Path("/proc/self/task").iterdir():
            times[thread.name] = int((thread / "schedstat").read_text("ascii").split()[1])
    except (OSError, IndexError, ValueError):  # a thread may have ended meanwhile
        pass
    return times


def busy_time() -> int | None:
    """Return for how long the machine's processors were busy since it started, in ns.

    The first line of ``/proc/stat`` of Linux, less its times of idleness and of guests, which are
    in those of users; None elsewhere.
    """
    try:
        with Path("/proc/stat").open(encoding="ascii") as file:
            user, nice, system, _idle, _waiting, *others = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return sum((user, nice, system, *others)) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def gpu_states() -> list[dict[str, Any]]:
    """Return clock, power and temperature of each GPU, empty without the library ``pynvml``."""
    try:
        import pynvml
    except ImportError:
        return []
    states = []
    try:
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            states.append(
                {
                    "clock_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
                    "power_w": pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
                    "celsius": pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
                }
            )
    except pynvml.NVMLError:  # no driver, or a GPU that does not tell
        return states
    return states
