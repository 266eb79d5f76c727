"""The JSON files of a run's folder: docs/record.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median
from typing import Annotated, Final

import msgspec

VERSION: Final = 1
"""Raised when a field changes its name, type or meaning; fields may be added without."""

RUN_FILE: Final = "traceana-run.json"
SWEEP_FILE: Final = "traceana-sweep.json"
"""Unlike any name of a trace."""
ENVIRONMENT_FILE: Final = "environment.json"
TIMING_FILE: Final = "timing.json"
LAYERS_FILE: Final = "layers.json"
PARTIAL: Final = ".partial"
"""The suffix of a run's folder while it is being recorded."""

Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Value = bool | int | float | str | None


class Status(StrEnum):
    """How a run ended."""

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

    ``framework`` is ``PyTorch``, ``Keras`` or ``JAX``; ``batch`` the examples per step of all
    processes together; ``options`` every option by its name (``image_size``), with its value.
    """

    framework: str
    network: str
    batch: Count
    options: dict[str, Value] = {}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """``traceana-run.json``. It is written last: a folder without it is not a run.

    ``reason`` is None, or what ended the run: ``out of memory``, an exit status, a signal.
    ``workload`` is None for a script. ``point`` has the run's values on the axes of its sweep.
    ``traces`` are names of files in the folder, one per rank where there are ranks; ``started_at``
    is UTC in ISO 8601; ``exit_status`` is the command's, negative for a signal, None where it was
    never started. ``notes`` list what is missing.
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


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The duration of each step in ns, in order, of the first process.

    The start of a script's first step is unknown, so it is not in ``warm_up_ns``.
    ``synchronized``: each time ends when the device has finished the step. Otherwise the host may
    have run ahead, and only the sum is exact.
    """

    steps_ns: tuple[Nanoseconds, ...]
    warm_up_ns: tuple[Nanoseconds, ...] = ()
    synchronized: bool = True

    @property
    def step_ns(self) -> float | None:
        """The time per step: the median, or the mean where only the sum is exact."""
        return (median if self.synchronized else fmean)(self.steps_ns) if self.steps_ns else None


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """``timing.json``: the step times without a profiler and with it.

    ``images_per_step`` is the batch of all processes, in examples, None where unknown.
    ``overhead`` is the profiler's, relative to the step without it; None where inconclusive: its
    ``overhead_interval`` (lower and upper bound) contains 0 or is below 0, or is None, with too
    few steps. See ``traceana.record.recording.overhead``.
    """

    version: int = VERSION
    images_per_step: Count | None = None
    without_profiler: StepTimes | None = None
    with_profiler: StepTimes | None = None
    overhead: float | None = None
    overhead_interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class BatchSeries:
    """Unprofiled step times by examples per step, of runs that differ in the batch only.

    ``own`` is the batch of the run in question; ``times`` includes its steps.
    """

    own: int
    times: Mapping[int, StepTimes]


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, as ``nvidia-smi`` names it."""

    name: str
    memory_bytes: Count | None = None
    driver: str | None = None
    compute_capability: str | None = None


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """``environment.json``: hardware and software of the run.

    ``packages`` are versions by distribution (``torch``, ``keras``, ``numpy``); ``libraries`` those
    of ``CUDA``, ``cuDNN``, ``NCCL``, ``oneDNN`` that the framework reports; ``threads`` its
    intra-op threads; ``variables`` the environment variables that change what is computed or
    where; ``options`` the arguments of ``record``.
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
    options: tuple[str, ...] = ()


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """An option that a sweep varies, and its values in the given order."""

    name: str
    values: tuple[str, ...]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a sweep: the name of its folder, and its value on each axis."""

    folder: str
    values: dict[str, str]


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """``traceana-sweep.json``: written before the first run, so runs may still be missing.

    ``points`` are the product of the ``axes``, the last one varying fastest; ``argv`` is the
    command of each of them.
    """

    version: int = VERSION
    axes: tuple[Axis, ...]
    points: tuple[Point, ...]
    argv: tuple[str, ...]
    profiler: str
    started_at: str


def is_plain_name(names: Sequence[str]) -> bool:
    """Return whether ``names`` are names of files in one folder, without paths."""
    return all(name not in ("", ".", "..") and not set(name) & set("/\\\0") for name in names)
