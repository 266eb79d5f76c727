"""The recorded runs of a study: step times, labels, conditions, and commands to record more."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import PurePath
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Final

import msgspec

from traceana.model import Manifest
from traceana.trace import Trace

if TYPE_CHECKING:
    from traceana.runs import Environment, Run, StepTimes, Timing

_DISTRIBUTIONS: Final = {
    "PyTorch": ("torch",),
    "Keras": ("keras", "tensorflow", "tensorflow-cpu"),
    "JAX": ("jax",),
}
_GPU_OPTIONS: Final = ("cuda", "gpu", "rocm")
WITHOUT: Final = "without profiler"
WITH: Final = "with profiler"
KERNELS: Final = "kernels"
"""The time of a step is that of its kernels: a trace without a step time."""

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

    @property
    def images_per_s(self) -> float | None:
        """The images per second, None without a batch or a time."""
        return self.batch * 1e9 / self.step_ns if self.batch and self.step_ns else None

    @property
    def status(self) -> str:
        """``ok``, or the reason for a missing step time."""
        return self.failure or "ok"

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
        device_kind="GPU" if on_gpu else "CPU",
        device_name=_device_name(environment, on_gpu=on_gpu),
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


def _device_name(environment: Environment | None, *, on_gpu: bool) -> str | None:
    if environment is None:
        return None
    if on_gpu:
        return environment.gpus[0].name if environment.gpus else None
    return f"{environment.cpu} ({environment.cpu_cores} cores)"


Cell = Callable[[Recorded], Hashable]


def labels(runs: Sequence[Recorded], cell: Cell, columns: frozenset[str] = TIMED) -> list[str]:
    """Return a label for each of ``runs``; runs with one label are points of one series.

    The label is the framework, its version if there are several, ``CPU`` or ``GPU`` if both occur,
    and the options in which runs of one framework differ. Runs that still share a label and a
    ``cell`` of the table (its network, batch …) get their folders appended. ``columns`` are options
    with columns of their own.
    """
    facts = [_facts(run, columns) for run in runs]
    kinds = {run.device_kind for run in runs}
    versions: dict[str | None, set[str | None]] = defaultdict(set)
    given: dict[tuple[str | None, str], set[object]] = defaultdict(set)
    known = {name for own in facts for name in own}
    for run, own in zip(runs, facts, strict=True):
        versions[run.framework].add(run.version)
        for name in known:
            given[run.framework, name].add(own.get(name))
    names = []
    for run, own in zip(runs, facts, strict=True):
        parts = [run.framework or PurePath(run.folder).name]
        if len(versions[run.framework]) > 1 and run.version:
            parts[0] += f" {run.version}"
        parts += [run.device_kind] if len(kinds) > 1 else []
        differing = sorted(name for name in own if len(given[run.framework, name]) > 1)
        parts += [f"{name.replace('_', '-')} {_value(own[name])}" for name in differing]
        names.append(", ".join(parts))
    return _distinct(runs, names, cell)


def _facts(run: Recorded, columns: frozenset[str]) -> dict[str, object]:
    """Return the options of ``run`` with its batch and devices, without ``columns``."""
    facts = {**run.options, "batch": run.batch, "processes": run.devices}
    return {name: facts[name] for name in facts.keys() - columns - _IGNORED}


def _distinct(runs: Sequence[Recorded], names: Sequence[str], cell: Cell) -> list[str]:
    """Return ``names``; names that repeat in a cell get the parts of the folders that differ."""
    cells = [(name, cell(run)) for run, name in zip(runs, names, strict=True)]
    counts = Counter(cells)
    repeated_names = {name for (name, _), count in counts.items() if count > 1}
    found = list(names)
    for part in (_parent, _own, _both):
        found = [
            f"{name} ({part(run)})" if name in repeated_names else name
            for run, name in zip(runs, names, strict=True)
        ]
        repeated = Counter((name, at) for name, (_, at) in zip(found, cells, strict=True))
        if max(repeated.values(), default=0) == 1:
            break
    return found


def _parent(run: Recorded) -> str:
    return PurePath(run.folder).parent.name


def _own(run: Recorded) -> str:
    return PurePath(run.folder).name


def _both(run: Recorded) -> str:
    return f"{_parent(run)}/{_own(run)}"


def _value(value: object) -> str:
    if value is None:
        return "default"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def conditions(runs: Sequence[Recorded], *, timed: bool = True) -> tuple[str, ...]:
    """Return lines with machines and software of ``runs``, and the timing method.

    Without ``timed`` the times are those of the traces.
    """
    named = any(run.device_name for run in runs)
    machines = _listed(run.device_name or (_UNNAMED if named else None) for run in runs)
    libraries = _listed(
        f"{name} {version}" for run in runs for name, version in run.libraries.items()
    )
    software = _listed(
        run.framework + (f" {run.version}" if run.version else "") for run in runs if run.framework
    )
    networks = _listed(run.network for run in runs) if timed else _with_batches(runs)
    first = " · ".join(part for part in (networks, machines, software, libraries) if part)
    how = _timing(runs) if timed else "times as recorded by the profiler" if runs else ""
    return tuple(line for line in (first, how) if line)


def _timing(runs: Sequence[Recorded]) -> str:
    timed = [run for run in runs if run.steps_ns]
    if not timed:
        return ""
    least, most = (pick(len(run.steps_ns) for run in timed) for pick in (min, max))
    steps = f"{least}" if least == most else f"{least} to {most}"
    if all(run.timed == KERNELS for run in timed):
        return f"median of {steps} {'trial' if most == 1 else 'trials'}, kernels only"
    kinds = {"median" if run.exact else "mean" for run in timed}
    profiled = {run.timed == WITH for run in timed}
    how = "with profiler" if profiled == {True} else "without profiler"
    if len(profiled) > 1:
        how += ", some with profiler (column timed)"
    noun = "step" if most == 1 else "steps"
    return f"{' or '.join(sorted(kinds))} of {steps} {noun} {how}, warm-up excluded"


def _with_batches(runs: Sequence[Recorded]) -> str:
    batches: dict[str, list[str]] = {}
    for run in runs:
        if run.network is not None:
            own = batches.setdefault(run.network, [])
            own += [str(run.batch)] if run.batch and str(run.batch) not in own else []
    return ", ".join(
        f"{network} at batch {', '.join(own)}" if own else network
        for network, own in batches.items()
    )


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
    own = ["--framework", _FRAMEWORKS.get(framework or "", "pytorch"), "--network"]
    return " ".join(["traceana record", *own, network or "alexnet", *swept, *options, "-o FOLDER"])


class Traced(msgspec.Struct, frozen=True):
    """A run with its trace, and the layer manifest of its model or None."""

    run: Recorded
    trace: Trace
    model: Manifest | None = None


def on_a_gpu(traced: Sequence[Traced], why: str) -> tuple[str, ...]:
    """Return instructions to record on a GPU if all runs are on the CPU."""
    if traced and all(one.run.device_kind == "CPU" for one in traced):
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
