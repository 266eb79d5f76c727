"""Commands, versions and machine of a recording: the file ``NAME.provenance.json`` beside it."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from workloads.options import Device, RunOptions

LICENCE = "Apache-2.0"
_CLOCKS = "not controlled: times are at whatever clock the GPU ran at"
_PACKAGES = ("torch", "tensorflow-cpu", "keras", "jax", "jaxlib", "numpy", "nvtx")


def write_provenance(
    recording: Path,
    *,
    recorder: str,
    recorder_version: str,
    commands: Sequence[Sequence[str]],
    later: Sequence[Sequence[str]] = (),
    options: RunOptions | None,
    output: str,
) -> Path:
    """Write the provenance of ``recording`` to a file beside it; return that file's path.

    ``commands`` were run in this order, with the ``options`` of a network, and ``later`` have still
    to be run, on a machine with the whole tool; ``output`` is the line that the workload printed.
    """
    content = recording.read_bytes()
    facts: dict[str, Any] = {
        "file": recording.name,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "licence": LICENCE,
        "origin": "recorded for traceana by its own workloads/, not edited",
        "recorded": datetime.now(UTC).strftime("%Y-%m-%d"),
        "recorder": {"name": recorder, "version": recorder_version},
        "commands": [" ".join(command) for command in commands],
        **({"to_run": [" ".join(command) for command in later]} if later else {}),
        **({"clocks": _CLOCKS} if recorder == "ncu" else {}),
        "options": None if options is None else asdict(options),
        "output": output,
        "versions": {"python": platform.python_version(), **_versions()},
        "cpu": {"model": cpu_model(), "machine": platform.machine()},
        "gpu": _gpu() if options is None or options.device is Device.CUDA else None,
    }
    path = provenance_path(recording)
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return path


def provenance_path(recording: Path) -> Path:
    """Return ``NAME.provenance.json`` for ``NAME.json.gz``, ``NAME.sqlite`` and the like."""
    return recording.with_name(f"{stem(recording)}.provenance.json")


def stem(recording: Path) -> str:
    """Return the file's name without its format's suffixes."""
    name = recording.name
    for suffix in (".gz", ".json", ".sqlite", ".qdstrm", ".xplane.pb", ".csv"):
        name = name.removesuffix(suffix)
    return name


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def cpu_model() -> str:
    """Return the model name of the CPU."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _gpu() -> dict[str, Any] | None:
    # JAX's workload runs without PyTorch.
    try:
        import torch
    except ModuleNotFoundError:
        return None
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }
