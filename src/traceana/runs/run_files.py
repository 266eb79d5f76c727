"""The JSON files of a run's folder: docs/record.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final

import msgspec

VERSION: Final = 1
"""Increased when a field changes its name, type or meaning, not when one is added."""

RUN_FILE: Final = "traceana-run.json"
SWEEP_FILE: Final = "traceana-sweep.json"
"""The name differs from all names of trace files."""
ENVIRONMENT_FILE: Final = "environment.json"
TIMING_FILE: Final = "timing.json"
LAYERS_FILE: Final = "layers.json"
INDUCTOR_FOLDER: Final = "inductor"
"""The code that Inductor generated for graphs of ``torch.compile``."""
SOURCE_FOLDER: Final = "source"
"""Copies of the program's own files whose lines were recorded."""
LAYERS_SUFFIX: Final = ".layers.json"
PROVENANCE_SUFFIX: Final = ".provenance.json"
PARTIAL: Final = ".partial"
"""The suffix of a run's folder while it is being recorded."""

Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Value = bool | int | float | str | None


class Status(StrEnum):
    """The status of a run at its end."""

    COMPLETE = "complete"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Profiler(StrEnum):
    """The profiler of the trace."""

    TORCH = "torch"
    TENSORFLOW = "tensorflow"
    JAX = "jax"
    NSYS = "nsys"
    NONE = "none"


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A training run of the repository's own networks.

    ``framework`` is ``PyTorch``, ``Keras`` or ``JAX``. ``batch`` is the number of examples per step
    of all processes together. ``options`` has the value of every option by name (``image_size``).
    """

    framework: str
    network: str
    batch: Count
    options: dict[str, Value] = {}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """``traceana-run.json``, written last: a folder without it is not a run.

    ``reason`` is None for a complete run, else the cause: ``out of memory``, an exit status, a
    signal. ``workload`` is None for a script. ``point`` has the run's values on the axes of its
    sweep. ``traces`` are names of files in the folder, one per rank in a distributed run.
    ``started_at`` is UTC in ISO 8601. ``exit_status`` is the command's, negative for a signal, None
    if it was not started, or was killed because it did not exit in time. ``notes`` list missing
    data.
    """

    version: int = VERSION
    status: Status
    reason: str | None = None
    workload: Workload | None = None
    point: dict[str, str] = {}
    argv: tuple[str, ...]
    profiler: Profiler
    traces: tuple[str, ...] = ()
    started_at: str
    exit_status: int | None = None
    notes: tuple[str, ...] = ()


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU right after a step, as NVML tells: clock of its multiprocessors, power, temperature."""

    clock_mhz: Count
    power_w: float
    celsius: int


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The duration of each step in ns, in order, of the first process.

    The start of a script's first step is unknown, so that step is not in ``warm_up_ns``. If
    ``synchronized``, each time ends when the device has finished the step. Otherwise the host may
    run ahead, and only the sum is exact. ``first`` is the number of the first of these steps in the
    script, from 1. Of steps without the profiler in the recorded process, the first
    ``steps_before`` were before the recorded ones, the others after them; null in a process of
    their own.

    ``cpu_ns`` is the processor time of the process in each step. ``ready_ns`` is for how long
    during all these steps the thread that waited most was ready to run, and had no processor: other
    load on the machine. ``other_cores`` is how many processors other processes kept busy, on
    average, the script's own workers among them; ``gpus`` are the GPUs after the last step; both
    are of the last steps in a row. Null, or empty, where that is not known.
    """

    steps_ns: tuple[Nanoseconds, ...]
    warm_up_ns: tuple[Nanoseconds, ...] = ()
    synchronized: bool = True
    first: Count | None = None
    steps_before: Count | None = None
    cpu_ns: tuple[Nanoseconds, ...] = ()
    ready_ns: Nanoseconds | None = None
    other_cores: float | None = None
    gpus: tuple[GpuState, ...] = ()

    @property
    def ready_share(self) -> float:
        """The part of the steps in which a thread waited for a processor that others had.

        That is at most the time which other processes used: threads of the process wait for each
        other too. 0 where it is not known.
        """
        time = sum(self.steps_ns)
        if not time or self.ready_ns is None:
            return 0.0
        of_others = 1.0 if self.other_cores is None else min(self.other_cores, 1.0)
        return min(self.ready_ns / time, of_others)

    @property
    def spread_of_blocks(self) -> float | None:
        """The standard deviation of the mean of a few steps in a row, relative to the step.

        From the steps before the recorded ones and those after them, less what is due to the
        variance from step to step. None unless there are 2 steps of each.
        """
        from statistics import fmean, variance

        before = self.steps_ns[: self.steps_before]
        after = self.steps_ns[self.steps_before or 0 :]
        if not self.steps_before or min(len(before), len(after)) < 2:
            return None
        within = variance(before) / len(before) + variance(after) / len(after)
        between = ((fmean(before) - fmean(after)) ** 2 - within) / 2
        return max(between, 0.0) ** 0.5 / fmean(self.steps_ns) if any(self.steps_ns) else None

    @property
    def step_ns(self) -> float | None:
        """The time per step: the median, or the mean if only the sum is exact."""
        from statistics import fmean, median  # a fiftieth of the start of every command

        return (median if self.synchronized else fmean)(self.steps_ns) if self.steps_ns else None


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """``timing.json``: the step times without a profiler and with it.

    ``images_per_step`` is the batch of all processes, in examples, None if unknown. ``overhead`` is
    that of the profiler, relative to the step without it. It is None if it is inconclusive:
    ``overhead_interval`` (lower and upper bound) contains 0 or is below 0, or is None because of
    too few steps. See ``traceana.record.recording.overhead``.
    """

    version: int = VERSION
    images_per_step: Count | None = None
    without_profiler: StepTimes | None = None
    with_profiler: StepTimes | None = None
    overhead: float | None = None
    overhead_interval: tuple[float, float] | None = None


class BatchSeries(msgspec.Struct, frozen=True):
    """Unprofiled step times by examples per step, of runs that differ in the batch only.

    ``own`` is the batch of the analyzed run; ``times`` includes its steps.
    """

    own: int
    times: Mapping[int, StepTimes]


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, with the name that ``nvidia-smi`` prints."""

    name: str
    memory_bytes: Count | None = None
    driver: str | None = None
    compute_capability: str | None = None


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """``environment.json``: hardware and software of the run.

    ``packages`` are versions by distribution (``torch``, ``keras``, ``numpy``). ``libraries`` are
    versions of ``CUDA``, ``cuDNN``, ``NCCL``, ``oneDNN`` that the framework reports. ``threads`` is
    its number of intra-op threads. ``variables`` are environment variables that affect algorithms,
    precision or devices. ``commit`` is the one of the git repository in which ``record`` was
    called, with ``-dirty`` if its files differed from it (``git describe``). ``options`` are the
    arguments of ``record``.
    """

    version: int = VERSION
    traceana: str
    python: str | None = None
    system: str
    machine: str
    cpu: str
    cpu_cores: Count
    memory_bytes: Count | None = None
    threads: Count | None = None
    packages: dict[str, str] = {}
    libraries: dict[str, str] = {}
    gpus: tuple[Gpu, ...] = ()
    profiler_version: str | None = None
    variables: dict[str, str] = {}
    commit: str | None = None
    options: tuple[str, ...] = ()


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """An option that a sweep varies, and its values in their order."""

    name: str
    values: tuple[str, ...]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a sweep: the name of its folder, and its value on each axis."""

    folder: str
    values: dict[str, str]


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """``traceana-sweep.json``: written before the first run, so runs may still be missing.

    ``points`` are the product of the ``axes``; the last axis varies fastest. ``argv`` is the
    command of every point.
    """

    version: int = VERSION
    axes: tuple[Axis, ...]
    points: tuple[Point, ...]
    argv: tuple[str, ...]
    profiler: str
    started_at: str


_BESIDE: Final = (RUN_FILE, SWEEP_FILE, ENVIRONMENT_FILE, TIMING_FILE, LAYERS_FILE)


def is_name_beside(name: str) -> bool:
    """Return whether ``name`` is that of a file which traceana writes beside a trace."""
    return name in _BESIDE or name.endswith((LAYERS_SUFFIX, PROVENANCE_SUFFIX))


def is_plain_name(names: Sequence[str]) -> bool:
    """Return whether ``names`` are names of files in one folder, without paths."""
    return all(name not in ("", ".", "..") and not set(name) & set("/\\\0") for name in names)
