"""The recorded runs of a study: step times, labels, conditions, and commands to record more."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import PurePath
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Final

import msgspec

from traceana.runs.layer_manifest import Manifest
from traceana.trace import Trace

if TYPE_CHECKING:
    from traceana.runs import Environment, Run, Timing

_DISTRIBUTIONS: Final = {
    "PyTorch": ("torch",),
    "Keras": ("keras", "tensorflow", "tensorflow-cpu"),
    "JAX": ("jax",),
}
_GPU_OPTIONS: Final = ("cuda", "gpu", "rocm")
WITHOUT: Final = "without profiler"
WITH: Final = "with profiler"
KERNELS: Final = "kernels"
"""The step time is the time of the kernels: the trace has no step time."""

TIMED: Final = frozenset({"network", "batch", "processes"})
"""The options with columns of their own in a table of whole steps."""
_IGNORED: Final = frozenset({"device", "steps", "warm_up"})
"""Options that are also in ``device_kind`` or that do not affect the values."""
_UNNAMED = "unnamed machine"
"""The machine of runs without a name, if other runs have one."""
_FRAMEWORKS: Final = {"PyTorch": "pytorch", "Keras": "keras", "JAX": "jax"}
NETWORKS: Final = frozenset(
    {
        *("alexnet", "alexnet_2012", "vgg16", "googlenet", "resnet18", "resnet50"),
        *("lenet5", "cifar10_quick", "mlp"),
    }
)
"""The networks of the workloads; the workloads are not part of the package."""


class Recorded(msgspec.Struct, frozen=True):
    """One run. ``folder`` is its path as found, ``batch`` the global batch size.

    ``steps_ns`` are the measured steps, without profiler if these were timed (``timed``); empty for
    a failed run. ``exact`` is False if only their sum is exact. ``device_kind`` is ``GPU`` or
    ``CPU``, ``device_name`` its model, ``parameters`` the number of the model's parameters. None:
    unknown.
    """

    folder: str
    complete: bool = True
    reason: str | None = None
    framework: str | None = None
    version: str | None = None
    network: str | None = None
    batch: int | None = None
    devices: int = 1
    device_kind: str = "CPU"
    device_name: str | None = None
    libraries: Mapping[str, str] = msgspec.field(default_factory=dict)
    options: Mapping[str, object] = msgspec.field(default_factory=dict)
    steps_ns: tuple[int, ...] = ()
    exact: bool = True
    timed: str | None = None
    parameters: int | None = None

    @property
    def step_ns(self) -> int | None:
        """The time per step: the median, or the mean if only the sum is exact.

        None for a failed run.
        """
        if self.failure is not None:
            return None
        return round((median if self.exact else fmean)(self.steps_ns))

    @property
    def middle_half_ns(self) -> tuple[float, float] | None:
        """The quartiles of the step times, None if unknown."""
        if self.failure is not None or not self.exact or len(self.steps_ns) < 2:
            return None
        low, _, high = quantiles(self.steps_ns, n=4, method="inclusive")
        return low, high

    def row(self, name: str) -> dict[str, object]:
        """Return the run, called ``name``, as a row of a study of step times.

        ``status`` is ``ok`` or the reason for a missing time. ``image_ns`` is the time per step
        divided by ``batch``, rounded to the nanosecond; ``low_ns`` and ``high_ns`` are the
        quartiles of the steps divided by ``batch``. The times of a failed run are null.
        """
        batch, step = self.batch or 1, self.step_ns
        low, high = self.middle_half_ns or (None, None)
        return {
            "network": self.network,
            "run": name,
            "framework": self.framework,
            "version": self.version,
            "device_kind": self.device_kind,
            "device_name": self.device_name,
            "batch": self.batch,
            "devices": self.devices,
            "status": self.failure or "ok",
            "steps": len(self.steps_ns),
            "timed": self.timed,
            "step_ns": step,
            "image_ns": None if step is None else round(step / batch),
            "low_ns": None if low is None else round(low / batch),
            "high_ns": None if high is None else round(high / batch),
            "images_per_s": self.batch * 1e9 / step if self.batch and step else None,
        }

    @property
    def failure(self) -> str | None:
        """The reason for a missing step time, None for a run with a step time."""
        if self.complete and self.steps_ns:
            return None
        return self.reason or ("no timed steps" if self.complete else "failed")


def recorded(
    folder: str,
    run: Run,
    environment: Environment | None = None,
    timing: Timing | None = None,
    manifest: Manifest | None = None,
) -> Recorded:
    """Return the recorded run of a folder, from its files."""
    work = run.workload
    options: Mapping[str, object] = {} if work is None else work.options
    framework = work.framework if work is not None else None
    if framework is None and manifest is not None:
        framework = manifest.framework
    gpus = environment.gpus if environment is not None else ()
    on_gpu = options["device"] in _GPU_OPTIONS if "device" in options else bool(gpus)
    version = device_name = None
    if environment is not None:
        packages = _DISTRIBUTIONS.get(framework or "", ())
        version = next(filter(None, map(environment.packages.get, packages)), None)
        device_name = f"{environment.cpu} ({environment.cpu_cores} cores)"
        if on_gpu:
            device_name = gpus[0].name if gpus else None
    steps, timed = None, None
    if timing is not None and timing.without_profiler is not None:
        steps, timed = timing.without_profiler, WITHOUT
    elif timing is not None and timing.with_profiler is not None:
        steps, timed = timing.with_profiler, WITH
    complete = run.status == "complete"
    devices = options.get("processes")
    return Recorded(
        folder=folder,
        complete=complete,
        reason=run.reason,
        framework=framework,
        version=version,
        network=work.network if work else manifest.network if manifest else None,
        batch=work.batch if work else timing.images_per_step if timing else None,
        devices=devices if isinstance(devices, int) else max(1, len(run.traces)),
        device_kind="GPU" if on_gpu else "CPU",
        device_name=device_name,
        libraries={} if environment is None else environment.libraries,
        options=options,
        steps_ns=steps.steps_ns if steps is not None and complete else (),
        exact=steps is None or steps.synchronized,
        timed=timed if complete else None,
        parameters=None if manifest is None else manifest.parameter_count,
    )


Cell = Callable[[Recorded], Hashable]


def labels(runs: Sequence[Recorded], cell: Cell, columns: frozenset[str] = TIMED) -> list[str]:
    """Return a label for each of ``runs``; runs with one label are points of one series.

    The label is the framework, its version if there are several, ``CPU`` or ``GPU`` if both occur,
    and the options in which runs of one framework differ. Runs that still share a label and a
    ``cell`` of the table (its network, batch …) get their folders appended. ``columns`` are options
    with columns of their own.
    """
    facts: list[dict[str, object]] = []
    for run in runs:
        every = {**run.options, "batch": run.batch, "processes": run.devices}
        facts.append({name: every[name] for name in every.keys() - columns - _IGNORED})
    kinds = {run.device_kind for run in runs}
    versions: dict[str | None, set[str | None]] = defaultdict(set)
    given: dict[tuple[str | None, str], set[object]] = defaultdict(set)
    option_names = {name for options in facts for name in options}
    for run, options in zip(runs, facts, strict=True):
        versions[run.framework].add(run.version)
        for name in option_names:
            given[run.framework, name].add(options.get(name))
    names = []
    for run, options in zip(runs, facts, strict=True):
        parts = [run.framework or PurePath(run.folder).name]
        if len(versions[run.framework]) > 1 and run.version:
            parts[0] += f" {run.version}"
        parts += [run.device_kind] if len(kinds) > 1 else []
        differing = sorted(name for name in options if len(given[run.framework, name]) > 1)
        parts += [f"{name.replace('_', '-')} {_value(options[name])}" for name in differing]
        names.append(", ".join(parts))
    # Names that repeat in a cell get the parts of the folders that differ.
    cells = [(name, cell(run)) for run, name in zip(runs, names, strict=True)]
    repeated = {name for (name, _), count in Counter(cells).items() if count > 1}
    for part in (slice(-2, -1), slice(-1, None), slice(-2, None)):
        if max(Counter(cells).values(), default=0) > 1:
            folders = ["/".join(PurePath(run.folder).parts[part]) for run in runs]
            cells = [
                (f"{name} ({folder})" if name in repeated else name, at)
                for (_, at), name, folder in zip(cells, names, folders, strict=True)
            ]
    return [name for name, _ in cells]


def _value(value: object) -> str:
    if value is None:
        return "default"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def conditions(runs: Sequence[Recorded], *, timed: bool = True) -> tuple[str, ...]:
    """Return lines with machines and software of ``runs``, and the timing method.

    Without ``timed`` the times are from the traces.
    """
    named = any(run.device_name for run in runs)
    machines = _listed(run.device_name or (_UNNAMED if named else None) for run in runs)
    libraries = _listed(
        f"{name} {version}" for run in runs for name, version in run.libraries.items()
    )
    software = _listed(
        run.framework + (f" {run.version}" if run.version else "") for run in runs if run.framework
    )
    batches: dict[str, list[str]] = {}
    for run in runs:
        if run.network is not None:
            sizes = batches.setdefault(run.network, [])
            sizes += [str(run.batch)] if run.batch and str(run.batch) not in sizes else []
    networks = ", ".join(
        f"{network} at batch {', '.join(sizes)}" if sizes and not timed else network
        for network, sizes in batches.items()
    )
    first = " · ".join(part for part in (networks, machines, software, libraries) if part)
    measured = [run for run in runs if run.steps_ns]
    how = "times as recorded by the profiler" if runs and not timed else ""
    if timed and measured:
        least, most = (pick(len(run.steps_ns) for run in measured) for pick in (min, max))
        steps = f"{least}" if least == most else f"{least} to {most}"
        kinds = " or ".join(sorted({"median" if run.exact else "mean" for run in measured}))
        profiled = {run.timed == WITH for run in measured}
        with_profiler = "with profiler" if profiled == {True} else "without profiler"
        if len(profiled) > 1:
            with_profiler += ", some with profiler (column timed)"
        noun = "step" if most == 1 else "steps"
        how = f"{kinds} of {steps} {noun} {with_profiler}, warm-up excluded"
        if all(run.timed == KERNELS for run in measured):
            how = f"median of {steps} {'trial' if most == 1 else 'trials'}, kernels only"
    return tuple(line for line in (first, how) if line)


def _listed(texts: Iterable[str | None]) -> str:
    return ", ".join(dict.fromkeys(text for text in texts if text))


def command(
    framework: str | None,
    network: str | None,
    *options: str,
    sweep: tuple[str, Sequence[object]] | None = None,
) -> str:
    """Return the command that records ``network`` in ``framework`` with ``options``.

    ``sweep`` is an axis and its values. For a network that is not a workload, the command has a
    placeholder for the user's script.
    """
    swept = [] if sweep is None else ["--sweep", f"{sweep[0]}={','.join(map(str, sweep[1]))}"]
    if network is not None and network not in NETWORKS:
        placeholder = [] if sweep is None else [f"{{{sweep[0]}}}"]
        return " ".join(["traceana record", *swept, "-o FOLDER -- YOUR COMMAND", *placeholder])
    arguments = ["--framework", _FRAMEWORKS.get(framework or "", "pytorch"), "--network"]
    return " ".join(
        ["traceana record", *arguments, network or "alexnet", *swept, *options, "-o FOLDER"]
    )


class Traced(msgspec.Struct, frozen=True):
    """A run with its trace, and the layer manifest of its model or None."""

    run: Recorded
    trace: Trace
    model: Manifest | None = None


def on_a_gpu(traced: Sequence[Traced], why: str) -> tuple[str, ...]:
    """Return instructions to record on a GPU if all runs are on the CPU."""
    if traced and all(traced_run.run.device_kind == "CPU" for traced_run in traced):
        run = traced[0].run
        words = command(run.framework, run.network, "--device cuda")
        return (f"{why}; on a GPU: {words}",)
    return to_record(traced, "--device cuda")


def to_record(traced: Sequence[Traced], *options: str) -> tuple[str, ...]:
    """Return instructions to record if there are fewer than two traces."""
    batch = "--batch 32"
    if not traced:
        both = [command(name, "alexnet", batch, *options) for name in _FRAMEWORKS]
        return (f"record: {'; '.join(both)}",)
    if len(traced) > 1:
        return ()
    run = traced[0].run
    other = "JAX" if run.framework == "PyTorch" else "PyTorch"
    batch = f"--batch {run.batch}" if run.batch else batch
    words = command(other, run.network, batch, *options)
    return (f"one run only; record another: {words}",)
