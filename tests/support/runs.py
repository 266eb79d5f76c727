"""Folders of recorded runs that never ran: every figure of them is in the arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from traceana.advise.saved import save
from traceana.runs import Environment, Gpu, Run, Status, StepTimes, Timing, Workload
from traceana.runs.layer_manifest import Manifest
from traceana.runs.run_files import (
    ENVIRONMENT_FILE,
    LAYERS_FILE,
    RUN_FILE,
    TIMING_FILE,
    Profiler,
    Value,
)
from traceana.trace import Trace

PACKAGES = {"torch": "2.13.0", "tensorflow-cpu": "2.21.0", "keras": "3.15.0", "jax": "0.10.2"}
CPU = "Pentium III"
GPU = "Tesla V100-SXM2-16GB"


def write_run(
    folder: Path,
    *,
    framework: str = "PyTorch",
    network: str = "alexnet",
    batch: int = 8,
    steps_ns: Sequence[int] = (),
    profiled_ns: Sequence[int] = (),
    processes: int = 1,
    gpu: bool = False,
    died: str | None = None,
    options: Mapping[str, Value] | None = None,
    packages: Mapping[str, str] = PACKAGES,
    synchronized: bool = True,
    parameters: int | None = None,
    trace: Trace | None = None,
) -> Path:
    """Write the folder of a run; ``died`` is the reason of its end.

    ``steps_ns`` are without a profiler. ``trace`` is saved in it as a bundle.
    """
    folder.mkdir(parents=True)
    given: dict[str, Value] = {
        "device": "cuda" if gpu else "cpu",
        "processes": processes,
        **(options or {}),
    }
    if trace is not None:
        save(trace, folder / "trace")
    _write(
        folder / RUN_FILE,
        Run(
            status=Status.COMPLETE if died is None else Status.FAILED,
            reason=died,
            workload=Workload(framework=framework, network=network, batch=batch, options=given),
            argv=("python", "-m", "workloads"),
            profiler=Profiler.TORCH,
            traces=() if trace is None else ("trace",),
            started_at="2026-01-01T00:00:00Z",
        ),
    )
    _write(
        folder / ENVIRONMENT_FILE,
        Environment(
            traceana="0",
            system="Linux",
            machine="x86_64",
            cpu=CPU,
            cpu_cores=2,
            packages=dict(packages),
            gpus=(Gpu(name=GPU),) * processes if gpu else (),
        ),
    )
    timing = Timing(
        images_per_step=batch,
        without_profiler=_times(steps_ns, synchronized=synchronized),
        with_profiler=_times(profiled_ns, synchronized=synchronized),
    )
    _write(folder / TIMING_FILE, timing)
    if parameters is not None:
        layers = Manifest(
            network=network,
            framework=framework,
            inputs=(),
            parameter_count=parameters,
            flops=0,
            layers=(),
        )
        layers.write(folder / LAYERS_FILE)
    return folder


def _times(steps_ns: Sequence[int], *, synchronized: bool) -> StepTimes | None:
    if not steps_ns:
        return None
    return StepTimes(steps_ns=tuple(steps_ns), synchronized=synchronized)


def _write(path: Path, content: msgspec.Struct) -> None:
    path.write_text(json.dumps(msgspec.to_builtins(content)), encoding="utf-8")
