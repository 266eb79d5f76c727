"""The environment of a run, from this machine and the reports of the recorded processes."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from traceana import __version__
from traceana.record.nsys import find_nsys
from traceana.record.outcome import ProcessReport
from traceana.runs.run_files import Environment, Gpu, Profiler

_VARIABLES: Final = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG"),
    *("NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY"),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "TORCH_CUDNN_V8_API_DISABLED"),
    *("XLA_FLAGS", "JAX_PLATFORMS", "TF_XLA_FLAGS", "TF_CUDNN_USE_AUTOTUNE", "KERAS_BACKEND"),
    *("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "NCCL_ALGO", "NCCL_P2P_DISABLE"),
)
"""Environment variables that affect algorithms, precision or devices."""


def environment(
    processes: Sequence[ProcessReport], profiler: Profiler, options: Sequence[str]
) -> Environment:
    """Return the environment of a run, with versions from the training process."""
    known = next((one for one in processes if one.packages), None)
    gpus = _gpus()
    if known is not None and known.gpus:
        driver = gpus[0].driver if gpus else None
        gpus = tuple(
            Gpu(
                name=one.name,
                memory_bytes=one.memory_bytes,
                driver=driver,
                compute_capability=one.compute_capability,
            )
            for one in known.gpus
        )
    return Environment(
        traceana=__version__,
        python=None if known is None else known.python,
        system=platform.platform(),
        machine=platform.machine(),
        cpu=_cpu(),
        cpu_cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        threads=None if known is None else known.threads,
        packages={} if known is None else known.packages,
        libraries={} if known is None else known.libraries,
        gpus=gpus,
        profiler_version=_profiler_version(profiler, known),
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        options=tuple(options),
    )


def _profiler_version(profiler: Profiler, known: ProcessReport | None) -> str | None:
    if profiler is Profiler.NSYS:
        output = _output([find_nsys(), "--version"])
        return output.rpartition(" ")[2].strip() or None
    packages = {} if known is None else known.packages
    names = {
        Profiler.TORCH: ("torch",),
        Profiler.TENSORFLOW: ("tensorflow", "tensorflow-cpu"),
        Profiler.JAX: ("jaxlib",),
    }.get(profiler, ())
    return next((packages[name] for name in names if name in packages), None)


def _gpus() -> tuple[Gpu, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    fields = "name,memory.total,driver_version,compute_cap"
    output = _output([program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"])
    found = []
    for line in output.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == 4:
            name, mebibytes, driver, capability = values
            memory = int(mebibytes) << 20 if mebibytes.isdecimal() else None
            found.append(
                Gpu(name=name, memory_bytes=memory, driver=driver, compute_capability=capability)
            )
    return tuple(found)


def _output(words: list[str]) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")
