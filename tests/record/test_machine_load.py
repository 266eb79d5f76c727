"""The load of the machine while steps run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from traceana.record.inside import machine_load
from traceana.record.inside.machine_load import Load, busy_time, gpu_states, ready_times
from traceana.runs.run_files import GpuState

NEEDS_PROC = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="counters of Linux"
)


def test_the_wait_for_a_processor_is_that_of_the_thread_that_waited_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = iter([{"1": 100, "2": 50}, {"1": 130, "2": 150, "3": 70}])
    monkeypatch.setattr(machine_load, "ready_times", lambda: next(seen))
    load = Load()
    load.start()
    load.stop()
    assert load.ready_ns == 100


def test_others_are_busy_for_what_is_not_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    tick = 100_000_000
    busy = iter([5 * tick, 14 * tick])
    own, now = iter([tick, 4 * tick]), iter([tick, 5 * tick])
    monkeypatch.setattr(machine_load, "busy_time", lambda: next(busy))
    monkeypatch.setattr(machine_load, "process_time_ns", lambda: next(own))
    monkeypatch.setattr(machine_load, "perf_counter_ns", lambda: next(now))
    load = Load()
    load.start()
    load.stop()
    assert load.other_cores == (9 - 3) / 4


def test_what_no_counter_tells_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_load, "busy_time", lambda: None)
    monkeypatch.setattr(machine_load, "ready_times", dict)
    load = Load()
    load.start()
    load.stop()
    assert (load.ready_ns, load.other_cores) == (None, None)


@NEEDS_PROC
def test_the_counters_of_this_machine_are_read() -> None:
    assert str(os.getpid()) in ready_times()
    before = busy_time()
    subprocess.run([sys.executable, "-c", "sum(range(10_000_000))"], check=True)
    after = busy_time()
    assert before is not None
    assert after is not None
    assert after - before >= 50_000_000


@pytest.mark.parametrize("failing", [False, True])
def test_gpus_tell_by_their_library(monkeypatch: pytest.MonkeyPatch, failing: bool) -> None:
    library: Any = ModuleType("pynvml")
    library.NVMLError = RuntimeError
    library.NVML_CLOCK_SM, library.NVML_TEMPERATURE_GPU = 1, 0

    def init() -> None:
        if failing:
            raise RuntimeError("no driver")

    library.nvmlInit = init
    library.nvmlDeviceGetCount = lambda: 2
    library.nvmlDeviceGetHandleByIndex = lambda index: index
    library.nvmlDeviceGetClockInfo = lambda gpu, clock: 1_980 - gpu if clock == 1 else 0
    library.nvmlDeviceGetPowerUsage = lambda gpu: 612_500 + gpu
    library.nvmlDeviceGetTemperature = lambda _gpu, _sensor: 41
    monkeypatch.setitem(sys.modules, "pynvml", library)
    states = msgspec.convert(gpu_states(), list[GpuState])
    first = GpuState(clock_mhz=1_980, power_w=612.5, celsius=41)
    assert states[:1] == ([] if failing else [first])
    assert len(states) == (0 if failing else 2)


def test_without_the_library_no_gpu_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_states() == []
