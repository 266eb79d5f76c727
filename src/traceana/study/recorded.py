"""A recorded run as the studies see it: what ran on what, and how long its steps took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from traceana.describe import Manifest
    from traceana.runs import Environment, Run, StepTimes, Timing

_DISTRIBUTIONS: Final = {
    "PyTorch": ("torch",),
    "Keras": ("keras", "tensorflow", "tensorflow-cpu"),
    "JAX": ("jax",),
}
_GPU: Final = ("cuda", "gpu", "rocm")
WITHOUT: Final = "without profiler"
WITH: Final = "with profiler"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One run. ``folder`` is its path as it was found, ``batch`` the images a step of all devices.

    ``steps_ns`` are the measured steps, without a profiler where that was timed (``timed``); none
    of a run that failed. ``exact`` is False where only their sum is right. ``place`` is ``GPU`` or
    ``CPU``, ``on`` its name; ``parameters`` the model's count; None is what nobody recorded.
    """

    folder: str
    complete: bool = True
    reason: str | None = None
    framework: str | None = None
    version: str | None = None
    network: str | None = None
    batch: int | None = None
    devices: int = 1
    place: str = "CPU"
    on: str | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    steps_ns: tuple[int, ...] = ()
    exact: bool = True
    timed: str | None = None
    parameters: int | None = None

    @property
    def step_ns(self) -> int | None:
        """Return the time of one step: the median; the mean where only their sum is right.

        None of a run that failed.
        """
        if self.failure is not None:
            return None
        return round((median if self.exact else fmean)(self.steps_ns))

    @property
    def middle_half_ns(self) -> tuple[float, float] | None:
        """Return the quartiles of the steps' times; None where they cannot be told."""
        if self.failure is not None or not self.exact or len(self.steps_ns) < 2:
            return None
        low, _, high = quantiles(self.steps_ns, n=4, method="inclusive")
        return low, high

    @property
    def images_per_s(self) -> float | None:
        """Return the images a second; None without a batch or a time."""
        return self.batch * 1e9 / self.step_ns if self.batch and self.step_ns else None

    @property
    def status(self) -> str:
        """Return ``ok``, or why the run gave no figure."""
        return self.failure or "ok"

    @property
    def failure(self) -> str | None:
        """Return why the run gave no figure; None for one that did."""
        if self.complete and self.steps_ns:
            return None
        return self.reason or ("no step was timed" if self.complete else "failed")


def recorded(
    folder: str,
    run: Run,
    environment: Environment | None = None,
    timing: Timing | None = None,
    manifest: Manifest | None = None,
) -> Recorded:
    """Return the run that a folder's files describe."""
    work = run.workload
    options: Mapping[str, object] = {} if work is None else work.options
    framework = work.framework if work is not None else None
    if framework is None and manifest is not None:
        framework = manifest.framework
    gpus = environment.gpus if environment is not None else ()
    on_gpu = options["device"] in _GPU if "device" in options else bool(gpus)
    steps, timed = _steps(timing)
    complete = run.status == "complete"
    devices = options.get("processes")
    return Recorded(
        folder=folder,
        complete=complete,
        reason=run.reason,
        framework=framework,
        version=_version(framework, environment),
        network=work.network if work else manifest.network if manifest else None,
        batch=work.batch if work else timing.images_per_step if timing else None,
        devices=devices if isinstance(devices, int) else max(1, len(run.traces)),
        place="GPU" if on_gpu else "CPU",
        on=_name(environment, on_gpu=on_gpu),
        libraries={} if environment is None else environment.libraries,
        options=options,
        steps_ns=steps.steps_ns if steps is not None and complete else (),
        exact=steps is None or steps.synchronized,
        timed=timed if complete else None,
        parameters=None if manifest is None else manifest.parameter_count,
    )


def _steps(timing: Timing | None) -> tuple[StepTimes | None, str | None]:
    if timing is not None and timing.without_profiler is not None:
        return timing.without_profiler, WITHOUT
    if timing is not None and timing.with_profiler is not None:
        return timing.with_profiler, WITH
    return None, None


def _version(framework: str | None, environment: Environment | None) -> str | None:
    if framework is None or environment is None:
        return None
    known = (environment.packages.get(name) for name in _DISTRIBUTIONS.get(framework, ()))
    return next((version for version in known if version), None)


def _name(environment: Environment | None, *, on_gpu: bool) -> str | None:
    if environment is None:
        return None
    if on_gpu:
        return environment.gpus[0].name if environment.gpus else None
    return f"{environment.cpu} ({environment.cpu_cores} cores)"
